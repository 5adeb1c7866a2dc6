--[[ Restores entries that this engine lost from a peer's copy (replication/search.py decides which). ]]

local MENDED_AT_ONCE = 10000
local MENDED_BYTES = 268435456
local XDEL_AT_ONCE = 1000

--[[ Delete the rest of the last radix-tree node. A node keeps deleted entries, and XTRIM stops at one whose ID is
     too large: if smaller IDs followed in the same node, XTRIM would trim nothing there. Returns the deleted
     entries. ]]
local function take_node_out(key)
  local nodes, taken = extents.nodes_of(key), {}
  while true do
    local entry = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
    if not entry or #entry[2] > WIDEST then break end
    extents.delete(key, entry[1])
    table.insert(taken, 1, entry)
    if extents.nodes_of(key) < nodes then break end
  end
  return taken
end

--[[ Delete entries at the end of a stream and lower its last ID to the entry before them. The last ID may not be
     below the highest deleted ID, so that is reset first.
     Returns earlier entries that had to be deleted too. ]]
local function take_end_out(key, entries, last)
  for first = 1, #entries, XDEL_AT_ONCE do
    local ids = {}
    for at = first, math.min(first + XDEL_AT_ONCE - 1, #entries) do ids[#ids + 1] = entries[at][1] end
    extents.delete(key, unpack(ids))
  end
  local taken = take_node_out(key)
  local top = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  extents.set_id(key, last, 'MAXDELETEDID', '0-1')
  extents.set_id(key, top and top[1] or '0-1')
  return taken
end

--[[ The last ID of a stream cannot be lowered below 0-1, so entry 0-1 cannot be added again: it is the first entry of
     every log. If `take_node_out` could reach it, the stream is deleted and created again with its groups. It has at most
     MENDED_AT_ONCE entries before the lost ones then. ]]
local rebuild = {}
do
  local FIRST = '0-1'

  function rebuild.is_needed(facts, lost, later)
    return (facts.first == FIRST or lost[1][1] == FIRST) and facts.length - later <= MENDED_AT_ONCE
  end

  function rebuild.is_too_wide(entries)
    for _, entry in ipairs(entries) do
      if #entry[2] > WIDEST then return true end
    end
    return false
  end

  -- nil if more is pending than one call may move.
  function rebuild.groups_with_pending(key)
    local groups, total = groups_of(key, {}), 0
    for _, group in ipairs(groups) do
      group.rows = redis.call('XPENDING', key, group.name, '-', '+', MENDED_AT_ONCE)
      group.members = redis.call('XINFO', 'CONSUMERS', key, group.name)
      total = total + #group.rows
      for _, row in ipairs(group.rows) do groups.is_given_back = groups.is_given_back or was_given_back(row) end
    end
    if total < MENDED_AT_ONCE then return groups end
  end

  function rebuild.delete_and_create(key, groups)
    redis.call('UNLINK', key)
    create_empty(key)
    for _, group in ipairs(groups) do
      redis.call('XGROUP', 'CREATE', key, group.name, group['last-delivered-id'])
      for _, member in ipairs(group.members) do redis.call('XGROUP', 'CREATECONSUMER', key, group.name, member[2]) end
    end
  end

  function rebuild.refused(key, groups)
    local refused = denied(key, 'UNLINK', 'XGROUP CREATE', 'XGROUP CREATECONSUMER', 'XCLAIM')
    return refused or (groups.is_given_back and denied(key, 'XNACK')) or nil
  end

  -- Once the entries are there: XCLAIM drops those that are not.
  function rebuild.restore_pending(key, groups)
    for _, group in ipairs(groups) do
      for _, row in ipairs(group.rows) do put_pending(key, group.name, row[1], row) end
    end
  end
end

-- Two ascending lists of {id, words} as one.
local function merged(a, b)
  local all, at = {}, 1
  for _, entry in ipairs(a) do
    while b[at] and less(b[at][1], entry[1]) do
      all[#all + 1], at = b[at], at + 1
    end
    all[#all + 1] = entry
  end
  for rest = at, #b do all[#all + 1] = b[rest] end
  return all
end

--[[ Move groups that are past the restored entries back before them, but not before what was acknowledged. Their
     consumers get the restored entries, and again those delivered since. Returns whether a group moved. ]]
local function rewind_groups(strand, before, acked, last)
  local moved = false
  for _, info in ipairs(groups_of(strand, {})) do
    local to = acked[info.name] or before
    if less(to, before) then to = before end
    if less(to, last) and less(to, info['last-delivered-id']) then
      redis.call('XGROUP', 'SETID', strand, info.name, to)
      moved = true
    end
  end
  return moved
end

--[[ `m:` tells links which range was restored. Our own strand is complete again: remove the marks of the loss. A
     copy may still lack what is before its beginning (`n:`). ]]
local function note_mended(meta, label, life, own, first, last)
  local known = own and redis.call('HGET', meta, META.LOST .. label)
  if known then register(meta, label, life, '+', known) end
  if own then redis.call('HDEL', meta, META.LOST .. label, META.NEW .. label) end
  local had_life, from, upto = string.match(redis.call('HGET', meta, META.MENDED .. label) or '', '^(%d+) (%S+) (%S+)$')
  if had_life == life then
    if less(from, first) then first = from end
    if less(last, upto) then last = upto end
  end
  redis.call('HSET', meta, META.MENDED .. label, life .. ' ' .. first .. ' ' .. last)
  -- The range may be the same as before, so archives go by the count (spark/jobs/restored.py). A copy of a log that is
  -- being made lacks them too (log_rewrite.lua).
  redis.call('HSET', meta, META.RESTORES .. label, tonumber(redis.call('HGET', meta, META.RESTORES .. label) or '0') + 1)
end

local JOURNALS_AT_ONCE = 1000

--[[ Entries of a strand that the journals here deleted after the caller's positions: they must not be restored.
     nil if the journals have more new entries than one call may read. ]]
local function deleted_since(journals, positions, strand)
  local deleted = {}
  for at, key in ipairs(journals) do
    local entries = redis.call('XRANGE', key, '(' .. positions[at], '+', 'COUNT', JOURNALS_AT_ONCE)
    if #entries == JOURNALS_AT_ONCE then return nil end
    for _, entry in ipairs(entries) do
      local which, ids = read_deletions(entry[2])
      if which == strand then
        for _, id in ipairs(ids) do deleted[id] = true end
      end
    end
  end
  return deleted
end

--[[ strand_mend: restore entries in the middle of a strand.
     FCALL bs_strand_mend n <meta> <strand> <journal>... [<bell>] <label> <life> <stamp> <common> <0|1: own> <began>
           <journals> <position>...
           <groups> (<group> <acknowledged up to>)... (<id> <n> <field or value> * n)...
     Returns how many were restored; existing entries stay as they are. Entries below the cut, or deleted by the
     journals after these positions, stay deleted. <common>: entries here after this ID are new to the peer.
     <began>: `n:` of the strand when the caller read it, or empty.
     BSSTALE: the strand is deleted or in another life, the bell is stale, or too many entries were deleted; or the
     server was flushed since the caller read it: a copy is shorter, or our own strand has begun again.
     BSLATER: more entries follow than one call may move, or one is too wide.

     A native stream accepts no entry in its middle. So the entries that follow are deleted, and all are appended
     in order. Pending lists and groups refer to entries by ID, so they stay valid.
     Why a function: no client may read, append or delete in between. ]]
local function strand_mend(keys, args)
  local meta, strand, label, life, bell = keys[1], keys[2], args[1], args[2], take_bell(keys, args[3])
  local common, own, began = args[4], args[5] == '1', args[6]
  local journals, positions, acked, at = { unpack(keys, 3) }, {}, {}, 8
  if not is_id(common) then return redis.error_reply('BSBATCH malformed ID') end
  for _ = 1, tonumber(args[7]) do
    if not is_id(args[at]) then return redis.error_reply('BSBATCH malformed position of a journal') end
    positions[#positions + 1], at = args[at], at + 1
  end
  at = at + 1
  for _ = 1, tonumber(args[at - 1]) do
    if not is_id(args[at + 1]) then return redis.error_reply('BSBATCH malformed position of a group') end
    acked[args[at]], at = args[at + 1], at + 2
  end
  local starts, wrong = batch_of(args, at)
  if not starts or not starts[1] then
    return redis.error_reply('BSBATCH malformed batch at argument ' .. (wrong or at))
  end
  for which = 2, #starts do
    if not less(args[starts[which - 1]], args[starts[which]]) then return redis.error_reply('BSBATCH out of order') end
  end
  if deadline.settle(meta, keys) then return redis.error_reply('BSSTALE the stream has expired here') end
  local has_life, state, cut = registered(meta, label)
  if has_life ~= life or state ~= '+' or redis.call('EXISTS', strand) == 0 then
    return redis.error_reply('BSSTALE ' .. label)
  end
  if is_stale(meta, bell) then return redis.error_reply(STALE_GROUPS) end
  local refused = denied(strand, 'XDEL', 'XADD', 'XSETID', 'XGROUP SETID') or denied(meta, 'HSET', 'HDEL')
  if refused then return refused end
  local has_begun = redis.call('HGET', meta, META.NEW .. label)
  if (has_begun and has_begun ~= began) or (not own and less(last_of(strand), args[starts[#starts]])) then
    return redis.error_reply('BSSTALE the server was flushed since the link read it')
  end
  local deleted_now = deleted_since(journals, positions, label .. ':' .. life)
  if not deleted_now then return redis.error_reply('BSSTALE too much was deleted meanwhile') end
  cut = deleted_upto(meta, label, cut)
  local lost, later = {}, {}
  for _, start in ipairs(starts) do
    local id = args[start]
    if less(cut, id) and not deleted_now[id] and #redis.call('XRANGE', strand, id, id) == 0 then
      lost[#lost + 1] = { id, { unpack(args, start + 2, start + 1 + args[start + 1]) } }
    end
  end
  if #lost == 0 then return 0 end -- another link was faster
  local first = lost[1][1]
  local function move(entry) later[#later + 1] = entry end
  if each_entry('XRANGE', { strand, first, '+' }, MENDED_AT_ONCE + 1, MENDED_BYTES, move) then
    return redis.error_reply('BSLATER too many entries or bytes follow ' .. first)
  end
  for _, entry in ipairs(later) do
    if #entry[2] > WIDEST then return redis.error_reply('BSLATER ' .. entry[1] .. ' is too wide') end
  end
  local facts, before = extents.of(strand), redis.call('XREVRANGE', strand, '(' .. first, '-', 'COUNT', 1)[1]
  before = before and before[1] or '0-0'
  local last, deleted = facts.last, facts.deleted
  local moves = not less(last, first)
  local kept = rebuild.is_needed(facts, lost, #later) and moves and redis.call('XRANGE', strand, '-', '(' .. first)
  local groups = kept and rebuild.groups_with_pending(strand)
  refused = groups and rebuild.refused(strand, groups)
  if refused then return refused end
  if kept and (not groups or rebuild.is_too_wide(kept)) then return redis.error_reply('BSLATER it cannot be created again') end
  if facts.length > MENDED_AT_ONCE * extents.nodes_of(strand) then
    return redis.error_reply('BSLATER its nodes are too large')
  end
  local new = redis.call('XRANGE', strand, '(' .. common, '+', 'COUNT', 1)[1]
  if kept then
    rebuild.delete_and_create(strand, groups)
    deadline.arm(meta, strand)
  end
  local again = kept or (moves and take_end_out(strand, later, last)) or {}
  for _, entry in ipairs(merged(lost, moves and later or {})) do again[#again + 1] = entry end
  for _, entry in ipairs(again) do redis.call('XADD', strand, entry[1], unpack(entry[2])) end
  local upto = lost[#lost][1]
  if moves then
    if less(last, upto) then last = upto end
    if deleted == '0-0' then deleted = '0-1' end
    extents.set_id(strand, last, 'ENTRIESADDED', facts.added + #lost, 'MAXDELETEDID', deleted)
  end
  if kept then rebuild.restore_pending(strand, groups) end
  if rewind_groups(strand, before, acked, upto) then ring(meta, bell) end
  note_mended(meta, label, life, own, new and less(new[1], lost[1][1]) and new[1] or lost[1][1], upto)
  return #lost
end

--[[ journal_redo: apply again what a peer's copy of our own journal has and our journal has lost.
     FCALL bs_journal_redo n <meta> <journal> <strand>... <strands> (<label:life>)... <upto> <0|1: write> <peer, or 0>
           (<id> <n> <word> * n)...
     With a peer's writer: this was the rest of its copy, and `j:<writer>` records that. With 1 the entries are
     also appended to our journal, for peers that had not read them. The journal continues after <upto>, so that
     no peer mistakes the next entry for one that it has applied. Returns how many were applied. ]]
local function journal_redo(keys, args)
  local meta, copy, named, count = keys[1], keys[2], {}, tonumber(args[1])
  for at = 1, count do named[args[1 + at]] = keys[2 + at] end
  local upto, write, peer = args[2 + count], args[3 + count], args[4 + count]
  local starts, wrong = batch_of(args, 5 + count)
  if not starts or not is_id(upto) then
    return redis.error_reply('BSBATCH malformed journal at argument ' .. (wrong or 2 + count))
  end
  if redis.call('EXISTS', copy) == 0 then create_empty(copy) end
  if less(last_of(copy), upto) then extents.set_id(copy, upto) end
  if peer ~= '0' then redis.call('HSET', meta, META.REDONE .. peer, upto) end
  local done = 0
  for _, start in ipairs(starts) do
    local words = { unpack(args, start + 2, start + 1 + tonumber(args[start + 1])) }
    local verb = JOURNAL_VERBS[words[1]]
    if verb and verb(meta, named, words) then
      if write == '1' then write_journal(copy, unpack(words)) end
      done = done + 1
    end
  end
  return done
end

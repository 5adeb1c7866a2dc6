--[[ Restores entries that this engine lost from a peer's copy (replication/heal/search.py decides which). ]]
-- fills: mending, rebuild
-- uses: acks, bells, consumer_groups, deadline, entries, extents, ids, journals, registry, returned, rights, streams,
-- trims, valid
do
  local MENDED_AT_ONCE = 3000 -- about 30 ms
  local MENDED_BYTES = 16777216
  local XDEL_AT_ONCE = 1000

  --[[ Delete the rest of the last radix-tree node. A node keeps deleted entries, and XTRIM stops at one whose ID is
       too large: if smaller IDs followed in the same node, XTRIM would trim nothing there. Returns the deleted
       entries. ]]
  local function take_node_out(key)
    local nodes, taken = extents.nodes_of(key), {}
    while true do
      local entry = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
      if not entry or #entry[2] > streams.WIDEST then break end
      extents.delete(key, entry[1])
      table.insert(taken, 1, entry)
      if extents.nodes_of(key) < nodes then break end
    end
    return taken
  end

  --[[ Delete entries at the end of a stream and lower its last ID to the entry before them. The last ID may not be
       below the highest deleted ID, so that is reset first.
       Returns earlier entries that had to be deleted too. ]]
  local function take_end_out(key, page, last)
    for first = 1, #page, XDEL_AT_ONCE do
      local entry_ids = {}
      for at = first, math.min(first + XDEL_AT_ONCE - 1, #page) do
        entry_ids[#entry_ids + 1] = page[at][1]
      end
      extents.delete(key, unpack(entry_ids))
    end
    local taken = take_node_out(key)
    local top = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
    extents.set_id(key, last, 'MAXDELETEDID', '0-1')
    extents.set_id(key, top and top[1] or '0-1')
    return taken
  end

  --[[ The last ID of a stream cannot be lowered below 0-1, so entry 0-1 cannot be added again: it is the first entry of
       every log. If `take_node_out` could reach it, the stream is deleted and created again with its groups. It has at
       most MENDED_AT_ONCE entries before the lost ones then. ]]
  local FIRST, MOST_PENDING = '0-1', 10000

  function rebuild.is_needed(facts, lost, later)
    return (facts.first == FIRST or lost[1][1] == FIRST) and facts.length - later <= MENDED_AT_ONCE
  end

  function rebuild.is_too_wide(page)
    for _, entry in ipairs(page) do
      if #entry[2] > streams.WIDEST then return true end
    end
    return false
  end

  -- nil if more is pending than one call may move.
  function rebuild.groups_with_pending(key)
    local groups, total = consumer_groups.of(key, {}), 0
    for _, group in ipairs(groups) do
      group.rows = redis.call('XPENDING', key, group.name, '-', '+', MOST_PENDING)
      group.members = redis.call('XINFO', 'CONSUMERS', key, group.name)
      total = total + #group.rows
      for _, row in ipairs(group.rows) do
        groups.is_given_back = groups.is_given_back or consumer_groups.was_given_back(row)
      end
    end
    if total < MOST_PENDING then return groups end
  end

  function rebuild.create_groups(key, groups)
    for _, group in ipairs(groups) do
      local read = group['entries-read']
      redis.call(
        'XGROUP',
        'CREATE',
        key,
        group.name,
        group['last-delivered-id'],
        unpack(read and { 'ENTRIESREAD', read } or {})
      )
      for _, member in ipairs(group.members) do
        redis.call('XGROUP', 'CREATECONSUMER', key, group.name, member[2])
      end
    end
  end

  function rebuild.delete_and_create(key, groups)
    redis.call('UNLINK', key)
    streams.create_empty(key)
    rebuild.create_groups(key, groups)
  end

  function rebuild.refused(key, groups)
    local refused = rights.denied(key, 'UNLINK', 'XGROUP CREATE', 'XGROUP CREATECONSUMER', 'XCLAIM')
    return refused or (groups.is_given_back and rights.denied(key, 'XNACK')) or nil
  end

  -- Once the entries are there: XCLAIM drops those that are not.
  function rebuild.restore_pending(key, groups)
    for _, group in ipairs(groups) do
      for _, row in ipairs(group.rows) do
        consumer_groups.put_pending(key, group.name, row[1], row)
      end
    end
  end

  -- Two ascending lists of {id, words} as one.
  local function merged(a, b)
    local all, at = {}, 1
    for _, entry in ipairs(a) do
      while b[at] and ids.less(b[at][1], entry[1]) do
        all[#all + 1], at = b[at], at + 1
      end
      all[#all + 1] = entry
    end
    for rest = at, #b do
      all[#all + 1] = b[rest]
    end
    return all
  end

  --[[ Move groups that are past the restored entries back before them, but not before what was acknowledged, or before
       their start. Their consumers get the restored entries, and again those delivered since. Further back if the
       server has lost what was pending, too. Returns whether a group moved. ]]
  local function rewind_groups(it, id, before, last)
    local moved, is_doubtful = false, trims.is_doubtful(it.meta, it.label, it.life, trims.process() or '')
    for _, info in ipairs(consumer_groups.of(it.strand, {})) do
      local to, position = it.acked[info.name] or '0-0', info['last-delivered-id']
      local start = returned.start_of(it.meta, info.name, id)
      if ids.less(to, start) then to = start end
      local known = is_doubtful and acks.before_lost_pending(it.meta, it.strand, id, info, to)
      if ids.less(to, before) then to = before end
      if not ids.less(to, last) or (known and ids.less(known, to)) then to = known or position end
      if ids.less(to, position) then
        returned.go_back(it.meta, { key = it.strand }, id, info.name, to)
        moved = true
      end
    end
    return moved
  end

  -- The ranges of lost entries with no other entry between them. all: these and the others, ascending.
  local function runs_of(lost, all)
    local is_lost, runs, goes_on = {}, {}, false
    for _, entry in ipairs(lost) do
      is_lost[entry[1]] = true
    end
    for _, entry in ipairs(all) do
      if goes_on and is_lost[entry[1]] then
        runs[#runs][2] = entry[1]
      elseif is_lost[entry[1]] then
        runs[#runs + 1] = { entry[1], entry[1] }
      end
      goes_on = is_lost[entry[1]]
    end
    return runs
  end

  -- A peer that had received all that was restored before lacks only this range: `p:` says so until it has it too.
  local function note_withheld(meta, label, life, before, first, last)
    local fields = redis.call('HGETALL', meta)
    for at = 1, #fields, 2 do
      local field, value = fields[at], fields[at + 1]
      if string.sub(field, 1, #META.PASSED_ON) == META.PASSED_ON and string.sub(field, -#label - 1) == ':' .. label then
        local had_life, from, upto = string.match(value, '^%+(%d+) (%S+) (%S+)$')
        if value == before then
          from, upto = first, last
        elseif had_life == life then
          if ids.less(first, from) then from = first end
          if ids.less(upto, last) then upto = last end
        end
        if from then redis.call('HSET', meta, field, '+' .. life .. ' ' .. from .. ' ' .. upto) end
      end
    end
  end

  --[[ `m:` tells links which range was restored. Our own strand is complete again: remove the marks of the loss. A
       copy may still lack what is before its beginning (`n:`). ]]
  local function note_mended(meta, label, life, own, first, last)
    local known = own and redis.call('HGET', meta, META.LOST .. label)
    if known then registry.register(meta, label, life, '+', known) end
    if own then redis.call('HDEL', meta, META.LOST .. label, META.NEW .. label) end
    local before = redis.call('HGET', meta, META.MENDED .. label) or ''
    if own then note_withheld(meta, label, life, before, first, last) end
    local had_life, from, upto = string.match(before, '^(%d+) (%S+) (%S+)$')
    if had_life == life then
      if ids.less(from, first) then first = from end
      if ids.less(last, upto) then last = upto end
    end
    redis.call('HSET', meta, META.MENDED .. label, life .. ' ' .. first .. ' ' .. last)
    -- The range may be the same as before, so archives go by the count (spark/jobs/deletions.py). A copy of a log that
    -- is being made lacks them too (log.lua).
    redis.call(
      'HSET',
      meta,
      META.RESTORES .. label,
      tonumber(redis.call('HGET', meta, META.RESTORES .. label) or '0') + 1
    )
  end

  local JOURNALS_AT_ONCE = 1000

  --[[ Entries of a strand that the journals here deleted after the caller's positions: they must not be restored.
       nil if the journals have more new entries than one call may read. Also returns how far it has read each journal.
       ]]
  local function deleted_since(journal_keys, positions, strand)
    local deleted, upto, has_more = {}, {}, false
    for at, key in ipairs(journal_keys) do
      local page = redis.call('XRANGE', key, '(' .. positions[at], '+', 'COUNT', JOURNALS_AT_ONCE)
      has_more = has_more or #page == JOURNALS_AT_ONCE
      upto[at] = positions[at]
      for _, entry in ipairs(page) do
        local which, entry_ids = journals.read_deletions(entry[2])
        if which == strand then
          for _, id in ipairs(entry_ids) do
            deleted[id] = true
          end
        end
        upto[at] = entry[1]
      end
    end
    return deleted, upto, has_more
  end

  --[[ What strand_mend and strand_weave have in common: reads the arguments from `at` on (<label> ...), and checks them
       and the strand. Returns the request, or nil and an error. Nothing was written then. ]]
  local function read_request(keys, args, at)
    local bell = bells.take(keys, args[at + 2])
    local it = { meta = keys[1], strand = keys[2], label = args[at], life = args[at + 1], bell = bell }
    it.common, it.own = args[at + 3], args[at + 4] == '1'
    local began, journal_keys = args[at + 5], valid.counted(args[at + 6], #args, 'number of journals')
    it.journals, it.positions, it.acked, at = { unpack(keys, 3) }, {}, {}, at + 7
    if not streams.is_id(it.common) then return nil, redis.error_reply('BSBATCH malformed ID') end
    for _ = 1, journal_keys do
      if not streams.is_id(args[at]) then return nil, redis.error_reply('BSBATCH malformed position of a journal') end
      it.positions[#it.positions + 1], at = args[at], at + 1
    end
    at = at + 1
    for _ = 1, valid.counted(args[at - 1], #args, 'number of groups') do
      if not streams.is_id(args[at + 1]) then return nil, redis.error_reply('BSBATCH malformed position of a group') end
      it.acked[args[at]], at = args[at + 1], at + 2
    end
    local starts, wrong = streams.batch_of(args, at)
    if not starts then return nil, redis.error_reply('BSBATCH malformed batch at argument ' .. wrong) end
    for which = 2, #starts do
      if not ids.less(args[starts[which - 1]], args[starts[which]]) then
        return nil, redis.error_reply('BSBATCH out of order')
      end
    end
    it.starts = starts
    if deadline.settle(it.meta, keys) then return nil, redis.error_reply('BSSTALE the stream has expired here') end
    local has_life, state, cut = registry.registered(it.meta, it.label)
    if has_life ~= it.life or state ~= '+' or redis.call('EXISTS', it.strand) == 0 then
      return nil, redis.error_reply('BSSTALE ' .. it.label)
    end
    if bells.is_stale(it.meta, it.bell) then return nil, redis.error_reply(bells.STALE) end
    local refused = rights.denied(it.strand, 'XDEL', 'XADD', 'XSETID', 'XGROUP SETID')
      or rights.denied(it.meta, 'HSET', 'HDEL')
    if refused then return nil, refused end
    local has_begun = redis.call('HGET', it.meta, META.NEW .. it.label)
    if
      (has_begun and has_begun ~= began)
      or (not it.own and starts[1] and ids.less(extents.last(it.strand), args[starts[#starts]]))
    then
      return nil, redis.error_reply('BSSTALE the server was flushed since the link read it')
    end
    it.cut = streams.deleted_upto(it.meta, it.label, cut)
    return it
  end

  -- The ID of the last entry before another; 0-0 if there is none.
  local function id_before(key, id)
    local entry = redis.call('XREVRANGE', key, '(' .. id, '-', 'COUNT', 1)[1]
    return entry and entry[1] or '0-0'
  end

  -- Our first entry that the peer does not know; nil if there is none.
  local function first_new(it)
    local entry = redis.call('XRANGE', it.strand, '(' .. it.common, '+', 'COUNT', 1)[1]
    return entry and entry[1]
  end

  -- After the entries from first to last are back. before: the entry before them; new: our first one that the peer does
  -- not know.
  local function finish(it, before, new, first, last)
    local id = it.label .. ':' .. it.life
    local went_back = rewind_groups(it, id, before, last)
    if returned.reopen(it.meta, { key = it.strand }, id, first, last) or went_back then bells.ring(it.meta, it.bell) end
    note_mended(it.meta, it.label, it.life, it.own, new and ids.less(new, first) and new or first, last)
  end

  -- The entries of the batch that are missing here, and that nobody deleted.
  local function entries_to_restore(it, args, deleted)
    local lost = {}
    for _, start in ipairs(it.starts) do
      local id = args[start]
      if ids.less(it.cut, id) and not deleted[id] and #redis.call('XRANGE', it.strand, id, id) == 0 then
        lost[#lost + 1] = { id, { unpack(args, start + 2, start + 1 + args[start + 1]) } }
      end
    end
    return lost
  end

  -- Everything from `first` on; nil and an error if that is more than one call may move.
  local function entries_from(strand, first)
    local later = {}
    local function move(entry) later[#later + 1] = entry end
    if entries.each('XRANGE', { strand, first, '+' }, MENDED_AT_ONCE + 1, MENDED_BYTES, move) then
      return nil, redis.error_reply('BSLATER too many entries or bytes follow ' .. first)
    end
    if rebuild.is_too_wide(later) then
      return nil, redis.error_reply('BSLATER an entry after ' .. first .. ' is too wide')
    end
    return later
  end

  -- Put the lost entries between the others. Nothing was written yet: nil and an error if that cannot be done.
  local function insert(it, lost, later)
    local strand, first, upto = it.strand, lost[1][1], lost[#lost][1]
    local facts = extents.of(strand)
    local last, deleted = facts.last, facts.deleted
    local moves = not ids.less(last, first)
    local kept = rebuild.is_needed(facts, lost, #later) and moves and redis.call('XRANGE', strand, '-', '(' .. first)
    local groups = kept and rebuild.groups_with_pending(strand)
    local refused = groups and rebuild.refused(strand, groups)
    if refused then return nil, refused end
    if kept and (not groups or rebuild.is_too_wide(kept)) then
      return nil, redis.error_reply('BSLATER it cannot be created again')
    end
    if facts.length > MENDED_AT_ONCE * facts.nodes then
      return nil, redis.error_reply('BSLATER its nodes are too large')
    end
    if kept then
      rebuild.delete_and_create(strand, groups)
      deadline.arm(it.meta, strand)
    end
    local again = kept or (moves and take_end_out(strand, later, last)) or {}
    for _, entry in ipairs(merged(lost, moves and later or {})) do
      again[#again + 1] = entry
    end
    for _, entry in ipairs(again) do
      redis.call('XADD', strand, entry[1], unpack(entry[2]))
    end
    if moves then
      if ids.less(last, upto) then last = upto end
      if deleted == '0-0' then deleted = '0-1' end
      extents.set_id(strand, last, 'ENTRIESADDED', facts.added + #lost, 'MAXDELETEDID', deleted)
    end
    if kept then rebuild.restore_pending(strand, groups) end
    return true
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
       BSLATER: more entries follow than one call may move (strand_weave can do that), or one is too wide.

       A native stream accepts no entry in its middle. So the entries that follow are deleted, and all are appended
       in order. Pending lists and groups refer to entries by ID, so they stay valid.
       Why a function: no client may read, append or delete in between. ]]
  function mending.mend(keys, args)
    local it, wrong = read_request(keys, args, 1)
    if not it then return wrong end
    if not it.starts[1] then return redis.error_reply('BSBATCH without entries') end
    local deleted, _, has_more = deleted_since(it.journals, it.positions, it.label .. ':' .. it.life)
    if has_more then return redis.error_reply('BSSTALE too much was deleted meanwhile') end
    local lost = entries_to_restore(it, args, deleted)
    if #lost == 0 then return 0 end -- another link was faster
    local first, upto = lost[1][1], lost[#lost][1]
    local later, too_much = entries_from(it.strand, first)
    if not later then return too_much end
    local before, new = id_before(it.strand, first), first_new(it)
    local is_done, refused = insert(it, lost, later)
    if not is_done then return refused end
    returned.take_back(it.meta, it.label .. ':' .. it.life, runs_of(lost, merged(lost, later)), it.acked)
    finish(it, before, new, first, upto)
    return #lost
  end

  --[[ strand_weave: the same if any number of entries follows, in many short calls.
       FCALL bs_strand_weave n <meta> <strand> <journal>... <copy> [<bell>]
             <restores> <begins> <first> <last> <so many> <0|1: more> <label> ... as for strand_mend
       The calls fill <copy> with the entries of the strand and the lost ones between them, and then it takes the place
       of the strand, with its groups and pending entries. Meanwhile clients use the strand.

           strand   1 2 3 . . . 7 8 9 |         a call appends up to 1,000 entries of the strand, and those of its batch
           copy     1 2 3 4 5                   that are between them

       Returns {entries of the batch that are done, how many of them were inserted, 1 if the copy is the strand now, the
       first entry of the strand, how far the journals were read, IDs from <first> to <last> that they deleted, and
       those of them that the copy had}. Call it with the rest of the batch, and with <0: no more> and no batch after
       the last one. <restores>: `y:` of the strand before the first call. <begins>: what the first call returned, empty
       before. <first> <last>: of all lost entries. <so many>: how many are inserted and not deleted.
       Deletions are read from the journals, a trim shows in the first entry. If the copy still has another length than
       the strand and the inserted entries, it is deleted. BSSTALE: begin again. BSLATER: an entry is too wide, or a
       group has too many pending entries.
       Why a function: no reader may see the strand without its groups, and no write may get lost in between. ]]
  local COPIED_AT_ONCE, COPIED_BYTES = 1000, 4000000
  local COPY_KEPT_S = 600

  -- Returns how many of the batch are done, how many were inserted, and whether the strand has more; nil if one is too
  -- wide.
  local function copy_page(it, copy, args, upto, deleted)
    local last, rows, has, lost, done = extents.last(copy) or '0-0', {}, {}, {}, 0
    local function take(entry)
      rows[#rows + 1], has[entry[1]] = entry, true
    end
    local more = last ~= ids.MAX .. '-' .. ids.MAX
      and entries.each('XRANGE', { it.strand, '(' .. last, upto }, COPIED_AT_ONCE, COPIED_BYTES, take)
    if rebuild.is_too_wide(rows) then return nil end
    for _, start in ipairs(it.starts) do
      local id = args[start]
      if more and ids.less(rows[#rows][1], id) then break end
      done = done + 1
      if ids.less(last, id) and ids.less(it.cut, id) and not has[id] and not deleted[id] then
        lost[#lost + 1] = { id, { unpack(args, start + 2, start + 1 + args[start + 1]) } }
      end
    end
    local all = merged(rows, lost)
    for _, entry in ipairs(all) do
      redis.call('XADD', copy, entry[1], unpack(entry[2]))
    end
    returned.take_back(it.meta, it.label .. ':' .. it.life, runs_of(lost, all), it.acked)
    return done, #lost, more
  end

  -- Delete what was deleted in the strand. Returns the IDs in the range of the lost entries, and those of them that the
  -- copy had.
  local function delete_again(copy, deleted, first, last)
    local within, gone = {}, {}
    for id in pairs(deleted) do
      local had = redis.call('XDEL', copy, id) == 1
      if not ids.less(id, first) and not ids.less(last, id) then
        within[#within + 1] = id
        if had then gone[#gone + 1] = id end
      end
    end
    return within, gone
  end

  --[[ The strand began at `begins` and was trimmed since. Trim the copy, but no lost entries. Returns whether there is
       more to trim; nil if lost entries are between those that were trimmed. ]]
  local function trim_again(copy, begins, now, first, last)
    if now and not ids.less(first, now) then
      redis.call('XTRIM', copy, 'MINID', '=', now)
      return false
    end
    if not ids.less(last, begins) then return nil end
    local more = entries.each(
      'XRANGE',
      { copy, begins, now and '(' .. now or '+' },
      COPIED_AT_ONCE,
      COPIED_BYTES,
      function(entry) redis.call('XDEL', copy, entry[1]) end
    )
    return more
  end

  local function fail(copy, text)
    redis.call('UNLINK', copy)
    return redis.error_reply(text)
  end

  local function take_place(it, copy, facts, inserted, last)
    local groups = rebuild.groups_with_pending(it.strand)
    if not groups then return fail(copy, 'BSLATER too many entries are pending') end
    local refused = rebuild.refused(it.strand, groups)
    if refused then return refused end
    redis.call('UNLINK', it.strand)
    redis.call('RENAME', copy, it.strand)
    redis.call('PERSIST', it.strand)
    if ids.less(last, facts.last) then last = facts.last end
    extents.set_id(it.strand, last, 'ENTRIESADDED', facts.added + inserted, 'MAXDELETEDID', facts.deleted)
    rebuild.create_groups(it.strand, groups)
    rebuild.restore_pending(it.strand, groups)
    deadline.arm(it.meta, it.strand)
  end

  function mending.weave(keys, args)
    local restores, begins, first, last, inserted, more = unpack(args, 1, 6)
    local bell = args[9] ~= '' and table.remove(keys) or nil
    local copy = table.remove(keys)
    if bell then keys[#keys + 1] = bell end
    local it, wrong = read_request(keys, args, 7)
    if not it then return wrong end
    if not streams.is_id(first) or not streams.is_id(last) then return redis.error_reply('BSBATCH malformed ID') end
    inserted = valid.counted(inserted, 2 ^ 53, 'number of entries')
    wrong = rights.denied(
      copy,
      'XADD',
      'XDEL',
      'XTRIM',
      'EXPIRE',
      'UNLINK',
      'RENAME',
      'PERSIST',
      'XGROUP CREATE',
      'XGROUP DESTROY'
    )
    if wrong then return wrong end
    if (redis.call('HGET', it.meta, META.RESTORES .. it.label) or '') ~= restores then
      return fail(copy, 'BSSTALE other entries were restored meanwhile')
    end
    if redis.call('EXISTS', copy) == 0 then streams.create_empty(copy) end
    local deleted, upto, has_more = deleted_since(it.journals, it.positions, it.label .. ':' .. it.life)
    local to = more == '1' and it.starts[1] and args[it.starts[#it.starts]] or '+'
    local done, new, has_rest = copy_page(it, copy, args, to, deleted)
    if not done then return fail(copy, 'BSLATER an entry of ' .. it.label .. ' is too wide') end
    local within, gone = delete_again(copy, deleted, first, last)
    extents.forget(it.strand)
    local facts = extents.of(it.strand)
    redis.call('EXPIRE', copy, COPY_KEPT_S)
    local reply = { done, new, 0, facts.first or '', upto, within, gone }
    if more == '1' or has_rest or has_more or #gone > 0 then return reply end
    if begins ~= '' and facts.first ~= begins then
      local is_trimming = trim_again(copy, begins, facts.first, first, last)
      if is_trimming then return reply end
      if is_trimming == nil then return fail(copy, 'BSSTALE lost entries were trimmed') end
    end
    inserted = inserted + new
    if extents.of(copy).length ~= facts.length + inserted then
      return fail(copy, 'BSSTALE entries were deleted meanwhile')
    end
    if inserted > 0 then
      local before, since = id_before(copy, first), first_new(it)
      local refused = take_place(it, copy, facts, inserted, last)
      if refused then return refused end
      finish(it, before, since, first, last)
    else
      redis.call('UNLINK', copy)
    end
    reply[3] = 1
    return reply
  end

  --[[ journal_redo: apply again what a peer's copy of our own journal has and our journal has lost.
       FCALL bs_journal_redo n <meta> <journal> <strand>... <strands> (<label:life>)... <upto> <0|1: write> <peer, or 0>
             (<id> <n> <word> * n)...
       With a peer's writer: this was the rest of its copy, and `j:<writer>` records that. With 1 the entries are
       also appended to our journal, for peers that had not read them. The journal continues after <upto>, so that
       no peer mistakes the next entry for one that it has applied. Returns how many were applied. ]]
  function mending.redo_journal(keys, args)
    local meta, copy, named, count =
      keys[1], keys[2], {}, valid.counted(args[1], math.min(#keys, #args), 'number of strands')
    for at = 1, count do
      named[args[1 + at]] = keys[2 + at]
    end
    local upto, write, peer = args[2 + count], args[3 + count], args[4 + count]
    local starts, wrong = streams.batch_of(args, 5 + count)
    if not starts or not streams.is_id(upto) then
      return redis.error_reply('BSBATCH malformed journal at argument ' .. (wrong or 2 + count))
    end
    if redis.call('EXISTS', copy) == 0 then streams.create_empty(copy) end
    if ids.less(extents.last(copy), upto) then extents.set_id(copy, upto) end
    if peer ~= '0' then redis.call('HSET', meta, META.REDONE .. peer, upto) end
    local done = 0
    for _, start in ipairs(starts) do
      local words = { unpack(args, start + 2, start + 1 + tonumber(args[start + 1])) }
      local verb = journals.VERBS[words[1]]
      if verb and verb(meta, named, words) then
        if write == '1' then journals.write(copy, unpack(words)) end
        done = done + 1
      end
    end
    return done
  end
end

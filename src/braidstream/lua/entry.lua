--[[ Deletion of entries that depends on consumer groups.

     FCALL bs_entry_drop 1|2 <strand> [<journal>] <policy> <=group or empty> <n> <group to leave out> * n
           <label:life> <id>...
     Returns a number for each ID: -1 nothing there, 1 deleted, 2 kept because a group needs it.

       KEEPREF   delete the entry; pending lists keep its ID
       DELREF    delete it, and take it out of every pending list
       ACKED     delete it only if it was delivered to every group and acknowledged by each

     With a group (XACKDEL) the entry is acknowledged there first; -1 if it was not pending.
     With a journal (the region has peers) deleted IDs are written there.
     Why a function: no consumer may get the entry between the check and the deletion, and peers must delete
     exactly the entries that were deleted here.
     The caller sends at most a few hundred IDs at once. ]]
-- fills: entries
-- uses: consumer_groups, extents, ids, journals, rights, streams, valid
do
  -- `counts`: the ID belongs to this strand, so a group with a lower position has not read it. A deleted entry
  -- may still be pending.
  local function is_needed(strand, id, groups, counts)
    for _, group in ipairs(groups) do
      if counts and ids.less(group['last-delivered-id'], id) then return true end
      if #redis.call('XPENDING', strand, group.name, id, id, 1) > 0 then return true end
    end
    return false
  end

  local function drop_denied(strand, policy, acker, journal)
    return rights.denied(strand, 'XDEL')
      or ((acker or policy == 'DELREF') and rights.denied(strand, 'XACK'))
      or (policy == 'ACKED' and rights.denied(strand, 'XRANGE', 'XPENDING'))
      or (journal and rights.denied(journal, 'XADD'))
      or nil
  end

  -- Returns the answer for one ID, and whether an entry was deleted.
  local function drop_one(strand, id, policy, groups, acker)
    if acker and redis.call('XACK', strand, acker, id) == 0 then return -1, false end
    local there = policy == 'ACKED' and #redis.call('XRANGE', strand, id, id) > 0
    if policy == 'ACKED' and is_needed(strand, id, groups, there or acker) then return 2, false end
    local gone = extents.delete(strand, id) == 1
    if policy == 'DELREF' then
      for _, group in ipairs(groups) do
        redis.call('XACK', strand, group.name, id)
      end
    end
    return (gone or acker) and 1 or -1, gone
  end

  function entries.drop(keys, args)
    local strand, policy, skipped = keys[1], args[1], valid.counted(args[3], #args - 4, 'number of groups')
    local acker = string.match(args[2], '^=(.*)$') -- a group's name may be empty
    local answers, left_out = {}, {}
    if redis.call('EXISTS', strand) == 0 then
      for at = 5 + skipped, #args do
        answers[at - 4 - skipped] = -1
      end
      return answers
    end
    for at = 4, 3 + skipped do
      left_out[args[at]] = true
    end
    local refused = drop_denied(strand, policy, acker, keys[2])
    if refused then return refused end
    local groups, deleted = policy == 'KEEPREF' and {} or consumer_groups.of(strand, left_out), {}
    for at = 5 + skipped, #args do
      local answer, gone = drop_one(strand, args[at], policy, groups, acker)
      if gone then deleted[#deleted + 1] = args[at] end
      answers[#answers + 1] = answer
    end
    if keys[2] and #deleted > 0 then journals.add_deletions(keys[2], args[4 + skipped], deleted) end
    return answers
  end

  --[[ entry_trim: trim with DELREF or ACKED.
       FCALL bs_entry_trim n <strand> * m [<journal>] [<meta>] <m> (<label:life>) * m <keep> <most> <DELREF or ACKED>
             <n> <group to leave out> * n (<which strand> <id>)...
       Deletes these entries, in this order, as bs_entry_drop does: at most <most> of them, and only while all strands
       together have more than <keep>. Returns how many were deleted. With <meta>, `d:` notes that this was a trim.
       Why a function: while it runs, no other client may trim and no group may acknowledge. ]]
  function entries.trim(keys, args)
    local strands = valid.counted(args[1], math.min(#keys, #args), 'number of strands')
    -- Without the right to write the registry, nothing is noted.
    local meta = string.match(keys[#keys], '^' .. KEY_PREFIX .. 'meta:') and table.remove(keys)
    if meta and rights.denied(meta, 'HGET', 'HSET') then meta = nil end
    local at, journal = strands + 2, keys[strands + 1]
    local keep, most = valid.counted(args[at], 2 ^ 53, 'length'), valid.counted(args[at + 1], 2 ^ 53, 'limit')
    local policy, last = args[at + 2], at + 3 + valid.counted(args[at + 3], #args, 'number of groups')
    valid.need((#args - last) % 2 == 0 and last <= #args, 'number of groups')
    for place = last + 1, #args, 2 do
      valid.need((valid.count(args[place], strands) or 0) > 0, 'number of a strand')
    end
    local left_out, groups, deleted, total = {}, {}, {}, 0
    for place = at + 4, last do
      left_out[args[place]] = true
    end
    for each = 1, strands do
      local refused = drop_denied(keys[each], policy, nil, journal)
      if refused then return refused end
      total = total + redis.call('XLEN', keys[each])
      groups[each], deleted[each] =
        redis.call('EXISTS', keys[each]) == 1 and consumer_groups.of(keys[each], left_out) or {}, {}
    end
    local room = math.min(total - keep, most)
    local left = room
    for place = last + 1, #args, 2 do
      if left <= 0 then break end
      local which, id = tonumber(args[place]), args[place + 1]
      local _, gone = drop_one(keys[which], id, policy, groups[which])
      if gone then
        left, deleted[which][#deleted[which] + 1] = left - 1, id
      end
    end
    for each = 1, strands do
      if #deleted[each] > 0 then
        if meta then journals.note_trimmed(meta, args[1 + each], deleted[each]) end
        if journal then journals.add_deletions(journal, args[1 + each], deleted[each], true) end
      end
    end
    return math.max(room, 0) - math.max(left, 0)
  end

  -- The first entry of a strand that a group needs.
  local function needed_from(strand, group)
    if group.pending == 0 then return ids.following(group['last-delivered-id']) end
    return redis.call('XPENDING', strand, group.name, '-', '+', 1)[1][1]
  end

  --[[ strand_cut: remove entries before <cut>, by a retention policy, and none that a group needs.
       FCALL bs_strand_cut 1 <strand> <wanted> <cut> <hold> <acked> <most>
       <cut> is <wanted>, or earlier, because other regions need what follows. With <acked> the groups here count too.
       Entries before <hold> go in any case. IDs that are no times stay.
       If all is <wanted>, it goes because groups have acknowledged it: nothing goes without a group.
       Returns {entries that were removed, the group here that needs more than others, whether entries before
       <wanted> stay}. Whole nodes, at most <most> entries; if the first node has more, or is not all to go, a part
       of it, at most NODE entries.
       Why a function: a group may be created or destroyed between the look and the trim. ]]
  local NODE, NODE_BYTES = 100, 262144

  local function cut_to(strand, cut, most)
    local removed = redis.call('XTRIM', strand, 'MINID', '~', cut, 'LIMIT', most)
    if removed == 0 and most < NODE then removed = redis.call('XTRIM', strand, 'MINID', '~', cut, 'LIMIT', NODE) end
    if removed > 0 then return removed end
    local last
    local function take(entry) last = entry[1] end
    entries.each('XRANGE', { strand, '-', '(' .. cut }, NODE, NODE_BYTES, take)
    return last and redis.call('XTRIM', strand, 'MINID', '=', ids.following(last)) or 0
  end

  function entries.cut(keys, args)
    local FIRST_TIME_MS = 10 ^ 12 -- chosen IDs may be small numbers
    local strand, wanted, cut, hold, most = keys[1], args[1], args[2], args[3], args[5]
    for _, id in ipairs({ wanted, cut, hold }) do
      if not streams.is_id(id) then return redis.error_reply('BSBATCH malformed ID') end
    end
    most = valid.counted(most, 2 ^ 53, 'limit')
    local refused = rights.denied(strand, 'XTRIM', 'XRANGE') or (args[4] == '1' and rights.denied(strand, 'XPENDING'))
    if refused then return refused end
    local first = redis.call('XRANGE', strand, '-', '+', 'COUNT', 1)[1]
    if not first or tonumber(string.match(first[1], '^%d+')) < FIRST_TIME_MS then return { 0, '', 0 } end
    local holder = ''
    for _, group in ipairs(args[4] == '1' and consumer_groups.of(strand, {}) or {}) do
      local from = needed_from(strand, group)
      if ids.less(from, cut) then
        cut, holder = from, group.name
      end
    end
    if cut == ids.MAX .. '-' .. ids.MAX then return { 0, '', 0 } end
    if ids.less(cut, hold) then cut = hold end
    local removed = cut_to(strand, cut, most)
    local stays = ids.less(cut, wanted) and #redis.call('XRANGE', strand, cut, '(' .. wanted, 'COUNT', 1) > 0
    return { removed, stays and holder or '', stays and 1 or 0 }
  end

  local ENTRIES_AT_ONCE = 1000
  local STEP = 32 -- what is read before its size is known
  local MOST_WORDS = 4096 -- of a page: the time for words that have one hash grows with the square of their number

  --[[ Calls take(entry) for entries of a strand, at most `most`, and stops when they have more than `bytes`, or more
       than `words` fields and values. The first is always taken. Returns whether more may follow. ]]
  function entries.each(command, range, most, bytes, take, words)
    local key, from, upto = unpack(range)
    local count, size, width, step = 0, 0, 0, 1
    while count < most do
      step = math.min(step, most - count)
      local part = redis.call(command, key, from, upto, 'COUNT', step)
      for _, entry in ipairs(part) do
        size, width = size + 32, width + #entry[2]
        for _, word in ipairs(entry[2]) do
          size = size + #word + 8
        end
        if count > 0 and (size > bytes or (words and width > words)) then return true end
        take(entry)
        count = count + 1
      end
      if #part < step or part[step][1] == ids.MAX .. '-' .. ids.MAX then return false end
      from, step = '(' .. part[step][1], math.min(2 * step, STEP)
      if words then step = math.max(1, math.min(step, math.floor((words - width) * count / (width + 1)))) end
    end
    return true
  end

  --[[ entry_list: the IDs of a strand from <start> to <end>, at most 1000, without their bodies; with REV the
       last of them first. FCALL bs_entry_list 1 <strand> <start> <end> <REV or empty> <bytes>
       It stops when this many bytes were read, or MOST_WORDS. The last element is empty if more may follow. ]]
  function entries.list(keys, args)
    local entry_ids, command, range = {}, 'XRANGE', { keys[1], args[1], args[2] }
    if args[3] == 'REV' then
      command, range = 'XREVRANGE', { keys[1], args[2], args[1] }
    end
    local function take(entry) entry_ids[#entry_ids + 1] = entry[1] end
    local bytes = valid.counted(args[4], 2 ^ 53, 'number of bytes')
    if entries.each(command, range, ENTRIES_AT_ONCE, bytes, take, MOST_WORDS) then entry_ids[#entry_ids + 1] = '' end
    return entry_ids
  end

  --[[ entry_page: {whether more may follow, entries after an ID}, at most so many, and no more than fit into so many
       bytes and MOST_WORDS, but at least one. FCALL bs_entry_page 1 <strand> <after> <most> <bytes>
       Why a function: one round trip, and XRANGE cannot be limited by size. ]]
  function entries.page(keys, args)
    local page = {}
    local function take(entry) page[#page + 1] = entry end
    local range, most = { keys[1], '(' .. args[1], '+' }, valid.counted(args[2], 2 ^ 53, 'number of entries')
    local bytes = valid.counted(args[3], 2 ^ 53, 'number of bytes')
    return { entries.each('XRANGE', range, most, bytes, take, MOST_WORDS) and 1 or 0, page }
  end
end

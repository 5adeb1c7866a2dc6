--[[ What a group has acknowledged beyond the prefix (acks.lua), as ranges of IDs (decision 0027).

       delivered    1  2  3  4  5  6  7        k:<group>  s1:0 2-0
       acknowledged x  x     x  x     x        a:<group>  s1:0 4-0~5-0,7-0

       a:<group>  replicated. Of each strand an ascending list of ranges; none overlap, all are beyond `k:`. Merging is
                  the union of sets. A range that begins in the prefix extends the prefix.
       u:<group>  local: ranges that peers sent and whose entries this region has not delivered yet. It passes them
                  over when it does (bs_group_read). XGROUP SETID empties it: who moves a group wants to read.

     Only the region that delivers adds a range, and only if both of its ends are entries that exist, were delivered and
     are not pending, with no pending entry between them. What is not in a list is delivered again, never skipped. ]]
-- fills: ranges
-- uses: bells, clock, consumer_groups, extents, ids, logs, registry, returned, rights, streams, valid
do
  local MOST = 1000 -- a region adds no more to a list; also how many pending entries one call looks at
  local LONGEST = 8 * MOST -- a list with what several regions added
  local LOOKED_BYTES = 262144 -- how much of entries one call reads to find where ranges begin and end
  local FEW = 100 -- so many pending entries may be looked at in every call
  local PRUNED_AT_ONCE = 100 -- so many ranges must be passed before a read writes the rest

  -- `less`, faster for IDs of the same length.
  local function earlier(a, b)
    if #a == #b and string.find(a, '-', 1, true) == string.find(b, '-', 1, true) then return a < b end
    return ids.less(a, b)
  end

  local function read_list(text)
    local list = {}
    for word in string.gmatch(text, '[^,]+') do
      local first, last = string.match(word, '^([^~]+)~([^~]+)$')
      first, last = first or word, last or word
      if not valid.id(first) or not valid.id(last) or earlier(last, first) then return nil end
      if list[1] and not earlier(list[#list][2], first) then return nil end
      if #list == LONGEST then return nil end
      list[#list + 1] = { first, last }
    end
    return list
  end

  function ranges.span(range) return range[1] == range[2] and range[1] or range[1] .. '~' .. range[2] end

  local function list_text(list)
    local words = {}
    for _, range in ipairs(list) do
      words[#words + 1] = ranges.span(range)
    end
    return table.concat(words, ',')
  end

  -- `<label:life> <list>` ... by strand
  function ranges.text_of_all(lists, text_of)
    local names, words = {}, {}
    for id, list in pairs(lists) do
      if list[1] then names[#names + 1] = id end
    end
    table.sort(names)
    for _, id in ipairs(names) do
      words[#words + 1] = id .. ' ' .. text_of(lists[id])
    end
    return table.concat(words, ' ')
  end

  -- nil unless it is exactly what `text_of_all` writes: a peer may send anything.
  function ranges.read_all(value, read, text_of)
    local lists = {}
    valid.each_pair(value, function(id, text)
      local label, life = string.match(id, '^(%w[%w.]*):(%d+)$')
      lists[id] = label and streams.is_strand(label, life) and read(text) or false
    end)
    for _, list in pairs(lists) do
      if not list then return nil end
    end
    if ranges.text_of_all(lists, text_of) == (value or '') then return lists end
  end

  function ranges.text(lists) return ranges.text_of_all(lists, list_text) end

  function ranges.read(value) return ranges.read_all(value, read_list, list_text) end

  -- A field that `text` wrote.
  local function lists_of(value)
    local lists = {}
    valid.each_pair(value, function(id, text)
      local list = {}
      for first, last in string.gmatch(text, '([^,~]+)~?([^,]*)') do
        list[#list + 1] = { first, last ~= '' and last or first }
      end
      lists[id] = list
    end)
    return lists
  end

  local function read_field(meta, field) return lists_of(redis.call('HGET', meta, field)) end

  local function write_field(meta, field, lists)
    local text, known = ranges.text(lists), redis.call('HGET', meta, field)
    if text == '' and known then
      redis.call('HDEL', meta, field) -- an empty field would differ from none
    elseif text ~= (known or '') and #text <= valid.LISTS then
      redis.call('HSET', meta, field, text)
    end
  end

  local function union(a, b)
    local all, from_a, from_b = {}, 1, 1
    while a[from_a] or b[from_b] do
      local range
      if not b[from_b] or (a[from_a] and not earlier(b[from_b][1], a[from_a][1])) then
        range, from_a = a[from_a], from_a + 1
      else
        range, from_b = b[from_b], from_b + 1
      end
      local top = all[#all]
      if not top or earlier(top[2], range[1]) then
        all[#all + 1] = { range[1], range[2] }
      elseif earlier(top[2], range[2]) then
        top[2] = range[2]
      end
    end
    return all
  end

  ranges.lists = { read = read_list, text = list_text, union = union }

  -- The ranges after a prefix, and the prefix with a range that begins in it.
  local function beyond(list, upto)
    local rest = {}
    for _, range in ipairs(list) do
      if earlier(upto, range[1]) then
        rest[#rest + 1] = range
      elseif earlier(upto, range[2]) then
        upto = range[2]
      end
    end
    return rest, upto
  end

  local function without_passed(list, upto)
    local rest = {}
    for _, range in ipairs(list) do
      if earlier(upto, range[2]) then rest[#rest + 1] = range end
    end
    return rest
  end

  -- Of ascending {id, ...} those in a list of ranges, and the others.
  local function split_entries(page, list)
    local inside, outside, at = {}, {}, 1
    for _, entry in ipairs(page) do
      while list[at] and earlier(list[at][2], entry[1]) do
        at = at + 1
      end
      if list[at] and not earlier(entry[1], list[at][1]) then
        inside[#inside + 1] = entry[1]
      else
        outside[#outside + 1] = entry
      end
    end
    return inside, outside
  end

  --[[ What was acknowledged here after pending entries, as a list. `base`: where XGROUP SETID put the group, `known`:
       the list so far. Between two pending entries it reads only what is before and after known ranges: mostly nothing.
       Returns also whether there is more to read. ]]
  local function acked_after_pending(strand, info, base, known)
    local rows = redis.call('XPENDING', strand, info.name, '-', '+', MOST)
    if #rows < MOST and #rows ~= info.pending then return {} end
    local delivered, found, bytes, place = info['last-delivered-id'], {}, 0, 1
    local function read_one(command, from, to)
      local entry = redis.call(command, strand, from, to, 'COUNT', 1)[1]
      if not entry then return nil end
      for _, word in ipairs(entry[2]) do
        bytes = bytes + #word
      end
      return entry[1]
    end
    local has_later = #rows > 0 and earlier(delivered, rows[#rows][1]) -- XGROUP SETID moved the group back
    for at, row in ipairs(rows) do
      local after, before = row[1], rows[at + 1] and rows[at + 1][1]
      if bytes > LOOKED_BYTES then return found, true end
      if not before and #rows < info.pending then break end
      if base ~= '0-0' and earlier(after, base) then after = base end
      if (has_later or not before) and not earlier(after, delivered) then break end
      if has_later and before and earlier(delivered, before) then before = nil end
      local upto = before and '(' .. before or delivered
      local first, last
      while known[place] and not earlier(after, known[place][1]) do
        place = place + 1
      end
      while known[place] and earlier(known[place][2], before or ids.following(delivered)) do
        first, last, place = first or known[place][1], known[place][2], place + 1
      end
      first = read_one('XRANGE', '(' .. after, first and '(' .. first or upto) or first
      if first then
        last = read_one('XREVRANGE', upto, '(' .. (last or first)) or last or first
        found[#found + 1] = { first, last }
      end
      if not before then break end
    end
    return found
  end

  --[[ Whether to look for ranges again. `i:<group>` keeps when that was last done, and what was pending and delivered
       then. With many pending entries it is done once in as many milliseconds: so it takes a few hundredths of the
       time. ]]
  local function is_due(noted, state, pending, now)
    local at, seen = string.match(noted or '', '^(%d+)/(.*)$')
    if not at then return true end
    if seen == state then return false end
    local passed_ms = now - tonumber(at)
    return pending <= FEW or passed_ms < 0 or passed_ms >= math.min(pending, MOST)
  end

  --[[ Add to group.ranges (by strand) what was acknowledged here beyond the prefix group.acked. Called if that prefix
       has not moved since the last call: while it moves, there is little behind it. ]]
  function ranges.note(meta, strand, id, info, group, base)
    local now, state = clock.now_ms(), info.pending .. '/' .. info['last-delivered-id']
    if not is_due(group.noted[id], state, info.pending, now) then return end
    group.ranges = group.ranges or ranges.of(meta, info.name)
    local known = group.ranges[id] or {}
    local found, has_more = acked_after_pending(strand, info, base, known)
    local all = union(known, found)
    if #all > MOST and #all > #known then all = union(known, { unpack(found, 1, math.max(0, MOST - #known)) }) end
    group.ranges[id] = all
    group.noted[id] = string.format('%.0f', now) .. '/' .. (has_more and '' or state)
  end

  -- Write the lists of a group, without what is in the prefix; that may grow.
  function ranges.write(meta, name, lists, acked)
    for id, list in pairs(lists) do
      local rest, upto = beyond(list, acked[id] or '0-0')
      lists[id] = rest
      if upto ~= '0-0' then acked[id] = upto end
    end
    write_field(meta, META.GROUP_RANGES .. name, lists)
  end

  function ranges.of(meta, name) return read_field(meta, META.GROUP_RANGES .. name) end

  -- Those of a peer's ranges that ours do not cover.
  local function new_ranges(list, ours)
    local found, at = {}, 1
    for _, range in ipairs(list) do
      while ours[at] and earlier(ours[at][2], range[1]) do
        at = at + 1
      end
      local own = ours[at]
      if not own or earlier(range[1], own[1]) or earlier(own[2], range[2]) then found[#found + 1] = range end
    end
    return found
  end

  --[[ Join a peer's lists and prefixes of a group with ours. Returns the lists, and what is new in them. Raises a
       prefix of the peer if a range extends it, so that it is applied as a prefix. ]]
  function ranges.join(meta, name, theirs)
    local ours, known = ranges.of(meta, name), streams.acked_of(redis.call('HGET', meta, META.GROUP_ACKED .. name))
    local lists, news = {}, {}
    for id, list in pairs(ours) do
      lists[id] = list
    end
    for id, list in pairs(theirs.ranges) do
      local own = ours[id] or {}
      local all = union(own, list)
      if #all <= LONGEST then
        lists[id], news[id] = all, new_ranges(list, own)
      end
    end
    for id, list in pairs(lists) do
      local upto, sent = known[id] or '0-0', theirs.acked[id]
      if streams.is_id(sent) and earlier(upto, sent) then upto = sent end
      local _, extended = beyond(list, upto)
      if earlier(upto, extended) then theirs.acked[id] = extended end
    end
    return lists, news
  end

  function ranges.passed(meta, name) return read_field(meta, META.GROUP_PASSED .. name) end

  function ranges.write_passed(meta, name, lists) write_field(meta, META.GROUP_PASSED .. name, lists) end

  --[[ Apply joined lists, after the prefixes: write them, acknowledge what is pending here in new ranges (MOST of each
       strand; the rest stays pending), and pass over the others later. ]]
  function ranges.apply(meta, strands, name, lists, news)
    local acked = streams.acked_of(redis.call('HGET', meta, META.GROUP_ACKED .. name))
    ranges.write(meta, name, lists, acked)
    local passed, open = ranges.passed(meta, name), returned.open_of(meta, name)
    for id, new in pairs(news) do
      local strand, list = strands[id], returned.outside(beyond(new, acked[id] or '0-0'), open[id])
      if list[1] and strand then
        local rows = redis.call('XPENDING', strand.key, name, list[1][1], list[#list][2], MOST)
        for _, entry in ipairs((split_entries(rows, list))) do
          redis.call('XACK', strand.key, name, entry)
        end
      end
      passed[id] = union(passed[id] or {}, list)
    end
    for id, list in pairs(passed) do
      local info = strands[id] and consumer_groups.one_of(strands[id], name)
      if info then passed[id] = without_passed(list, info['last-delivered-id']) end
    end
    write_field(meta, META.GROUP_PASSED .. name, passed)
  end

  --[[ Create the groups that strands of ours lack: a native XGROUP DESTROY removed them, or the engine lost them. Their
       pending lists are lost. So what was delivered and not acknowledged is delivered again; what was acknowledged in
       ranges is passed over. `strands`: by `<label:life>`. Returns how many were created. ]]
  function ranges.rejoin(meta, strands, groups, bell)
    local created = 0
    for id, strand in pairs(strands) do
      local there, missing = {}, {}
      for _, info in ipairs(consumer_groups.of(strand.key, {})) do
        there[info.name] = true
      end
      for name in pairs(groups) do
        if not there[name] then missing[#missing + 1] = name end
      end
      if missing[1] then streams.join_groups(meta, strand.key, strand.label, strand.life, bell, there) end
      for _, name in ipairs(missing) do
        local acked, passed = ranges.of(meta, name)[id], ranges.passed(meta, name)
        if acked then
          passed[id] = union(passed[id] or {}, acked)
          ranges.write_passed(meta, name, passed)
        end
        returned.reopen_all(meta, { key = strand.key }, id, name)
      end
      created = created + #missing
    end
    return created
  end

  --[[ group_join: the same for a reader that met NOGROUP although the registry has the group. Also if the bell was
       lost, or the key of a strand.
       FCALL bs_group_join, with the arguments of bs_group_setid; <flag> is our writer. Returns 0 if nothing was
       missing. ]]
  function ranges.join_strands(keys, args)
    local meta = keys[1]
    local strands, _, bell = consumer_groups.strands_of(keys, args)
    if not strands then return redis.error_reply(consumer_groups.STALE) end
    local refused = rights.denied(meta, 'XGROUP CREATE', 'HGET', 'HSET', 'HDEL', 'TIME', 'UNLINK')
    if refused then return refused end
    local there, groups, fields = {}, {}, redis.call('HGETALL', meta)
    for _, strand in ipairs(strands) do
      local life, state = registry.registered(meta, strand.label)
      if redis.call('EXISTS', strand.key) == 1 then
        there[strand.label .. ':' .. strand.life] = strand
      elseif life == strand.life and state == '+' and not logs.is_label(strand.label) then
        local own = select(2, registry.split_label(strand.label)) == args[3]
        if args[3] ~= '' and not streams.create_refused(meta, strand.label, bell) then
          streams.create(meta, strand.key, strand.label, own, bell)
          return 1
        end
      end
    end
    for at = 1, #fields, 2 do
      local prefix, name = registry.split_field(fields[at])
      if prefix == META.GROUP then groups[name] = true end
    end
    local created = ranges.rejoin(meta, there, groups, bell)
    if created > 0 or bell.stamp ~= '' or not next(groups) then return created end -- else the registry lost the bell
    bells.ring(meta, bell)
    return 1
  end

  --[[ group_read: XREADGROUP of one strand, without entries that other regions have acknowledged.
       FCALL bs_group_read 2 <meta> <strand> <group> <consumer> <count> <NOACK or empty> <label:life> <stamp>
       Returns how many entries the group moved on, 1 if there are ranges ahead, and the entries. NOGROUP if the stamp
       is that of a former bell. Who may not acknowledge gets all entries.
       Why a function: if the reader dies between the read and the acknowledgement, the entries would be delivered
       again. ]]
  function ranges.read_group(keys, args)
    local meta, strand, hold, name, id = keys[1], keys[2], keys[3], args[1], args[5]
    local count, noack, field = valid.count(args[3], MOST), args[4] ~= '', META.GROUP_PASSED .. args[1]
    if not count or count < 1 then return redis.error_reply('ERR value is out of range, must be positive') end
    if bells.is_stale(meta, { stamp = args[6] }) or (hold and redis.call('EXISTS', hold) == 0) then
      return redis.error_reply('NOGROUP the groups of this stream have changed')
    end
    local words = { 'XREADGROUP', 'GROUP', name, args[2], 'COUNT', args[3] }
    if noack then words[#words + 1] = 'NOACK' end
    for _, word in ipairs({ 'STREAMS', strand, '>' }) do
      words[#words + 1] = word
    end
    local may_pass = not rights.denied(strand, 'XACK', 'EXISTS', 'XINFO STREAM')
      and not rights.denied(meta, 'HGET', 'HSET', 'HDEL')
    local reply = redis.pcall(unpack(words))
    if type(reply) == 'table' and reply.err then return reply end
    local page = reply and reply[1] and reply[1][2] or {}
    if not may_pass then return { #page, 0, page } end
    local passed = read_field(meta, field)
    local inside, outside = split_entries(page, passed[id] or {})
    if inside[1] and not noack then redis.call('XACK', strand, name, unpack(inside)) end
    local upto = #page < count and extents.last(strand) or page[#page][1]
    local rest = without_passed(passed[id] or {}, upto or '0-0')
    if passed[id] and (not rest[1] or #rest + PRUNED_AT_ONCE <= #passed[id]) then
      passed[id] = rest
      write_field(meta, field, passed)
    end
    return { #page, rest[1] and 1 or 0, outside }
  end
end

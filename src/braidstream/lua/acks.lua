--[[ Acknowledgements are replicated as positions: in `k:<group>`, for each strand, the ID up to which every
     entry is acknowledged. An acknowledged entry behind one that is still pending waits for it, or travels in a range
     (ranges.lua).

         delivered    1  2  3  4  5         k moves to 2: the last entry before the first pending one
         acknowledged x  x     x            (4 follows once 3 is acknowledged) ]]
-- fills: acks
-- uses: clock, consumer_groups, deadline, extents, ids, journals, logs, ranges, registry, returned, scopes, streams,
-- trims, valid
do
  local function acked_text(acked)
    local names, words = {}, {}
    for strand in pairs(acked) do
      names[#names + 1] = strand
    end
    table.sort(names)
    for _, strand in ipairs(names) do
      words[#words + 1] = strand .. ' ' .. acked[strand]
    end
    return table.concat(words, ' ')
  end

  -- Apply a peer's acknowledgements: acknowledge pending entries here, and do not deliver the others.
  function acks.apply(meta, strands, group, theirs)
    local known = redis.call('HGET', meta, META.GROUP_ACKED .. group) or ''
    local acked, finished, open = streams.acked_of(known), true, returned.open_of(meta, group)
    for id, upto in pairs(theirs) do
      if valid.id(upto) and ids.less(acked[id] or '0-0', upto) then
        local strand, done = strands[id], true
        if strand then
          done = returned.acknowledge_to(strand.key, group, upto, open[id])
          returned.advance(meta, strand, id, group, upto, open[id])
        end
        if done then acked[id] = upto end
        finished = finished and done
      end
    end
    local text = acked_text(acked)
    if text ~= known and #text <= valid.FIELD then redis.call('HSET', meta, META.GROUP_ACKED .. group, text) end
    return finished
  end

  -- Up to where a group has acknowledged everything here. Never beyond its position: a user may have moved it
  -- back (XGROUP SETID) to read entries again. `known`: what was known before. If nothing follows it, no entry is read.
  local function acked_here(strand, info, known)
    local delivered = info['last-delivered-id']
    if info.pending == 0 then return delivered end
    local first = redis.call('XPENDING', strand, info.name, '-', '+', 1)[1][1] -- the short form lists all consumers
    if ids.less(known, first) and #redis.call('XRANGE', strand, '(' .. known, '(' .. first, 'COUNT', 1) == 0 then
      return ids.less(delivered, known) and delivered or known
    end
    local before = redis.call('XREVRANGE', strand, '(' .. first, '-', 'COUNT', 1)[1]
    if not before then return '0-0' end
    return ids.less(delivered, before[1]) and delivered or before[1]
  end

  -- Collect in `groups` what the groups of one strand have acknowledged. Returns whether one has unread or
  -- pending entries.
  local function note_acks(meta, key, id, last, groups)
    local _, region = registry.split_label(string.match(id, '^[^:]+'))
    local busy = false
    for _, info in ipairs(consumer_groups.of(key, {})) do
      local group = groups[info.name]
      if not group then
        group = {
          acked = streams.acked_of(redis.call('HGET', meta, META.GROUP_ACKED .. info.name)),
          base = streams.acked_of(redis.call('HGET', meta, META.GROUP_BASE .. info.name)),
          jumped = redis.call('HGET', meta, META.GROUP_MOVED .. info.name),
          known = redis.call('HGET', meta, META.GROUP_ACKED .. info.name) or '',
          noted = streams.acked_of(redis.call('HGET', meta, META.GROUP_NOTED .. info.name)),
          pending = {},
          came_back = returned.of(meta, info.name),
        }
        groups[info.name] = group
      end
      group.pending[region] = (group.pending[region] or 0) + info.pending
      local upto = acked_here(key, info, group.acked[id] or '0-0')
      local base = group.base[id]
        or (group.jumped and streams.start_of(group.jumped, string.match(id, '^[^:]+')))
        or '0-0'
      if ids.less(group.acked[id] or '0-0', upto) and ids.less(base, upto) then
        group.acked[id] = upto
      elseif info.pending > 0 and not logs.is_label(string.match(id, '^[^:]+')) then
        ranges.note(meta, key, id, info, group, base)
      end
      local since = group.came_back[id] and returned.acked_since(key, info, group.came_back[id], base)
      if since then
        group.came_back[id], group.has_acked_again = since, true
      end
      busy = busy or info.pending > 0 or ids.less(info['last-delivered-id'], last)
    end
    return busy
  end

  --[[ The engine was restarted, or its registry was lost, and a group may be beyond the end of a strand, because
       entries were lost: it goes back, to be given what a peer sends again. Not below what it had acknowledged, or
       where a user put it. Returns that position, or nil if it stays. ]]
  function acks.lost_position(meta, id, last, info)
    local label = string.match(id, '^[^:]+')
    local start = redis.call('HGET', meta, META.GROUP_MOVED .. info.name)
      or redis.call('HGET', meta, META.GROUP .. info.name)
    local to = last
    for _, at in ipairs({
      start and streams.start_of(start, label) or last,
      streams.acked_of(redis.call('HGET', meta, META.GROUP_BASE .. info.name))[id] or last,
      streams.acked_of(redis.call('HGET', meta, META.GROUP_ACKED .. info.name))[id] or last,
    }) do
      if ids.less(to, at) then to = at end
    end
    return ids.less(to, info['last-delivered-id']) and to or nil
  end

  --[[ A server that has lost entries may have lost what was pending, too. It has noted no acknowledgements since.
       Returns up to where a group had acknowledged everything, at least `upto`. nil if what follows that is pending, or
       if this process was asked before: then it may be acknowledged since. ]]
  function acks.before_lost_pending(meta, key, id, info, upto)
    local field, process = META.GROUP_NOTED .. info.name, trims.process()
    local noted = streams.acked_of(redis.call('HGET', meta, field))
    if not process or noted[id] == process then return nil end
    noted[id] = process
    redis.call('HSET', meta, field, acked_text(noted))
    local known = acks.lost_position(meta, id, upto, info)
    local entry = known and redis.call('XRANGE', key, '(' .. known, '+', 'COUNT', 1)[1]
    local is_pending = entry and redis.call('XPENDING', key, info.name, entry[1], entry[1], 1)[1]
    return not is_pending and known or nil
  end

  local function rewind_lost(meta, key, id, last)
    for _, info in ipairs(consumer_groups.of(key, {})) do
      local back = acks.lost_position(meta, id, last, info)
      local known = back and acks.before_lost_pending(meta, key, id, info, returned.start_of(meta, info.name, id))
      if known and ids.less(known, back) then
        returned.go_back(meta, { key = key }, id, info.name, known)
      elseif back then
        redis.call('XGROUP', 'SETID', key, info.name, back)
      end
    end
  end

  --[[ `n:<label>`: where a strand of ours began. `?` at its creation; its first entry when a link first reads it.
       Peers have none of its entries then. If a peer later has entries below that ID, they were not trimmed here:
       this engine lost them. ]]
  local function settle_new(meta, label, life, facts)
    if redis.call('HGET', meta, META.NEW .. label) ~= '?' then return end
    local first = facts.first or ids.following(facts.last)
    redis.call('HSET', meta, META.NEW .. label, first)
    trims.begin(meta, label, life, first, facts)
  end

  --[[ braid_state: everything a link needs to know about a stream, in one atomic read.
       FCALL bs_braid_state n <meta> <stream key>... <label:life or empty>... [<home strand's place>] [<left regions>]
       Returns the meta; for each key {last ID, first ID, length, entries added, bytes of the last entry,
       ID of the last entry, highest deleted ID}, or nil if it does not exist; and 1 if a group has unread or
       pending entries.
       It also writes the acknowledgements of labelled strands to `k:<group>`, hands strands over (scope.lua), and
       raises the home strand (named by its place among the keys after the meta) to entries ahead of the clock, in case
       the clock stepped back since they arrived. `=` before a label: a link reads the stream for the first time;
       neither is done then. Nor with `~`. In all three cases it notes what was trimmed (trim.lua). Acknowledgements of
       a strand that may have lost entries are not written: pending entries may be lost with them.
       FCALL bs_braid_look is the same without labels and writes nothing. ]]
  function acks.look(keys, args)
    local meta, found, groups, busy = keys[1], {}, {}, false
    local place = args[#keys] and valid.counted(args[#keys], #keys, 'place of the home strand')
    local home, highest, now, process = place and keys[1 + place], nil, nil, nil
    local journal_keys = {}
    for at = 2, #keys do
      if args[at - 1] == '' then journal_keys[#journal_keys + 1] = keys[at] end
    end
    for at = 2, #keys do
      local key, id = keys[at], args[at - 1]
      if redis.call('EXISTS', key) == 1 then
        local facts = extents.of(key, true)
        local last, first = facts.last, facts.first or ''
        found[#found + 1] = { last, first, facts.length, facts.added, facts.width, facts.tail or '', facts.deleted }
        local mark, label, life = string.match(id, '^([=~]?)(%a[%d.]+):(%d+)$')
        if mark == '=' then settle_new(meta, label, life, facts) end
        if label then
          trims.note(meta, label, life, key, facts, journal_keys)
          process = process or trims.process() or ''
          if trims.is_doubtful(meta, label, life, process) then
            rewind_lost(meta, key, label .. ':' .. life, last)
            busy = true
          elseif mark == '' then
            busy = note_acks(meta, key, id, last, groups) or busy
          end
        end
        if home and mark == '' and key ~= home and not logs.is_label(string.match(id, '^[^:]+')) then
          now = now or clock.now_ms()
          local floor = clock.floor_after(home, id, last, now)
          if floor and (not highest or ids.less(highest, floor)) then highest = floor end
        end
      else
        found[#found + 1] = false
      end
    end
    if highest then streams.raise_home(meta, home, highest) end
    local regions
    local function unnamed()
      regions = regions or scopes.unnamed_regions(meta, args) -- the same for every group
      return regions
    end
    for name, group in pairs(groups) do
      if home then
        scopes.hand_over(meta, name, registry.writer_of(home), group.pending, unnamed, args[#keys + 1] or '')
      end
      if redis.call('HEXISTS', meta, META.GROUP .. name) == 1 then
        if group.ranges or acked_text(group.acked) ~= group.known then
          ranges.write(meta, name, group.ranges or ranges.of(meta, name), group.acked)
          local text = acked_text(group.acked)
          if text ~= group.known then redis.call('HSET', meta, META.GROUP_ACKED .. name, text) end
        end
        if group.has_acked_again then returned.write(meta, name, group.came_back) end
        if group.ranges then redis.call('HSET', meta, META.GROUP_NOTED .. name, acked_text(group.noted)) end
      end
    end
    return { redis.call('HGETALL', meta), found, busy and 1 or 0 }
  end

  -- The same, for callers that may write.
  function acks.state(keys, args)
    deadline.settle(keys[1], keys)
    return acks.look(keys, args)
  end
end

--[[ A digest of a stream, for sweeps over many streams: if it is equal in two regions, there is nothing to
     replicate between them. ]]
do
  -- Whether a group has unread or pending entries, or acknowledgements that the registry does not have yet.
  local function has_news(key, id, last, fields)
    for _, info in ipairs(consumer_groups.of(key, {})) do
      local delivered = info['last-delivered-id']
      if info.pending > 0 or ids.less(delivered, last) then return true end
      if streams.acked_of(fields[META.GROUP_ACKED .. info.name])[id] ~= delivered then return true end
    end
    return false
  end

  --[[ braid_glance: FCALL_RO bs_braid_glance n <meta> <stream key>... <local prefix> <label:life, empty for a
       journal>... Returns a digest of the replicated state: the registry (without fields that start with a local
       prefix; the prefixes are one argument, separated by blanks), each strand's last ID, first entry and length, and
       each journal's last ID. Appends `!` if groups have news, a strand is ahead of the clock here, the stream's
       deadline is over, or a journal could be shorter: the stream is to be compared even if the digests are equal.
       Returns '' if the stream has a strand that the caller did not name, such as one of chosen IDs. ]]
  function acks.glance(keys, args)
    local MOST_PREFIXES = 64
    local prefixes, named, fields, words = {}, {}, {}, {}
    for prefix in string.gmatch(args[1], '%S+') do
      prefixes[#prefixes + 1] = prefix
    end
    valid.need(#prefixes <= MOST_PREFIXES, 'list of prefixes')
    local reply = redis.call('HGETALL', keys[1])
    for at = 2, #args do
      named[args[at]] = true
    end
    for at = 1, #reply, 2 do
      local field, value = reply[at], reply[at + 1]
      fields[field] = value
      local is_local = false
      for _, prefix in ipairs(prefixes) do
        if string.sub(field, 1, #prefix) == prefix then is_local = true end
      end
      if not is_local then words[#words + 1] = field .. '=' .. value end
      local life = registry.there(field, value)
      if life and not named[field .. ':' .. life] then return '' end
    end
    table.sort(words)
    local news, now = deadline.is_over(keys[1]), clock.now_ms()
    for at = 2, #keys do
      local key, id = keys[at], args[at]
      if redis.call('EXISTS', key) == 1 then
        local facts = extents.of(key, true)
        words[#words + 1] = at .. ' ' .. facts.last
        if id ~= '' then
          words[#words + 1] = (facts.first or '') .. ' ' .. facts.length
          news = news or clock.is_ahead(facts.last, now)
          news = news or (facts.groups ~= 0 and has_news(key, id, facts.last, fields))
        else
          news = news or journals.could_be_shorter(facts, now)
        end
      end
    end
    return redis.sha1hex(table.concat(words, '\n')) .. (news and '!' or '')
  end
end

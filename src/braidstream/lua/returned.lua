--[[ Entries that came back into a hole after a group had acknowledged what follows it (decision 0027).

     A region that lost entries does not see that they are missing. Its groups acknowledge what follows, and the prefix
     `k:<group>` (acks.lua), or a range (ranges.lua), passes over the hole. Nobody has processed these entries. So the
     region that refills the hole takes them back:

       acknowledged   1 2 . . 5 6 7 |          k:<group>  s1:0 7-0
       refilled       1 2 3 4 5 6 7 |          R:<group>  s1:0 3-0~4-0/1       not acknowledged after all
       acknowledged   1 2 3 4 5 6 7 |          R:<group>  s1:0 3-0~4-0/2       by a consumer that got them

       R:<group>  replicated. Of each strand an ascending list of ranges, none overlap, each with a number: odd: to be
                  delivered again, even: acknowledged since. It overrides `k:` and `a:`. If a hole is there once more,
                  the number goes up again. Merging takes the higher number for each ID, so it is commutative,
                  associative and idempotent. START: before the group, which was created at a later entry.

     A region that learns of such a range puts its group before it, and passes over what was acknowledged after it
     (`u:<group>`). A group of a log gets that again: nothing is passed over there. ]]
-- fills: returned
-- uses: consumer_groups, ids, logs, ranges, registry, streams, valid
do
  local MOST = 250 -- a longer list to which a region adds ranges becomes one range
  local LONGEST = 2 * MOST -- with what several regions added
  local PENDING = 1000 -- how many entries one call looks at
  local HIGHEST, START = 999, 998
  local LONGEST_WORD = 96 -- characters
  local FIRST = '0-1' -- no entry has a lower ID

  -- Lists: {first, last, number}, ascending. Those without a number are plain.
  local function add(list, first, last, number)
    local top = list[#list]
    if top and top[3] == number and ids.following(top[2]) == first then
      top[2] = last
    else
      list[#list + 1] = { first, last, number }
    end
  end

  -- The higher number for each ID.
  local function joined(a, b)
    local all, at_a, at_b = {}, 1, 1
    local x, y = a[1], b[1]
    local function next_a()
      at_a = at_a + 1
      x = a[at_a]
    end
    local function next_b()
      at_b = at_b + 1
      y = b[at_b]
    end
    while x or y do
      if not y or (x and ids.less(x[2], y[1])) then
        add(all, x[1], x[2], x[3])
        next_a()
      elseif not x or ids.less(y[2], x[1]) then
        add(all, y[1], y[2], y[3])
        next_b()
      elseif ids.less(x[1], y[1]) then
        add(all, x[1], ids.preceding(y[1]), x[3])
        x = { y[1], x[2], x[3] }
      elseif ids.less(y[1], x[1]) then
        add(all, y[1], ids.preceding(x[1]), y[3])
        y = { x[1], y[2], y[3] }
      else
        local first, number, x_last, y_last = x[1], math.max(x[3], y[3]), x[2], y[2]
        local last = ids.less(x_last, y_last) and x_last or y_last
        add(all, first, last, number)
        if x_last == last then
          next_a()
        else
          x = { ids.following(last), x_last, x[3] }
        end
        if y_last == last then
          next_b()
        else
          y = { ids.following(last), y_last, y[3] }
        end
      end
    end
    return all
  end

  -- What both plain lists have.
  local function common(a, b)
    local all, at = {}, 1
    for _, range in ipairs(a) do
      while b[at] and ids.less(b[at][2], range[1]) do
        at = at + 1
      end
      local place = at
      while b[place] and not ids.less(range[2], b[place][1]) do
        local first = ids.less(range[1], b[place][1]) and b[place][1] or range[1]
        local last = ids.less(range[2], b[place][2]) and range[2] or b[place][2]
        all[#all + 1] = { first, last }
        place = place + 1
      end
    end
    return all
  end

  -- What only the first plain list has.
  local function without(a, b)
    local all, at = {}, 1
    for _, range in ipairs(a) do
      local first, last = range[1], range[2]
      while b[at] and ids.less(b[at][2], first) do
        at = at + 1
      end
      local place = at
      while first and b[place] and not ids.less(last, b[place][1]) do
        if ids.less(first, b[place][1]) then all[#all + 1] = { first, ids.preceding(b[place][1]) } end
        first = ids.less(b[place][2], last) and ids.following(b[place][2]) or nil
        place = place + 1
      end
      if first then all[#all + 1] = { first, last } end
    end
    return all
  end

  -- The ranges with an odd number (1) or an even one (0), as a plain list.
  local function with_parity(list, parity)
    local all = {}
    for _, range in ipairs(list or {}) do
      if range[3] % 2 == parity then add(all, range[1], range[2]) end
    end
    return all
  end

  local function open_in(list) return with_parity(list, 1) end
  local function closed_in(list) return with_parity(list, 0) end

  -- Make the numbers of these plain ranges odd (1), where they are even; or even (0), where they are odd.
  local function turned(list, pieces, parity)
    local more = {}
    for _, range in ipairs(list) do
      if range[3] % 2 ~= parity and range[3] < START then
        for _, piece in ipairs(common({ range }, pieces)) do
          add(more, piece[1], piece[2], range[3] + 1)
        end
      end
    end
    local all = joined(list, more)
    if parity == 0 then return all end
    local new = {}
    for _, piece in ipairs(without(pieces, list)) do
      add(new, piece[1], piece[2], 1)
    end
    return joined(all, new)
  end

  --[[ A list that is too long becomes one range that is delivered again: repeats, but skips nothing. What is before the
       group stays. ]]
  local function bounded(list, most)
    if #list <= most then return list end
    local before = list[1][3] == START and list[1] or nil
    local highest, first = 1, before and list[2] or list[1]
    for _, range in ipairs(list) do
      if range ~= before then highest = math.max(highest, range[3]) end
    end
    local all = { first[1], list[#list][2], highest + 1 - highest % 2 }
    return before and { before, all } or { all }
  end

  local function text_of(list)
    local words = {}
    for _, range in ipairs(list) do
      words[#words + 1] = ranges.span(range) .. '/' .. range[3]
    end
    return table.concat(words, ',')
  end

  local function text(lists) return ranges.text_of_all(lists, text_of) end

  local function read_list(value)
    local list = {}
    for word in string.gmatch(value, '[^,]+') do
      if #word > LONGEST_WORD or #list == LONGEST then return nil end
      local span, number = string.match(word, '^([^/]+)/(%d+)$')
      local first, last = string.match(span or '', '^([^~]+)~([^~]+)$')
      first, last = first or span, last or span
      number = valid.count(number, HIGHEST)
      if not number or number == 0 or not valid.id(first) or not valid.id(last) then return nil end
      if first == '0-0' or ids.less(last, first) then return nil end
      if list[1] and not ids.less(list[#list][2], first) then return nil end
      add(list, first, last, number)
    end
    return list
  end

  function returned.read(value) return ranges.read_all(value, read_list, text_of) end

  local latest, latest_lists -- a merge reads a field several times; lists are never changed, but made again

  -- Of a group: by strand.
  function returned.of(meta, name)
    local value, lists = redis.call('HGET', meta, META.GROUP_RETURNED .. name), {}
    if not value then return lists end
    if value ~= latest then
      latest, latest_lists = value, returned.read(value) or {}
    end
    for id, list in pairs(latest_lists) do
      lists[id] = list
    end
    return lists
  end

  -- What a group must deliver again, by strand, as plain lists.
  function returned.open_of(meta, name)
    local found = {}
    for id, list in pairs(returned.of(meta, name)) do
      found[id] = open_in(list)
    end
    return found
  end

  -- Without strands of a former life, and ranges up to the cut of a strand: they were deleted with all before them.
  function returned.write(meta, name, lists)
    local field = META.GROUP_RETURNED .. name
    local kept, known = {}, redis.call('HGET', meta, field)
    for id, list in pairs(lists) do
      local label, life = string.match(id, '^(.*):(%d+)$')
      local has_life, _, cut = registry.registered(meta, label)
      kept[id] = {}
      for _, range in ipairs(list) do
        local is_over = has_life
          and (ids.less_number(life, has_life) or (life == has_life and not ids.less(cut, range[2])))
        if not is_over then table.insert(kept[id], range) end
      end
    end
    local value = text(kept)
    if #value > valid.FIELD then
      for id, list in pairs(kept) do
        kept[id] = bounded(list, 1)
      end
      value = text(kept)
    end
    if value == '' and known then
      redis.call('HDEL', meta, field)
    elseif value ~= (known or '') and #value <= valid.FIELD then
      redis.call('HSET', meta, field, value)
    end
  end

  -- A group is created; positions: `<label:life> <native>` ...
  function returned.begin(meta, name, positions)
    local lists = {}
    for id, first in pairs(streams.acked_of(positions)) do
      lists[id] = { { FIRST, first, START } }
    end
    returned.write(meta, name, lists)
  end

  -- Up to where a strand was there before the group.
  function returned.start_of(meta, name, id)
    local first = (returned.of(meta, name)[id] or {})[1]
    return first and first[3] == START and first[2] or '0-0'
  end

  -- What a group has acknowledged of a strand, as a plain list; list: of the strand, of `R:`.
  local function acked_of(meta, name, id, list)
    local upto = streams.acked_of(redis.call('HGET', meta, META.GROUP_ACKED .. name))[id] or '0-0'
    local all = ranges.lists.union({ { '0-0', upto } }, ranges.of(meta, name)[id] or {})
    return ranges.lists.union(without(all, open_in(list)), closed_in(list))
  end

  -- The group reads a strand again from `first` to `upto`: it passes over what was acknowledged there.
  local function pass_over(meta, name, id, more, open)
    if logs.is_label(string.match(id, '^[^:]+')) then return end
    local passed = ranges.passed(meta, name)
    passed[id] = without(ranges.lists.union(passed[id] or {}, more), open)
    ranges.write_passed(meta, name, passed)
  end

  -- The group goes back to `to`, before its position, to deliver what is not acknowledged between them.
  function returned.go_back(meta, strand, id, name, to)
    local list, position = returned.of(meta, name)[id], consumer_groups.one_of(strand, name)['last-delivered-id']
    local again = common(acked_of(meta, name, id, list), { { ids.following(to), position } })
    pass_over(meta, name, id, again, open_in(list))
    consumer_groups.move_to(strand, name, to)
  end

  -- These ranges, which ascend, are to be delivered again here. Returns whether the group was beyond one of them.
  local function reopen(meta, strand, id, name, pieces)
    local info = pieces[1] and consumer_groups.one_of(strand, name)
    if not info then return false end
    if ids.less(info['last-delivered-id'], pieces[1][1]) then
      pass_over(meta, name, id, {}, pieces)
      return false
    end
    returned.go_back(meta, strand, id, name, ids.preceding(pieces[1][1]))
    return true
  end

  -- The group was created again on a strand. All of it is delivered that must be.
  function returned.reopen_all(meta, strand, id, name)
    return reopen(meta, strand, id, name, returned.open_of(meta, name)[id] or {})
  end

  -- Moves a group on to `upto`, where it has acknowledged everything; not over what it must deliver.
  function returned.advance(meta, strand, id, name, upto, open)
    local info = consumer_groups.one_of(strand, name)
    local position = info and info['last-delivered-id']
    if not position or not ids.less(position, upto) then return end
    local next_one = common(open or {}, { { ids.following(position), upto } })[1]
    local to = next_one and ids.preceding(next_one[1]) or upto
    if ids.less(position, to) then consumer_groups.move_to(strand, name, to) end
    if next_one then pass_over(meta, name, id, { { next_one[1], upto } }, open) end
  end

  -- Acknowledge what is pending in these plain ranges. Returns whether all of it is.
  local function acknowledge(key, name, pieces)
    local finished = true
    for _, piece in ipairs(pieces) do
      local rows = redis.call('XPENDING', key, name, piece[1], piece[2], PENDING)
      for _, row in ipairs(rows) do
        redis.call('XACK', key, name, row[1])
      end
      finished = finished and #rows < PENDING
    end
    return finished
  end

  -- The same up to an ID, without what is to be delivered again.
  function returned.acknowledge_to(key, name, upto, open)
    return acknowledge(key, name, without({ { '0-0', upto } }, open or {}))
  end

  function returned.outside(list, open) return open and without(list, open) or list end

  --[[ Entries came back into a strand; runs: plain ranges with nothing else between. What a group counts as
       acknowledged there is to be delivered again. acked: by group, up to where the caller knows better. ]]
  function returned.take_back(meta, id, runs, acked)
    if not runs[1] then return end
    local fields = redis.call('HGETALL', meta)
    for at = 1, #fields, 2 do
      local prefix, name = registry.split_field(fields[at])
      if prefix == META.GROUP then
        local lists = returned.of(meta, name)
        local list = lists[id] or {}
        local counted = ranges.lists.union(acked_of(meta, name, id, list), ranges.passed(meta, name)[id] or {})
        local pieces = common(runs, counted)
        if acked[name] then pieces = without(pieces, { { '0-0', acked[name] } }) end
        if pieces[1] then
          lists[id] = bounded(turned(list, pieces, 1), MOST)
          returned.write(meta, name, lists)
        end
      end
    end
  end

  -- What came back between two IDs is there now: groups that must deliver it go back. Returns whether one did.
  function returned.reopen(meta, strand, id, first, last)
    local moved = false
    local fields = redis.call('HGETALL', meta)
    for at = 1, #fields, 2 do
      local prefix, name = registry.split_field(fields[at])
      if prefix == META.GROUP_RETURNED then
        local pieces = common(returned.open_of(meta, name)[id] or {}, { { first, last } })
        moved = reopen(meta, strand, id, name, pieces) or moved
      end
    end
    return moved
  end

  --[[ Join a peer's lists of a group with ours, before its acknowledgements. strands: by `<label:life>`. Returns
       whether a group went back. ]]
  function returned.join(meta, strands, name, theirs)
    local known_text = redis.call('HGET', meta, META.GROUP_RETURNED .. name)
    if not next(theirs) or text(theirs) == known_text then return false end
    local lists, ours, moved = returned.of(meta, name), returned.of(meta, name), false
    for id, list in pairs(theirs) do
      lists[id] = bounded(joined(ours[id] or {}, list), LONGEST)
    end
    returned.write(meta, name, lists)
    local now = returned.of(meta, name)
    local acked = streams.acked_of(redis.call('HGET', meta, META.GROUP_ACKED .. name))
    for id, strand in pairs(strands) do
      local open, known = open_in(now[id]), ours[id] or {}
      local done = without(closed_in(now[id]), closed_in(known))
      if done[1] then
        acknowledge(strand.key, name, done)
        pass_over(meta, name, id, done, open)
        returned.advance(meta, strand, id, name, acked[id] or '0-0', open)
      end
      moved = reopen(meta, strand, id, name, without(open, open_in(known))) or moved
    end
    return moved
  end

  --[[ What was delivered again and acknowledged since. Only what was seen: an entry is there, was delivered and is not
       pending. base: where XGROUP SETID put the group. Returns the new list, or nil. ]]
  function returned.acked_since(strand, info, list, base)
    local found, delivered = {}, info['last-delivered-id']
    local seen = ids.less(base, delivered) and { { ids.following(base), delivered } } or {}
    for _, piece in ipairs(common(open_in(list), seen)) do
      local rows = redis.call('XPENDING', strand, info.name, piece[1], piece[2], PENDING)
      local pending = {}
      for at, row in ipairs(rows) do
        pending[at] = { row[1], row[1] }
      end
      if #rows == PENDING then piece = { piece[1], rows[PENDING][1] } end
      for _, part in ipairs(without({ piece }, pending)) do
        if redis.call('XRANGE', strand, part[1], part[2], 'COUNT', 1)[1] then found[#found + 1] = part end
      end
    end
    if not found[1] then return nil end
    local all = turned(list, found, 0)
    if #all <= MOST or #all <= #list then return all end
  end
end

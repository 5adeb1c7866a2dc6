--[[ Acknowledgements are replicated as positions: in `k:<group>`, for each strand, the ID up to which every
     entry is acknowledged. An acknowledged entry behind one that is still pending waits for it, or travels in a range
     (ranges.lua).

         delivered    1  2  3  4  5         k moves to 2: the last entry before the first pending one
         acknowledged x  x     x            (4 follows once 3 is acknowledged) ]]

local function acked_text(acked)
  local names, words = {}, {}
  for strand in pairs(acked) do names[#names + 1] = strand end
  table.sort(names)
  for _, strand in ipairs(names) do words[#words + 1] = strand .. ' ' .. acked[strand] end
  return table.concat(words, ' ')
end

-- Apply a peer's acknowledgements: acknowledge pending entries here, and do not deliver the others.
local function apply_acks(meta, strands, group, theirs)
  local ACKS_AT_ONCE = 1000
  local known = redis.call('HGET', meta, META.GROUP_ACKED .. group) or ''
  local acked, finished = acked_of(known), true
  for id, upto in pairs(theirs) do
    if valid.id(upto) and less(acked[id] or '0-0', upto) then
      local strand, done = strands[id], true
      if strand then
        local pending = redis.call('XPENDING', strand.key, group, '-', upto, ACKS_AT_ONCE)
        for _, entry in ipairs(pending) do redis.call('XACK', strand.key, group, entry[1]) end
        done = #pending < ACKS_AT_ONCE
        for _, info in ipairs(groups_of(strand.key, {})) do
          if info.name == group and less(info['last-delivered-id'], upto) then
            redis.call('XGROUP', 'SETID', strand.key, group, upto)
          end
        end
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
  if less(known, first) and #redis.call('XRANGE', strand, '(' .. known, '(' .. first, 'COUNT', 1) == 0 then
    return less(delivered, known) and delivered or known
  end
  local before = redis.call('XREVRANGE', strand, '(' .. first, '-', 'COUNT', 1)[1]
  if not before then return '0-0' end
  return less(delivered, before[1]) and delivered or before[1]
end

-- Collect in `groups` what the groups of one strand have acknowledged. Returns whether one has unread or
-- pending entries.
local function note_acks(meta, key, id, last, groups)
  local _, region = split_label(string.match(id, '^[^:]+'))
  local busy = false
  for _, info in ipairs(groups_of(key, {})) do
    local group = groups[info.name]
    if not group then
      group = {
        acked = acked_of(redis.call('HGET', meta, META.GROUP_ACKED .. info.name)),
        base = acked_of(redis.call('HGET', meta, META.GROUP_BASE .. info.name)),
        jumped = redis.call('HGET', meta, META.GROUP_MOVED .. info.name),
        known = redis.call('HGET', meta, META.GROUP_ACKED .. info.name) or '',
        noted = acked_of(redis.call('HGET', meta, META.GROUP_NOTED .. info.name)),
        pending = {},
      }
      groups[info.name] = group
    end
    group.pending[region] = (group.pending[region] or 0) + info.pending
    local upto = acked_here(key, info, group.acked[id] or '0-0')
    local base = group.base[id] or (group.jumped and start_of(group.jumped, string.match(id, '^[^:]+'))) or '0-0'
    if less(group.acked[id] or '0-0', upto) and less(base, upto) then
      group.acked[id] = upto
    elseif info.pending > 0 and not logs.is_label(string.match(id, '^[^:]+')) then
      ranges.note(meta, key, id, info, group, base)
    end
    busy = busy or info.pending > 0 or less(info['last-delivered-id'], last)
  end
  return busy
end

--[[ The engine was restarted, and a group may be beyond the end of a strand, because entries were lost: it goes back, to be
     given what a peer sends again. Not below what it had acknowledged, or where a user put it. ]]
local function rewind_lost(meta, key, id, last)
  local label = string.match(id, '(%a[%d.]+):')
  local registration = string.match(id, '%a.*')
  for _, info in ipairs(groups_of(key, {})) do
    local start = redis.call('HGET', meta, META.GROUP_MOVED .. info.name) or redis.call('HGET', meta, META.GROUP .. info.name)
    local to = last
    for _, at in ipairs({
      start and start_of(start, label) or last,
      acked_of(redis.call('HGET', meta, META.GROUP_BASE .. info.name))[registration] or last,
      acked_of(redis.call('HGET', meta, META.GROUP_ACKED .. info.name))[registration] or last,
    }) do
      if less(to, at) then to = at end
    end
    if less(to, info['last-delivered-id']) then redis.call('XGROUP', 'SETID', key, info.name, to) end
  end
end

--[[ `n:<label>`: where a strand of ours began. `?` at its creation; its first entry when a link first reads it.
     Peers have none of its entries then. If a peer later has entries below that ID, they were not trimmed here:
     this engine lost them. ]]
local function settle_new(meta, label, life, facts)
  if redis.call('HGET', meta, META.NEW .. label) ~= '?' then return end
  local first = facts.first or following(facts.last)
  redis.call('HSET', meta, META.NEW .. label, first)
  trims.begin(meta, label, life, first, facts)
end

--[[ braid_state: everything a link needs to know about a stream, in one atomic read.
     FCALL bs_braid_state n <meta> <stream key>... <label:life or empty>... [<home strand's place>] [<left regions>]
     Returns the meta; for each key {last ID, first ID, length, entries added, bytes of the last entry,
     ID of the last entry, highest deleted ID}, or nil if it does not exist; and 1 if a group has unread or
     pending entries.
     It also writes the acknowledgements of labelled strands to `k:<group>`, hands strands over (scope.lua), and raises the home strand (named by
     its place among the keys after the meta) to entries ahead of the clock, in case the clock stepped back
     since they arrived. `=` before a label: a link reads the stream for the first time; neither is done then. Nor with
     `~`. In all three cases it notes what was trimmed (trim.lua). Acknowledgements of a strand that may have lost entries are
     not written: pending entries may be lost with them.
     FCALL bs_braid_look is the same without labels and writes nothing. ]]
local function braid_look(keys, args)
  local meta, found, groups, busy = keys[1], {}, {}, false
  local place = args[#keys] and valid.counted(args[#keys], #keys, 'place of the home strand')
  local home, highest, now, process = place and keys[1 + place], nil, nil, nil
  local journals = {}
  for at = 2, #keys do
    if args[at - 1] == '' then journals[#journals + 1] = keys[at] end
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
        trims.note(meta, label, life, key, facts, journals)
        process = process or trims.process() or ''
        if trims.is_doubtful(meta, label, life, process) then
          rewind_lost(meta, key, id, last)
          busy = true
        elseif mark == '' then
          busy = note_acks(meta, key, id, last, groups) or busy
        end
      end
      if home and mark == '' and key ~= home and not logs.is_label(string.match(id, '^[^:]+')) then
        now = now or now_ms()
        local floor = floor_after(home, id, last, now)
        if floor and (not highest or less(highest, floor)) then highest = floor end
      end
    else
      found[#found + 1] = false
    end
  end
  if highest then raise_home(meta, home, highest) end
  for name, group in pairs(groups) do
    if home then scopes.hand_over(meta, name, writer_of(home), group.pending, args, args[#keys + 1] or '') end
    if redis.call('HEXISTS', meta, META.GROUP .. name) == 1 then
      if group.ranges or acked_text(group.acked) ~= group.known then
        ranges.write(meta, name, group.ranges or ranges.of(meta, name), group.acked)
        local text = acked_text(group.acked)
        if text ~= group.known then redis.call('HSET', meta, META.GROUP_ACKED .. name, text) end
      end
      if group.ranges then redis.call('HSET', meta, META.GROUP_NOTED .. name, acked_text(group.noted)) end
    end
  end
  return { redis.call('HGETALL', meta), found, busy and 1 or 0 }
end

-- The same, for callers that may write.
function deadline.state(keys, args)
  deadline.settle(keys[1], keys)
  return braid_look(keys, args)
end

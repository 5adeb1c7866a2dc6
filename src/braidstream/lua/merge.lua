--[[ Merges two regions' registries of a stream. Every replicated field is a lattice, so merging is commutative,
     associative and idempotent. The winner of two values:

       s1, c1     <life>:<state>:<cut>    the later life; in one life the higher cut: all up to it is deleted
       x          1.2,3.1                 deletions of the whole stream, by writer (0, 1024: by a deadline): the higher count
       x:<group>  2.1                     deletions of a group: likewise
       v:<group>  1.2/2.1 /               deletions each creator of the group had seen, as `x/x:<group>`: all kept
       e:, w:<group>                      scope and owners: see scope.lua
       g:<group>                          where the group starts on strands created later: our own
       t:s1       0 0-0~7-3               trimmed: all of it, in the later life (trim.lua)
       k:<group>  s1:0 7-3 c1:2 9-0       acknowledged without a gap: the furthest
       a:<group>  s1:0 9-0~9-4,9-7        acknowledged after a gap: all of them (ranges.lua)
       q:<sink>   7:3:9                   of a Spark sink's batch 7, 3 of 9 chunks are in the stream: the later
       home       0.1:1 1.2:1018:1        the epochs of a log: all of them (log.lua)
       log        3.1:1000:0:0            settings of a log: the later version
       messages   1.2 1:7-3               what the home of epoch 1.2 waits for: the later epoch, then what was forced
       until      2 4102444800000         the deadline: the later version, then the later time (shared_deadline.lua)
       again      2                       chosen IDs were used after the deadline of version 2: the higher one (shared_deadline.lua)
       r:t0.1:900 1200                    what a former home wrote after 900 was appended again up to here: the furthest
       idmp       1:100:100:0             settings of idempotent production: the later era (settings.lua)

     A group exists while one of its creators had seen every known deletion (delete wins). Pending entries,
     delivered positions and XGROUP SETID are local to a region, and so are `b:`, `l:` and `u:`. ]]

-- Whether a group can start there (strand.lua).
local function is_start(text)
  local user, low, high, bound = string.match(text, '^(%S+) (%S+) (%S+) (%d+)')
  return user and valid.id(user) and valid.id(low) and valid.id(high) and valid.count(bound, WRITERS)
end

local function read_meta(fields, first)
  local state = { strands = {}, lost = {}, groups = {}, x = {}, gone = {}, sinks = {}, rescued = {}, trims = {} }
  local function group(name)
    state.groups[name] = state.groups[name] or { acked = {}, seen = '/' }
    return state.groups[name]
  end
  for at = first, #fields, 2 do
    local field, value = fields[at], fields[at + 1] or ''
    local prefix, name = split_field(field)
    if #field > valid.FIELD or #value > (prefix == META.GROUP_RANGES and valid.LISTS or valid.FIELD) then
      return nil, string.sub(field, 1, 100)
    end
    if field == META.DELETIONS then
      state.x = vector_of(value)
    elseif field == META.IDEMPOTENCE then
      if not read_settings(value) then return nil, field end
      state.idmp = value
    elseif field == META.UNTIL then
      if not deadline.is_valid(value) then return nil, field end
      state.ends = value
    elseif field == META.AGAIN then
      state.again = value
    elseif field == META.HOMES then
      state.homes = value
    elseif field == META.LOG then
      state.log = value
    elseif field == META.MESSAGES then
      state.messages = value
    elseif prefix == META.GROUP_DELETIONS then
      state.gone[name] = vector_of(value)
    elseif prefix == META.LOST then
      if not valid.id(value) then return nil, field end
      state.lost[name] = value
    elseif prefix == META.TRIMS then
      local life, list = trims.read(value)
      if not life or not is_strand(name, life) then return nil, field end
      state.trims[name] = { life, list }
    elseif prefix == META.SINK then
      state.sinks[name] = value
    elseif prefix == META.RESCUED then
      if logs.read_note(name, value) then state.rescued[name] = value end
    elseif prefix == META.GROUP then
      group(name).start = value
    elseif prefix == META.GROUP_SEEN then
      if select(2, string.gsub(value, '/', '/')) > valid.CREATORS then return nil, field end
      group(name).seen = value
    elseif prefix == META.GROUP_SCOPE then
      group(name).scope = value
    elseif prefix == META.GROUP_OWNERS then
      group(name).owners = value
    elseif prefix == META.GROUP_ACKED then
      group(name).acked = acked_of(value)
    elseif prefix == META.GROUP_RANGES then
      group(name).sent = value
    elseif split_label(field) then
      local life, there, cut = read_strand(value)
      if not life or not is_strand(field, life) or not valid.id(cut) then return nil, field end
      state.strands[field] = { life = life, there = there == '+', cut = cut }
    end
  end
  for name, found in pairs(state.groups) do
    if not found.start then state.groups[name] = nil
    elseif not is_start(found.start) then return nil, META.GROUP .. name end
  end
  return state
end

-- The creators' vectors that cover every known deletion, without those that another one includes.
local function surviving(text, x, gone)
  local kept = {}
  for word in string.gmatch(text, '%S+') do
    local stream, own = string.match(word, '^([^/]*)/([^/]*)$')
    local seen = { vector_of(stream), vector_of(own) }
    if stream and covers(seen[1], x) and covers(seen[2], gone) then
      local others, needed = {}, true
      for _, other in ipairs(kept) do
        if covers(other[1], seen[1]) and covers(other[2], seen[2]) then needed = false end
        if not (covers(seen[1], other[1]) and covers(seen[2], other[2])) then others[#others + 1] = other end
      end
      if needed then
        others[#others + 1] = seen
        kept = others
      end
    end
  end
  local words = {}
  for _, seen in ipairs(kept) do words[#words + 1] = vector_text(seen[1]) .. '/' .. vector_text(seen[2]) end
  table.sort(words)
  return table.concat(words, ' ', 1, math.min(#words, valid.CREATORS))
end

--[[ Apply the peer's deletion of strand `label`: up to its cut, or the whole life if the peer has a later one. If the peer has a
     later life of our own `c` strand, this engine lost it: the life goes on, and the peer gives it back. ]]
local function merge_cut(meta, label, ours, theirs, named, home)
  local cut, kind, writer = theirs.cut, split_label(label)
  local state = theirs.there and kind == KIND.CHOSEN and writer == home and '+' or '-'
  if not ours then
    local lost = (theirs.there or kind == KIND.GENERATED) and named[label .. ':' .. theirs.life]
    if lost and redis.call('EXISTS', lost) == 1 then -- only our registry has lost it
      if cut ~= '0-0' then redis.call('XTRIM', lost, 'MINID', '=', following(cut)) end
      register_again(meta, label, theirs.life, cut)
      return
    end
    local is_over = cut ~= '0-0' or theirs.life ~= '0'
    if logs.is_label(label) then is_over = cut ~= '0-0' or not theirs.there end
    if is_over then register(meta, label, theirs.life, state, cut) end
    return
  end
  local key = ours.there and named[label .. ':' .. ours.life]
  if less_number(ours.life, theirs.life) then
    if key then redis.call('UNLINK', key) end
    redis.call('HDEL', meta, META.LOST .. label)
    register(meta, label, theirs.life, state, cut)
    return
  end
  if ours.life ~= theirs.life then return end
  -- Our key was lost, so our cut is higher; `l:` keeps up to where the strand was really deleted.
  local lost = redis.call('HGET', meta, META.LOST .. label)
  if lost and less(lost, cut) then redis.call('HSET', meta, META.LOST .. label, cut) end
  if not less(ours.cut, cut) then return end
  local last = key and last_of(key)
  if last then
    trims.note(meta, label, ours.life, key, extents.of(key), {})
    if cut == MAX_SEQ .. '-' .. MAX_SEQ then
      redis.call('XTRIM', key, 'MAXLEN', '=', 0)
    else
      redis.call('XTRIM', key, 'MINID', '=', following(cut))
    end
    if less(last, cut) then extents.set_id(key, cut) end
    trims.moved(meta, label, ours.life, key)
  end
  register(meta, label, ours.life, ours.there and '+' or '-', cut)
  local life, at, since = string.match(redis.call('HGET', meta, META.RESUMED .. label) or '', '^(%d+) (%S+) (%S+)$')
  if life == ours.life and at == ours.cut then
    redis.call('HSET', meta, META.RESUMED .. label, life .. ' ' .. cut .. ' ' .. since)
  end
end

local function there_now(meta, named)
  local strands, fields = {}, redis.call('HGETALL', meta)
  for at = 1, #fields, 2 do
    local life = strand_there(fields[at], fields[at + 1])
    local id = life and fields[at] .. ':' .. life
    if id and named[id] and redis.call('EXISTS', named[id]) == 1 then
      strands[id] = { key = named[id], label = fields[at], life = life }
    end
  end
  return strands
end

local function destroy_group(meta, strands, group, given)
  for _, strand in pairs(strands) do redis.call('XGROUP', 'DESTROY', strand.key, group) end
  forget_group(meta, group, given.named[META.GROUP .. group], given.bell)
end

local function create_group(meta, strands, group, theirs, bell)
  redis.call('HSET', meta, META.GROUP .. group, theirs.start)
  ring(meta, bell)
  for _, strand in pairs(strands) do
    local is_there = false -- if only our registry has lost it
    for _, info in ipairs(groups_of(strand.key, {})) do is_there = is_there or info.name == group end
    if not is_there then redis.call('XGROUP', 'CREATE', strand.key, group, start_of(theirs.start, strand.label)) end
  end
end

local function later_mark(a, b)
  local LONGEST_MARK = 64 -- characters
  local batch, published = string.match(a, '^(%d+):(%d+):%d+$')
  local known, seen = string.match(b or '0:0:0', '^(%d+):(%d+):%d+$')
  if not batch or #a > LONGEST_MARK then return false end
  if not known then return true end
  return less_number(known, batch) or (known == batch and less_number(seen, published))
end

local function same(a, b) return covers(a, b) and covers(b, a) end

--[[ braid_merge: FCALL bs_braid_merge n <meta> <strand>... <turn>... [<bell>] [bs:config]
           <strands> (<label> <life> <0|1|2|3>)... <turns> g:<group>... <stamp> (<field> <value>)...
     The caller names every strand that may exist. 1 and 2 mark strands to create if the stream has a group and
     they are missing (a blocked reader can only wait on existing keys); 2 is our own. 3 is our own too, and the
     last key is bs:config: not if that is gone, because clients would append to it. The fields are the peer's
     registry. Returns 1; 0 if more pending entries must be acknowledged than one call may: call it again.
     BSSTALE if there is a strand or a group that is not named, or if the bell is stale; nothing is done.
     Why a function: a half-merged registry would show a state that no region ever had. ]]
local function braid_merge(keys, args)
  local meta, count, named, makes = keys[1], valid.counted(args[1], #keys - 1, 'number of strands'), {}, {}
  valid.need(1 + 3 * count < #args, 'number of strands')
  for at = 1, count do
    local label, life = args[3 * at - 1], args[3 * at]
    named[label .. ':' .. life] = keys[1 + at]
    local make_it = args[3 * at + 1]
    if make_it ~= '0' then
      makes[#makes + 1] = { key = keys[1 + at], label = label, own = make_it ~= '1', guarded = make_it == '3' }
    end
  end
  local config, home
  for _, strand in ipairs(makes) do
    if strand.own then home = writer_of(strand.key) end -- there is one
    if strand.guarded then config = table.remove(keys) end
  end
  local given, _, first = read_stream_keys(keys, 2 + count, args, 2 + 3 * count)
  local theirs, wrong = read_meta(args, first)
  if not theirs then return redis.error_reply('BSBATCH the peer\'s ' .. wrong .. ' cannot be read') end
  for name, group in pairs(theirs.groups) do
    group.ranges = ranges.read(group.sent)
    if not group.ranges then return redis.error_reply('BSBATCH the peer\'s ' .. META.GROUP_RANGES .. name .. ' cannot be read') end
  end
  if deadline.settle(meta, keys) then return redis.error_reply('BSSTALE the stream has expired here') end
  local ours, damaged = read_meta(redis.call('HGETALL', meta), 1)
  if not ours then return redis.error_reply('BSDAMAGED the field ' .. damaged .. ' of this registry cannot be read') end
  for label, strand in pairs(ours.strands) do
    if strand.there and not named[label .. ':' .. strand.life] then return redis.error_reply('BSSTALE ' .. label) end
  end
  for name in pairs(ours.groups) do
    if not given.named[META.GROUP .. name] then return redis.error_reply(STALE_GROUPS) end
  end
  if is_stale(meta, given.bell) then return redis.error_reply(STALE_GROUPS) end
  if theirs.idmp then merge_settings(meta, theirs.idmp) end
  if theirs.log then logs.merge_settings(meta, theirs.log) end
  if theirs.homes then logs.merge_homes(meta, theirs.homes) end
  if theirs.messages then logs.merge_messages(meta, theirs.messages) end
  if theirs.ends then deadline.merge(meta, theirs.ends) end
  if theirs.again then deadline.merge_again(meta, theirs.again) end
  for label, upto in pairs(theirs.rescued) do
    if less_number(ours.rescued[label] or '0', upto) then redis.call('HSET', meta, META.RESCUED .. label, upto) end
  end
  local x = joined(ours.x, theirs.x)
  if not same(x, ours.x) then redis.call('HSET', meta, META.DELETIONS, vector_text(x)) end
  local gone = {}
  for _, side in ipairs({ ours, theirs }) do
    for name, counts in pairs(side.gone) do gone[name] = joined(gone[name] or {}, counts) end
  end
  for name, counts in pairs(gone) do
    if not same(counts, ours.gone[name] or {}) then
      redis.call('HSET', meta, META.GROUP_DELETIONS .. name, vector_text(counts))
    end
  end
  for label, trimmed in pairs(theirs.trims) do trims.add(meta, label, unpack(trimmed)) end
  for sink, mark in pairs(theirs.sinks) do
    if later_mark(mark, ours.sinks[sink]) then redis.call('HSET', meta, META.SINK .. sink, mark) end
  end
  local strands = there_now(meta, named)
  for name, group in pairs(ours.groups) do
    group.seen = surviving(group.seen, x, gone[name] or {})
    if group.seen == '' then
      destroy_group(meta, strands, name, given)
      ours.groups[name] = nil
    end
  end
  for label, strand in pairs(theirs.strands) do
    strand.cut = theirs.lost[label] or strand.cut
    merge_cut(meta, label, ours.strands[label], strand, named, home)
  end
  strands = there_now(meta, named)
  if next(ours.groups) then ranges.rejoin(meta, strands, ours.groups, given.bell) end
  for name, group in pairs(theirs.groups) do
    local mine = ours.groups[name]
    local seen = surviving((mine and mine.seen or '') .. ' ' .. group.seen, x, gone[name] or {})
    if seen ~= '' and not mine then
      create_group(meta, strands, name, group, given.bell)
      ours.groups[name] = { acked = {} }
    end
    if seen ~= '' and seen ~= (redis.call('HGET', meta, META.GROUP_SEEN .. name) or '/') then
      redis.call('HSET', meta, META.GROUP_SEEN .. name, seen)
    end
  end
  local of_log = logs.is_log(meta)
  if of_log then logs.seal_old_homes(meta, named, makes) end
  -- A log that was deleted becomes no stream because another region created a group of it at that time.
  local was_log = not next(strands) and redis.call('HGET', meta, META.HOMES)
  if next(ours.groups) and not of_log and not was_log then
    for _, strand in ipairs(makes) do
      local is_made = redis.call('EXISTS', strand.key) == 0
      if is_made and strand.guarded then is_made = redis.call('EXISTS', config) == 1 end
      if is_made then create_strand(meta, strand.key, strand.label, strand.own, given.bell) end
    end
    strands = there_now(meta, named)
  end
  remove_empty_strands(meta, named)
  local finished = true
  for name, group in pairs(theirs.groups) do
    if ours.groups[name] and same(theirs.x, x) and same(theirs.gone[name] or {}, gone[name] or {}) then
      local lists, news = ranges.join(meta, name, group)
      local is_applied = apply_acks(meta, strands, name, group.acked)
      if is_applied then
        ranges.apply(meta, strands, name, lists, news)
        scopes.merge(meta, name, group, given.bell) -- a new owner starts after them
      end
      finished = is_applied and finished
    end
  end
  return finished and 1 or 0
end

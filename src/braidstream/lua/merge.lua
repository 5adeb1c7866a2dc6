--[[ Merges two regions' registries of a stream. Every replicated field is a lattice, so merging is commutative,
     associative and idempotent. The winner of two values:

       s1, c1     <life>:<state>:<cut>    the later life; in one life the higher cut: all up to it is deleted
       x          1.2,3.1                 deletions of the whole stream, by writer (0, 1024: by a deadline): the higher
                                          count
       x:<group>  2.1                     deletions of a group: likewise
       v:<group>  1.2/2.1 /               deletions each creator of the group had seen, as `x/x:<group>`: all kept
       e:, w:<group>                      scope and owners: see scope.lua
       g:<group>                          where the group starts on strands created later: our own
       t:s1       0 0-0~7-3               trimmed: all of it, in the later life (trim.lua)
       k:<group>  s1:0 7-3 c1:2 9-0       acknowledged without a gap: the furthest
       a:<group>  s1:0 9-0~9-4,9-7        acknowledged after a gap: all of them (ranges.lua)
       R:<group>  s1:0 3-0~4-0/1          came back into a hole: the higher number of each ID (returned.lua)
       q:<sink>   7:3:9                   of a Spark sink's batch 7, 3 of 9 chunks are in the stream: the later
       home       0.1:1 1.2:1018:1        the epochs of a log: all of them (log.lua)
       log        3.1:1000:0:0            settings of a log: the later version
       messages   1.2 1:7-3               what the home of epoch 1.2 waits for: the later epoch, then what was forced
       until      2 4102444800000         the deadline: the later version, then the later time (deadline.lua)
       again      2                       chosen IDs were used after the deadline of version 2: the higher one
                                          (deadline.lua)
       r:t0.1:900 1200                    what a former home wrote after 900 was appended again up to here: the furthest
       idmp       1:100:100:0             settings of idempotent production: the later era (idempotence.lua)

     A group exists while one of its creators had seen every known deletion (delete wins). Pending entries,
     delivered positions and XGROUP SETID are local to a region, and so are `b:`, `l:` and `u:`. ]]
-- fills: merging
-- uses: acks, bells, braids, consumer_groups, deadline, extents, idempotence, ids, logs, ranges, registry,
-- returned, scopes, streams, trims, valid, vectors
do
  -- Whether a group can start there (strand.lua).
  local function is_start(text)
    local user, low, high, bound = string.match(text, '^(%S+) (%S+) (%S+) (%d+)')
    return user and valid.id(user) and valid.id(low) and valid.id(high) and valid.count(bound, WRITERS)
  end

  -- Fields that are read where they are merged.
  local AS_THEY_ARE = {
    [META.AGAIN] = 'again',
    [META.HOMES] = 'homes',
    [META.LOG] = 'log',
    [META.MESSAGES] = 'messages',
  }
  local OF_GROUPS = {
    [META.GROUP] = 'start',
    [META.GROUP_SCOPE] = 'scope',
    [META.GROUP_OWNERS] = 'owners',
    [META.GROUP_RANGES] = 'sent',
    [META.GROUP_RETURNED] = 'back',
  }

  local function read_meta(fields, first)
    local state = { strands = {}, lost = {}, groups = {}, x = {}, gone = {}, sinks = {}, rescued = {}, trimmed = {} }
    local function group(name)
      state.groups[name] = state.groups[name] or { acked = {}, seen = '/' }
      return state.groups[name]
    end
    for at = first, #fields, 2 do
      local field, value = fields[at], fields[at + 1] or ''
      local prefix, name = registry.split_field(field)
      if #field > valid.FIELD or #value > (prefix == META.GROUP_RANGES and valid.LISTS or valid.FIELD) then
        return nil, string.sub(field, 1, 100)
      end
      if field == META.DELETIONS then
        state.x = vectors.of(value)
      elseif field == META.IDEMPOTENCE then
        if not idempotence.read_settings(value) then return nil, field end
        state.idmp = value
      elseif field == META.UNTIL then
        if not deadline.is_valid(value) then return nil, field end
        state.ends = value
      elseif AS_THEY_ARE[field] then
        state[AS_THEY_ARE[field]] = value
      elseif prefix == META.GROUP_DELETIONS then
        state.gone[name] = vectors.of(value)
      elseif prefix == META.LOST then
        if not valid.id(value) then return nil, field end
        state.lost[name] = value
      elseif prefix == META.TRIMS then
        local life, list = trims.read(value)
        if not life or not streams.is_strand(name, life) then return nil, field end
        state.trimmed[name] = { life, list }
      elseif prefix == META.SINK then
        state.sinks[name] = value
      elseif prefix == META.RESCUED then
        if logs.read_note(name, value) then state.rescued[name] = value end
      elseif OF_GROUPS[prefix] then
        group(name)[OF_GROUPS[prefix]] = value
      elseif prefix == META.GROUP_SEEN then
        if select(2, string.gsub(value, '/', '/')) > valid.CREATORS then return nil, field end
        group(name).seen = value
      elseif prefix == META.GROUP_ACKED then
        group(name).acked = streams.acked_of(value)
      elseif registry.split_label(field) then
        local life, there, cut = registry.read_strand(value)
        if not life or not streams.is_strand(field, life) or not valid.id(cut) then return nil, field end
        state.strands[field] = { life = life, there = there == '+', cut = cut }
      end
    end
    for name, found in pairs(state.groups) do
      if not found.start then
        state.groups[name] = nil
      elseif not is_start(found.start) then
        return nil, META.GROUP .. name
      end
    end
    return state
  end

  -- The creators' vectors that cover every known deletion, without those that another one includes.
  local function surviving(text, x, gone)
    local kept = {}
    for word in string.gmatch(text, '%S+') do
      local stream, own = string.match(word, '^([^/]*)/([^/]*)$')
      local seen = { vectors.of(stream), vectors.of(own) }
      if stream and vectors.covers(seen[1], x) and vectors.covers(seen[2], gone) then
        local others, needed = {}, true
        for _, other in ipairs(kept) do
          if vectors.covers(other[1], seen[1]) and vectors.covers(other[2], seen[2]) then needed = false end
          if not (vectors.covers(seen[1], other[1]) and vectors.covers(seen[2], other[2])) then
            others[#others + 1] = other
          end
        end
        if needed then
          others[#others + 1] = seen
          kept = others
        end
      end
    end
    local words = {}
    for _, seen in ipairs(kept) do
      words[#words + 1] = vectors.text(seen[1]) .. '/' .. vectors.text(seen[2])
    end
    table.sort(words)
    return table.concat(words, ' ', 1, math.min(#words, valid.CREATORS))
  end

  --[[ Apply the peer's deletion of strand `label`: up to its cut, or the whole life if the peer has a later one. If the
       peer has a later life of our own `c` strand, this engine lost it: the life goes on, and the peer gives it back.
       ]]
  local function merge_cut(meta, label, ours, theirs, named, home)
    local cut, kind, writer = theirs.cut, registry.split_label(label)
    local state = theirs.there and kind == KIND.CHOSEN and writer == home and '+' or '-'
    if not ours then
      local lost = (theirs.there or kind == KIND.GENERATED) and named[label .. ':' .. theirs.life]
      if lost and redis.call('EXISTS', lost) == 1 then -- only our registry has lost it
        if cut ~= '0-0' then redis.call('XTRIM', lost, 'MINID', '=', ids.following(cut)) end
        registry.register_again(meta, label, theirs.life, cut)
        return
      end
      local is_over = cut ~= '0-0' or theirs.life ~= '0'
      if logs.is_label(label) then is_over = cut ~= '0-0' or not theirs.there end
      if is_over then registry.register(meta, label, theirs.life, state, cut) end
      return
    end
    local key = ours.there and named[label .. ':' .. ours.life]
    if ids.less_number(ours.life, theirs.life) then
      if key then redis.call('UNLINK', key) end
      redis.call('HDEL', meta, META.LOST .. label)
      registry.register(meta, label, theirs.life, state, cut)
      return
    end
    if ours.life ~= theirs.life then return end
    -- Our key was lost, so our cut is higher; `l:` keeps up to where the strand was really deleted.
    local lost = redis.call('HGET', meta, META.LOST .. label)
    if lost and ids.less(lost, cut) then redis.call('HSET', meta, META.LOST .. label, cut) end
    if not ids.less(ours.cut, cut) then return end
    local last = key and extents.last(key)
    if last then
      trims.note(meta, label, ours.life, key, extents.of(key), {})
      if cut == ids.MAX .. '-' .. ids.MAX then
        redis.call('XTRIM', key, 'MAXLEN', '=', 0)
      else
        redis.call('XTRIM', key, 'MINID', '=', ids.following(cut))
      end
      if ids.less(last, cut) then extents.set_id(key, cut) end
      trims.moved(meta, label, ours.life, key)
    end
    registry.register(meta, label, ours.life, ours.there and '+' or '-', cut)
    local life, at, since = string.match(redis.call('HGET', meta, META.RESUMED .. label) or '', '^(%d+) (%S+) (%S+)$')
    if life == ours.life and at == ours.cut then
      redis.call('HSET', meta, META.RESUMED .. label, life .. ' ' .. cut .. ' ' .. since)
    end
  end

  local function there_now(meta, named)
    local strands, fields = {}, redis.call('HGETALL', meta)
    for at = 1, #fields, 2 do
      local life = registry.there(fields[at], fields[at + 1])
      local id = life and fields[at] .. ':' .. life
      if id and named[id] and redis.call('EXISTS', named[id]) == 1 then
        strands[id] = { key = named[id], label = fields[at], life = life }
      end
    end
    return strands
  end

  local function destroy_group(meta, strands, group, given)
    for _, strand in pairs(strands) do
      redis.call('XGROUP', 'DESTROY', strand.key, group)
    end
    consumer_groups.forget(meta, group, given.named[META.GROUP .. group], given.bell)
  end

  local function create_group(meta, strands, group, theirs, bell)
    redis.call('HSET', meta, META.GROUP .. group, theirs.start)
    bells.ring(meta, bell)
    for _, strand in pairs(strands) do
      local info = consumer_groups.one_of(strand, group)
      if info then -- only our registry has lost it
        local back = acks.lost_position(meta, strand.label .. ':' .. strand.life, extents.last(strand.key), info)
        if back then consumer_groups.move_to(strand, group, back) end
      else
        consumer_groups.create_at(strand, group, streams.start_of(theirs.start, strand.label))
      end
    end
  end

  local function later_mark(a, b)
    local LONGEST_MARK = 64 -- characters
    local batch, published = string.match(a, '^(%d+):(%d+):%d+$')
    local known, seen = string.match(b or '0:0:0', '^(%d+):(%d+):%d+$')
    if not batch or #a > LONGEST_MARK then return false end
    if not known then return true end
    return ids.less_number(known, batch) or (known == batch and ids.less_number(seen, published))
  end

  local function same(a, b) return vectors.covers(a, b) and vectors.covers(b, a) end

  --[[ The request: what the caller named, the strands to create, and the peer's registry. nil and an error if it is
       malformed. ]]
  local function read_request(keys, args)
    local count = valid.counted(args[1], #keys - 1, 'number of strands')
    local it = { meta = keys[1], named = {}, makes = {} }
    valid.need(1 + 3 * count < #args, 'number of strands')
    for at = 1, count do
      local label, life = args[3 * at - 1], args[3 * at]
      it.named[label .. ':' .. life] = keys[1 + at]
      local kind = args[3 * at + 1]
      if kind ~= '0' then
        it.makes[#it.makes + 1] = { key = keys[1 + at], label = label, own = kind ~= '1', guarded = kind == '3' }
      end
    end
    for _, strand in ipairs(it.makes) do
      if strand.own then it.home = registry.writer_of(strand.key) end -- there is one
      if strand.guarded then it.config = table.remove(keys) end
    end
    local given, _, first = braids.read_keys(keys, 2 + count, args, 2 + 3 * count)
    local theirs, wrong = read_meta(args, first)
    if not theirs then return nil, redis.error_reply("BSBATCH the peer's " .. wrong .. ' cannot be read') end
    for name, group in pairs(theirs.groups) do
      group.ranges = ranges.read(group.sent)
      if not group.ranges then
        return nil, redis.error_reply("BSBATCH the peer's " .. META.GROUP_RANGES .. name .. ' cannot be read')
      end
      group.came_back = returned.read(group.back)
      if not group.came_back then
        return nil, redis.error_reply("BSBATCH the peer's " .. META.GROUP_RETURNED .. name .. ' cannot be read')
      end
    end
    it.given, it.theirs, it.bell = given, theirs, given.bell
    return it
  end

  -- Our registry, if the caller knows all of it; else nil and an error.
  local function read_ours(it)
    local ours, damaged = read_meta(redis.call('HGETALL', it.meta), 1)
    if not ours then
      return nil, redis.error_reply('BSDAMAGED the field ' .. damaged .. ' of this registry cannot be read')
    end
    for label, strand in pairs(ours.strands) do
      if strand.there and not it.named[label .. ':' .. strand.life] then
        return nil, redis.error_reply('BSSTALE ' .. label)
      end
    end
    for name in pairs(ours.groups) do
      if not it.given.named[META.GROUP .. name] then return nil, redis.error_reply(bells.STALE) end
    end
    if bells.is_stale(it.meta, it.bell) then return nil, redis.error_reply(bells.STALE) end
    return ours
  end

  -- Fields that depend on no other.
  local function merge_fields(meta, ours, theirs)
    if theirs.idmp then idempotence.merge_settings(meta, theirs.idmp) end
    if theirs.log then logs.merge_settings(meta, theirs.log) end
    if theirs.homes then logs.merge_homes(meta, theirs.homes) end
    if theirs.messages then logs.merge_messages(meta, theirs.messages) end
    if theirs.ends then deadline.merge(meta, theirs.ends) end
    if theirs.again then deadline.merge_again(meta, theirs.again) end
    for label, upto in pairs(theirs.rescued) do
      if ids.less_number(ours.rescued[label] or '0', upto) then
        redis.call('HSET', meta, META.RESCUED .. label, upto)
      end
    end
    for label, trimmed in pairs(theirs.trimmed) do
      trims.add(meta, label, unpack(trimmed))
    end
    for sink, mark in pairs(theirs.sinks) do
      if later_mark(mark, ours.sinks[sink]) then redis.call('HSET', meta, META.SINK .. sink, mark) end
    end
  end

  -- The deletions that either knows: of the stream, and of each group.
  local function merge_deletions(meta, ours, theirs)
    local x, gone = vectors.joined(ours.x, theirs.x), {}
    if not same(x, ours.x) then redis.call('HSET', meta, META.DELETIONS, vectors.text(x)) end
    for _, side in ipairs({ ours, theirs }) do
      for name, counts in pairs(side.gone) do
        gone[name] = vectors.joined(gone[name] or {}, counts)
      end
    end
    for name, counts in pairs(gone) do
      if not same(counts, ours.gone[name] or {}) then
        redis.call('HSET', meta, META.GROUP_DELETIONS .. name, vectors.text(counts))
      end
    end
    return x, gone
  end

  -- Destroy the groups of ours that a known deletion reaches.
  local function destroy_deleted(it, ours, x, gone)
    local strands = there_now(it.meta, it.named)
    for name, group in pairs(ours.groups) do
      group.seen = surviving(group.seen, x, gone[name] or {})
      if group.seen == '' then
        destroy_group(it.meta, strands, name, it.given)
        ours.groups[name] = nil
      end
    end
  end

  -- Create the peer's groups that survive the deletions.
  local function merge_groups(it, strands, ours, x, gone)
    for name, group in pairs(it.theirs.groups) do
      local mine = ours.groups[name]
      local seen = surviving((mine and mine.seen or '') .. ' ' .. group.seen, x, gone[name] or {})
      if seen ~= '' and not mine then
        create_group(it.meta, strands, name, group, it.bell)
        ours.groups[name] = { acked = {} }
      end
      if seen ~= '' and seen ~= (redis.call('HGET', it.meta, META.GROUP_SEEN .. name) or '/') then
        redis.call('HSET', it.meta, META.GROUP_SEEN .. name, seen)
      end
    end
  end

  -- Create the strands that groups wait on. Returns those that are there then.
  local function create_missing(it, strands, has_group)
    local is_log = logs.is_log(it.meta)
    if is_log then logs.seal_old_homes(it.meta, it.named, it.makes) end
    -- A log that was deleted becomes no stream because another region created a group of it at that time.
    local was_log = not next(strands) and redis.call('HGET', it.meta, META.HOMES)
    if not has_group or is_log or was_log then return strands end
    for _, strand in ipairs(it.makes) do
      local is_made = redis.call('EXISTS', strand.key) == 0
      if is_made and strand.guarded then is_made = redis.call('EXISTS', it.config) == 1 end
      if is_made then streams.create(it.meta, strand.key, strand.label, strand.own, it.bell) end
    end
    return there_now(it.meta, it.named)
  end

  -- What the peer's groups have acknowledged. Returns whether all of it was applied.
  local function merge_acks(it, strands, ours, x, gone)
    local theirs, finished = it.theirs, true
    for name, group in pairs(theirs.groups) do
      if ours.groups[name] and same(theirs.x, x) and same(theirs.gone[name] or {}, gone[name] or {}) then
        if returned.join(it.meta, strands, name, group.came_back) then bells.ring(it.meta, it.bell) end
        local lists, news = ranges.join(it.meta, name, group)
        local is_applied = acks.apply(it.meta, strands, name, group.acked)
        if is_applied then
          ranges.apply(it.meta, strands, name, lists, news)
          scopes.merge(it.meta, name, group, it.bell) -- a new owner starts after them
        end
        finished = is_applied and finished
      end
    end
    return finished
  end

  --[[ braid_merge: FCALL bs_braid_merge n <meta> <strand>... <turn>... [<bell>] [bs:config]
             <strands> (<label> <life> <0|1|2|3>)... <turns> g:<group>... <stamp> (<field> <value>)...
       The caller names every strand that may exist. 1 and 2 mark strands to create if the stream has a group and
       they are missing (a blocked reader can only wait on existing keys); 2 is our own. 3 is our own too, and the
       last key is bs:config: not if that is gone, because clients would append to it. The fields are the peer's
       registry. Returns 1; 0 if more pending entries must be acknowledged than one call may: call it again.
       BSSTALE if there is a strand or a group that is not named, or if the bell is stale; nothing is done.
       Why a function: a half-merged registry would show a state that no region ever had. ]]
  function merging.merge(keys, args)
    local it, wrong = read_request(keys, args)
    if not it then return wrong end
    local meta, theirs = it.meta, it.theirs
    if deadline.settle(meta, keys) then return redis.error_reply('BSSTALE the stream has expired here') end
    local ours, stale = read_ours(it)
    if not ours then return stale end
    merge_fields(meta, ours, theirs)
    local x, gone = merge_deletions(meta, ours, theirs)
    destroy_deleted(it, ours, x, gone)
    for label, strand in pairs(theirs.strands) do
      strand.cut = theirs.lost[label] or strand.cut
      merge_cut(meta, label, ours.strands[label], strand, it.named, it.home)
    end
    local strands = there_now(meta, it.named)
    if next(ours.groups) then ranges.rejoin(meta, strands, ours.groups, it.bell) end
    merge_groups(it, strands, ours, x, gone)
    strands = create_missing(it, strands, next(ours.groups) ~= nil)
    consumer_groups.remove_empty_strands(meta, it.named)
    return merge_acks(it, strands, ours, x, gone) and 1 or 0
  end
end

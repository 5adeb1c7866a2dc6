--[[ Groups: created, moved and destroyed on all strands at once.

     FCALL bs_group_<verb> n <meta> <strand>... <turn> [<bell>]
           <group> <start> <flag> <stamp> (<label> <life> <from> <entries read>)...
     One quadruple for each strand key, in order. BSSTALE if the registry has another strand or the bell is
     stale; nothing is done.

     <turn>: the key by which blocked consumers of the group pass on their turn to wait
     (commands/xreadgroup.py). ]]
-- fills: consumer_groups
-- uses: bells, chosen, deadline, extents, ids, logs, registry, returned, rights, scopes, streams, valid, vectors
do
  consumer_groups.STALE = 'BSSTALE the strands or the groups of this stream have changed'

  function consumer_groups.of(strand, left_out)
    local found = {}
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', strand)) do
      local group = {}
      for at = 1, #info, 2 do
        group[info[at]] = info[at + 1]
      end
      if not left_out[group.name] then found[#found + 1] = group end
    end
    return found
  end

  --[[ One group of a strand as XINFO GROUPS shows it, or nil. The strand remembers the list: with one list for each
       group, the time would grow with the square of their number. So XGROUP CREATE and SETID are for `create_at` and
       `move_to` then. ]]
  function consumer_groups.one_of(strand, group)
    if not strand.groups then
      strand.groups = {}
      for _, info in ipairs(consumer_groups.of(strand.key, {})) do
        strand.groups[info.name] = info
      end
    end
    return strand.groups[group]
  end

  function consumer_groups.create_at(strand, group, id)
    redis.call('XGROUP', 'CREATE', strand.key, group, id)
    strand.groups[group] = { name = group, ['last-delivered-id'] = id }
  end

  function consumer_groups.move_to(strand, group, id)
    redis.call('XGROUP', 'SETID', strand.key, group, id)
    strand.groups[group]['last-delivered-id'] = id
  end

  -- The strands, the turn and the bell; nil if the caller's knowledge is stale.
  function consumer_groups.strands_of(keys, args)
    local named, strands = {}, {}
    local _, not_settled = deadline.settle(keys[1], keys)
    if not_settled then return nil end
    local bell = bells.take(keys, args[4])
    for at = 2, #keys - 1 do
      local first = 5 + (at - 2) * 4
      strands[#strands + 1] =
        { key = keys[at], label = args[first], life = args[first + 1], from = args[first + 2], read = args[first + 3] }
      named[args[first] .. ':' .. args[first + 1]] = true
    end
    local fields = redis.call('HGETALL', keys[1])
    for at = 1, #fields, 2 do
      local life = registry.there(fields[at], fields[at + 1])
      if life and not named[fields[at] .. ':' .. life] then return nil end
    end
    if bells.is_stale(keys[1], bell) then return nil end
    return strands, keys[#keys], bell
  end

  -- The group's position in each strand, as `<label:life> <native>` ...
  local function positions(strands)
    local words = {}
    for _, strand in ipairs(strands) do
      local from = strand.from == '$' and extents.last(strand.key) or strand.from
      if #from > 0 and from ~= '0' and from ~= '0-0' then
        words[#words + 1] = strand.label .. ':' .. strand.life .. ' ' .. from
      end
    end
    return table.concat(words, ' ')
  end

  function consumer_groups.forget(meta, group, turn, bell)
    for _, prefix in ipairs({ META.GROUP, META.GROUP_SEEN, META.GROUP_ACKED, META.GROUP_BASE, META.GROUP_MOVED }) do
      redis.call('HDEL', meta, prefix .. group)
    end
    redis.call('HDEL', meta, META.GROUP_SCOPE .. group, META.GROUP_OWNERS .. group)
    for _, prefix in ipairs({ META.GROUP_RANGES, META.GROUP_PASSED, META.GROUP_NOTED, META.GROUP_RETURNED }) do
      redis.call('HDEL', meta, prefix .. group)
    end
    redis.call('UNLINK', turn)
    bells.ring(meta, bell)
  end

  --[[ If the stream has no groups, delete strands to which nothing was appended since their cut. A log that
       never had an entry stays, and so does a `c` strand that was lost: its life would end. ]]
  function consumer_groups.remove_empty_strands(meta, named)
    local fields = redis.call('HGETALL', meta)
    if streams.has_groups(fields) then return end
    for at = 1, #fields, 2 do
      local life, cut = registry.there(fields[at], fields[at + 1])
      local is_kept = logs.is_label(fields[at]) and cut == '0-0'
      is_kept = is_kept or (registry.is_chosen(fields[at]) and redis.call('HGET', meta, META.LOST .. fields[at]))
      local key = life and not is_kept and named[fields[at] .. ':' .. life]
      local last = key and extents.last(key)
      if last and not ids.less(cut, last) then
        redis.call('UNLINK', key)
        registry.register(meta, fields[at], life, '-', cut)
      end
    end
  end

  -- Whether XNACK gave back the entry of a row of XPENDING. Its idle time shows it: a consumer may have an empty name.
  function consumer_groups.was_given_back(row) return row[3] < 0 end

  --[[ Make an entry pending as a row of XPENDING says. A row that XNACK gave back has no consumer, so it is given back
       again: XCLAIM would create a consumer without a name. XNACK FATAL sets a count that is not exact in Lua. ]]
  function consumer_groups.put_pending(key, group, id, row)
    local count = row[4] < 2 ^ 53 and row[4] or '9223372036854775807'
    if consumer_groups.was_given_back(row) then
      redis.call('XNACK', key, group, 'FAIL', 'IDS', 1, id, 'RETRYCOUNT', count, 'FORCE')
    else
      redis.call('XCLAIM', key, group, row[2], 0, id, 'IDLE', row[3], 'RETRYCOUNT', count, 'FORCE', 'JUSTID')
    end
  end

  local function entries_read(strand)
    if strand.read == '' then return {} end
    return { 'ENTRIESREAD', strand.read }
  end

  -- Register a group that is created here and now; its creator has seen every deletion known here.
  function consumer_groups.note(meta, group, start, bell)
    redis.call('HSET', meta, META.GROUP .. group, start)
    bells.ring(meta, bell)
    local stream_deletions = redis.call('HGET', meta, META.DELETIONS) or ''
    local seen = stream_deletions .. '/' .. (redis.call('HGET', meta, META.GROUP_DELETIONS .. group) or '')
    if seen ~= '/' then redis.call('HSET', meta, META.GROUP_SEEN .. group, seen) end
  end

  --[[ group_create: <flag> is our writer; MKSTREAM, ONCE and known (the caller knows our strand) may follow. Creates
       named strands that are missing: a blocked reader can only wait on existing keys. Returns OK. ]]
  function consumer_groups.create(keys, args)
    local meta, group, start = keys[1], args[1], args[2]
    local writer, options = string.match(args[3], '^(%d+)(.*)$')
    local mkstream, once = string.find(options, 'MKSTREAM', 1, true), string.find(options, 'ONCE', 1, true)
    local strands, _, bell = consumer_groups.strands_of(keys, args)
    if not strands then return redis.error_reply(consumer_groups.STALE) end
    local emptied = registry.forgotten(meta, KIND.GENERATED .. writer, options)
    if emptied then return emptied end
    if not mkstream and not chosen.exists(meta) then return redis.error_reply('BSNOKEY the stream does not exist') end
    if redis.call('HEXISTS', meta, META.GROUP .. group) == 1 then
      return redis.error_reply('BUSYGROUP Consumer Group name already exists')
    end
    local refused = rights.denied(meta, 'XGROUP CREATE', 'HGET', 'HSET', 'TIME', 'UNLINK')
    for _, strand in ipairs(strands) do
      if registry.is_chosen(strand.label) and not chosen.is_current(meta, strand.label, strand.life) then
        return redis.error_reply('BSSTALE ' .. strand.label)
      end
      if redis.call('EXISTS', strand.key) == 0 then
        refused = refused or streams.create_refused(meta, strand.label, bell)
      end
    end
    if refused then return refused end
    for _, strand in ipairs(strands) do
      if registry.is_chosen(strand.label) then
        chosen.ensure(meta, strand.key, strand.label, strand.life, bell)
      elseif redis.call('EXISTS', strand.key) == 0 then
        streams.create(meta, strand.key, strand.label, strand.label == KIND.GENERATED .. writer, bell)
      end
    end
    local from = positions(strands)
    for _, strand in ipairs(strands) do
      redis.call('XGROUP', 'CREATE', strand.key, group, strand.from, unpack(entries_read(strand)))
    end
    consumer_groups.note(meta, group, start, bell)
    if once then scopes.note(meta, group, writer) end
    returned.begin(meta, group, from)
    -- `$` is the end of each strand in this region: the group starts at the same entries in the other regions.
    if from ~= '' and strands[1].from == '$' then redis.call('HSET', meta, META.GROUP_ACKED .. group, from) end
    return redis.status_reply('OK')
  end

  --[[ group_setid: move the group, on every strand. Returns OK. The move is local to this region: peers get no
       acknowledgements up to the new position (`b:<group>`, see acks.lua), and `h:<group>` is where the group
       starts on strands that are created later here. ]]
  function consumer_groups.setid(keys, args)
    local meta, group, start = keys[1], args[1], args[2]
    local strands, _, bell = consumer_groups.strands_of(keys, args)
    if not strands then return redis.error_reply(consumer_groups.STALE) end
    if redis.call('HEXISTS', meta, META.GROUP .. group) == 0 then
      return redis.error_reply('BSNOGROUP there is no such group')
    end
    local refused = rights.denied(meta, 'XGROUP SETID', 'HGET', 'HSET', 'TIME', 'UNLINK')
    if refused then return refused end
    for _, strand in ipairs(strands) do
      redis.call('XGROUP', 'SETID', strand.key, group, strand.from, unpack(entries_read(strand)))
    end
    redis.call('HSET', meta, META.GROUP_MOVED .. group, start, META.GROUP_BASE .. group, positions(strands))
    if redis.call('HGET', meta, META.GROUP_PASSED .. group) then
      redis.call('HSET', meta, META.GROUP_PASSED .. group, '')
    end
    bells.ring(meta, bell)
    return redis.status_reply('OK')
  end

  --[[ group_destroy: <flag> is the writer, or empty in a region without peers. Returns 1 if the group existed.
       With peers, a stream that never had an entry is deleted with its last group: only entries and groups are
       replicated, so an empty stream could not exist in every region. ]]
  function consumer_groups.destroy(keys, args)
    local meta, group = keys[1], args[1]
    local strands, turn, bell = consumer_groups.strands_of(keys, args)
    if not strands then return redis.error_reply(consumer_groups.STALE) end
    if redis.call('HEXISTS', meta, META.GROUP .. group) == 0 then return 0 end
    local refused = rights.denied(meta, 'XGROUP DESTROY', 'HDEL', 'UNLINK', 'HGET', 'HSET', 'TIME')
    if refused then return refused end
    for _, strand in ipairs(strands) do
      redis.call('XGROUP', 'DESTROY', strand.key, group)
    end
    consumer_groups.forget(meta, group, turn, bell)
    if args[3] ~= '' then
      vectors.count(meta, META.GROUP_DELETIONS .. group, args[3])
      local named = {}
      for _, strand in ipairs(strands) do
        named[strand.label .. ':' .. strand.life] = strand.key
      end
      consumer_groups.remove_empty_strands(meta, named)
    end
    return 1
  end

  -- Create a key with this group, unless it has the group. Returns whether it was created.
  local function ensure_group(meta, key, group, start)
    if redis.call('EXISTS', key) == 1 then
      for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
        if info[2] == group then return false end
      end
    end
    redis.call('XGROUP', 'CREATE', key, group, start, 'MKSTREAM')
    deadline.arm(meta, key)
    return true
  end

  --[[ group_wait: prepare a blocking read. FCALL bs_group_wait n <meta> [<turn>] [<bell>] <group> <stamp>
       Returns the registry. Creates the bell's key, whose deletion wakes the reader when the registry changes, and
       the group's turn, if they are missing. Writes nothing if the stamp is stale.
       Why a function: a ring between the read and the creation of the key would be missed. ]]
  function consumer_groups.wait(keys, args)
    local group, bell = args[1], bells.take(keys, args[2])
    local meta, turn = keys[1], keys[2]
    deadline.settle(meta, {})
    if bell.key and not bells.is_stale(meta, bell) and redis.call('HEXISTS', meta, META.GROUP .. group) == 1 then
      ensure_group(meta, bell.key, group, '$')
      if turn and ensure_group(meta, turn, group, '0') then redis.call('XADD', turn, '*', 'turn', '1') end
    end
    return redis.call('HGETALL', meta)
  end

  --[[ group_ask: a client asks this region's daemon what the groups of other regions still need, or the daemon answers
       (plan/ask_peers.py). FCALL bs_group_ask 1 <questions> (<field> <value>)...
       Returns the ID. The key expires, if the caller may set that: the daemon may.
       Why a function: XADD would fail when memory is full, just when somebody trims. ]]
  function consumer_groups.ask(keys, args)
    local KEPT, EXPIRE_S = 20, 60
    valid.need(#args >= 2 and #args % 2 == 0 and #args <= streams.WIDEST, 'number of words')
    local refused = rights.denied(keys[1], 'XADD')
    if refused then return refused end
    local id = redis.call('XADD', keys[1], 'MAXLEN', KEPT, '*', unpack(args))
    if not rights.denied(keys[1], 'EXPIRE') then redis.call('EXPIRE', keys[1], EXPIRE_S) end
    return id
  end
end

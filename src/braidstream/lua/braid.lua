--[[ A stream as a whole: deletion, and adoption of a copy. A stream exists while one of its strands does. ]]
-- fills: braids
-- uses: bells, chosen, consumer_groups, deadline, extents, idempotence, ids, logs, registry, rights, streams, trims,
-- valid, vectors
do
  --[[ Read the names of a stream's keys from the arguments: `<n> (<label:life> or g:<group>) * n <stamp>`. Each
       names a key: a strand, or the turn of a group; to delete the stream also `fence`, the plain key. After them
       comes the bell's key, unless the stamp is empty.
       Reads from `key` in keys and `at` in args; returns also the positions after both. ]]
  function braids.read_keys(keys, key, args, at)
    local named, last = {}, at + valid.counted(args[at], #keys, 'number of keys')
    valid.need(last < #args, 'number of keys')
    for place = at + 1, last do
      named[args[place]], key = keys[key], key + 1
    end
    local bell = { stamp = args[last + 1] }
    if bell.stamp ~= '' then
      bell.key, key = keys[key], key + 1
    end
    return { named = named, bell = bell }, key, last + 2
  end

  --[[ braid_delete: DEL. FCALL bs_braid_delete n <meta> <its keys> <writer> <what they are> [<command> <name>]
       <command> and name: NOPERM unless the user may run this command on the plain key.
       Returns 1 if the stream existed. The strands' last IDs are saved in the registry. The writer's count of
       deletions goes up, which also deletes groups that peers create concurrently (merge.lua); writer 0 means
       that the region has no peers.

       The caller names every strand and the turn of every group. BSSTALE if the registry has another one, or
       if there are groups and the bell is stale; nothing is done, and the caller reads the registry again.
       Why a function: no append may come between the deletion of the keys and the saving of their last IDs. ]]
  braids.DELETED_WITH_STREAM = {
    [META.GROUP] = true,
    [META.GROUP_MOVED] = true,
    [META.GROUP_BASE] = true,
    [META.GROUP_ACKED] = true,
    [META.GROUP_RANGES] = true,
    [META.GROUP_PASSED] = true,
    [META.GROUP_RETURNED] = true,
    [META.GROUP_NOTED] = true,
    [META.GROUP_SEEN] = true,
    [META.GROUP_SCOPE] = true,
    [META.GROUP_OWNERS] = true,
    [META.LOST] = true,
    [META.RESUMED] = true,
    [META.MENDED] = true,
    [META.TRIMMED] = true,
    [META.TRIMS] = true,
    [META.HEAD] = true,
    [META.PASSED_ON] = true,
    [META.CHECKED] = true,
  }

  -- A user may have replaced the fence by a key of their own.
  function braids.unlink_fence(name)
    if type(redis.pcall('HGET', name, 'braidstream')) == 'string' then redis.call('UNLINK', name) end
  end

  -- What there is to delete: strands by label, fields, the turns of groups, strands with a field `f:`, and the fence.
  -- nil and the error if the caller did not name all of it.
  local function whole_stream(meta, named)
    local strands, groups, turns, moved, fence = {}, {}, {}, {}, nil
    local fields = redis.call('HGETALL', meta)
    for at = 1, #fields, 2 do
      local prefix, name = registry.split_field(fields[at])
      local life, cut = registry.there(fields[at], fields[at + 1])
      if braids.DELETED_WITH_STREAM[prefix] then
        groups[#groups + 1] = fields[at]
        if prefix == META.GROUP then
          if not named[fields[at]] then return nil, redis.error_reply(consumer_groups.STALE) end
          turns[#turns + 1] = named[fields[at]]
        end
      elseif fields[at] == META.FENCE then
        groups[#groups + 1] = fields[at]
        fence = named[META.FENCE]
      elseif prefix == META.FUTURE then
        moved[name] = true
      elseif life then
        local key = named[fields[at] .. ':' .. life]
        if not key then return nil, redis.error_reply(consumer_groups.STALE) end
        strands[fields[at]] = { key = key, life = life, cut = cut }
      end
    end
    return { strands = strands, fields = groups, turns = turns, moved = moved, fence = fence }
  end

  -- Returns whether the key existed.
  local function delete_strand(meta, writer, label, strand)
    local last = extents.last(strand.key)
    if last then
      redis.call('UNLINK', strand.key)
      -- Peers may have been raised by the same ID and would not go back, so only a region without peers does.
      if writer == '0' and ids.less(streams.this_moment(), last) then
        last = streams.last_before_future(meta, label, last)
      end
    end
    -- A lost copy of another writer's strand: this deletes nothing beyond its cut.
    local own = writer == '0' or select(2, registry.split_label(label)) == writer
    local lost = own and streams.after_loss(label, strand.cut) or strand.cut
    registry.register(meta, label, strand.life, '-', last or lost)
    return last ~= nil
  end

  --[[ Check everything, then return a function that deletes; or nil and the error.
       ends: the deadline that deletes it in every region, which all of them count as one deletion. ]]
  function braids.plan_deletion(meta, writer, given, ends)
    local whole, stale = whole_stream(meta, given.named)
    if not whole then return nil, stale end
    local fence, has_groups = whole.fence, #whole.turns > 0
    if has_groups and bells.is_stale(meta, given.bell) then return nil, redis.error_reply(bells.STALE) end
    local refused = rights.denied(meta, 'EXISTS', 'XINFO STREAM', 'TIME', 'UNLINK', 'HGET', 'HSET')
    if not refused and #whole.fields > 0 then refused = rights.denied(meta, 'HDEL') end
    if not refused and fence then refused = rights.denied(fence, 'HGET', 'UNLINK') end
    if refused then return nil, refused end
    return function()
      local existed = 0
      for label, strand in pairs(whole.strands) do
        if delete_strand(meta, writer, label, strand) then existed = 1 end
        if whole.moved[label] then redis.call('HSET', meta, META.FUTURE .. label, '') end
      end
      for _, field in ipairs(whole.fields) do
        redis.call('HDEL', meta, field)
      end
      for _, turn in ipairs(whole.turns) do
        redis.call('UNLINK', turn)
      end
      if fence then braids.unlink_fence(fence) end
      if has_groups then bells.ring(meta, given.bell) end
      if not ends then
        if existed == 1 then vectors.count(meta, META.DELETIONS, writer) end
        idempotence.forget(meta, writer == '0')
      elseif not deadline.is_counted(meta, ends) then
        if existed == 1 then deadline.count(meta, ends) end
        idempotence.forget(meta, writer == '0')
      end
      deadline.forget(meta)
      logs.forget_settings(meta, writer)
      return existed
    end
  end

  function braids.delete(keys, args)
    local given, _, at = braids.read_keys(keys, 2, args, 2)
    local command, name = args[at], args[at + 1]
    if command and not redis.acl_check_cmd(command, name) then return rights.no_permission(string.lower(command)) end
    local _, not_settled = deadline.settle(keys[1], keys)
    if not_settled then return not_settled end
    local delete, refused = braids.plan_deletion(keys[1], args[1], given)
    return refused or delete()
  end

  --[[ braid_adopt: a finished copy becomes the stream: its `c` strand, in a new life.
       FCALL bs_braid_adopt n <meta> <s> <copy> <c> <its keys> [<source's meta> <its keys>] [<name>]
             <s label> <c label> <life> <floor> <length of the copy> <writer>
             <what its keys are> <what the source's are, or -1> <0|1: name>
             (<group of the copy> <where it starts on other strands>)...
       Deletes the stream's previous content, the source if there is one (RENAME), and a plain key.
       Everything is checked before the first write. Returns OK.
       Why a function: half of it would lose a stream. ]]
  function braids.adopt(keys, args)
    local meta, copy, c = keys[1], keys[3], keys[4]
    if redis.call('EXISTS', copy) == 0 or redis.call('XLEN', copy) ~= tonumber(args[5]) then
      return redis.error_reply('BSCOPY the copy is not what it was')
    end
    local given, key, at = braids.read_keys(keys, 5, args, 7)
    local bell = given.bell
    local settled, not_settled = deadline.settle(meta, keys)
    if not_settled then return not_settled end
    if settled then return redis.error_reply(consumer_groups.STALE) end
    local is_log_there = logs.refused(meta, 'RENAME, COPY and RESTORE')
    if is_log_there then return is_log_there end
    if bells.is_stale(meta, bell) then return redis.error_reply(bells.STALE) end
    local delete, refused = braids.plan_deletion(meta, args[6], given)
    local delete_source
    if args[at] == '-1' then
      at = at + 1
    else
      local source_meta, source = keys[key]
      if deadline.is_over(source_meta) then return redis.error_reply(consumer_groups.STALE) end
      source, key, at = braids.read_keys(keys, key + 1, args, at)
      if not refused then
        delete_source, refused = braids.plan_deletion(source_meta, args[6], source)
      end
    end
    refused = refused or rights.denied(copy, 'RENAME', 'HSETNX', 'XSETID', 'XGROUP CREATE', 'XGROUP DESTROY')
    if refused then return refused end
    delete()
    if delete_source then delete_source() end
    if args[at] == '1' then redis.call('UNLINK', keys[key]) end
    redis.call('RENAME', copy, c)
    chosen.begin_life(meta, args[2], args[3])
    registry.register(meta, args[2], args[3], '+', '0-0')
    local facts = extents.of(c)
    trims.begin(meta, args[2], args[3], facts.first or ids.following(facts.last), facts)
    for group = at + 1, #args, 2 do
      consumer_groups.note(meta, args[group], args[group + 1], bell)
    end
    chosen.raise_generated(keys, args[1], args[4], bell)
    -- With peers, a stream without entries and groups could not exist in every region: remove it.
    if args[6] ~= '0' then
      consumer_groups.remove_empty_strands(meta, { [args[2] .. ':' .. args[3]] = c, [args[1] .. ':0'] = keys[2] })
    end
    return redis.status_reply('OK')
  end
end

--[[ Native streams: taken over in place, given back, and entries that old clients wrote beside a stream of ours.

        orders (stream)   -- adopt -->   bs:1:c:{orders} (stream)   the same key under another name: entries, IDs,
                                                                    groups, consumers and pending entries stay
                                         orders (hash)              the fence
                                         bs:1:s:{orders} (stream)   takes what is appended from now on

     The fence: a client that still sends XADD to the engine itself gets WRONGTYPE, instead of starting a second
     stream. `fence` in the registry says that the plain key of the name is ours. ]]
-- fills: natives
-- uses: bells, braids, chosen, clock, consumer_groups, deadline, extents, idempotence, ids, logs, registry, rights,
-- streams
do
  local TAKEN_AT_ONCE = 1000
  local FENCE_TEXT = 'This name is a stream of braidstream. Use a braidstream client or gateway: '
    .. 'XADD at the engine would start a second stream.'

  local function is_stream(key) return redis.call('TYPE', key).ok == 'stream' end

  local function raise_fence(meta, name)
    redis.call('HSET', name, 'braidstream', FENCE_TEXT)
    redis.call('HSET', meta, META.FENCE, '1')
    deadline.arm(meta, name)
  end

  --[[ native_adopt: FCALL bs_native_adopt n <meta> <s> <c> <name> [<bell>] <s label> <c label> <life of c> <stamp>
       The native stream <name> becomes this region's `c` strand. Its groups start at 0 on strands that are created
       later: no entry of another region is skipped.
       Returns {entries, groups}. BSNONATIVE if there is no native stream, BSTAKEN if the stream exists already.
       Why a function: between the steps an entry could be appended to a key that is not read. ]]
  function natives.adopt(keys, args)
    local bell = bells.take(keys, args[4])
    local meta, s, c, name = keys[1], keys[2], keys[3], keys[4]
    if not is_stream(name) then return redis.error_reply('BSNONATIVE there is no native stream of that name') end
    local _, not_settled = deadline.settle(meta, keys)
    if not_settled then return not_settled end
    if chosen.exists(meta) then return redis.error_reply('BSTAKEN a stream of that name exists already') end
    if redis.call('PTTL', name) >= 0 then return redis.error_reply('BSEXPIRES the native stream has a time to live') end
    if bells.is_stale(meta, bell) then return redis.error_reply(bells.STALE) end
    if not chosen.is_current(meta, args[2], args[3]) then return redis.error_reply('BSSTALE ' .. args[2]) end
    local refused = rights.denied(name, 'RENAME', 'HSET', 'UNLINK', 'XINFO STREAM')
      or rights.denied(meta, 'HSET', 'HSETNX', 'HDEL', 'TIME')
      or rights.denied(s, 'XSETID', 'XGROUP CREATE', 'XGROUP DESTROY')
      or streams.create_refused(meta, args[1], bell)
    if refused then return refused end
    redis.call('RENAME', name, c)
    chosen.begin_life(meta, args[2], args[3])
    registry.register(meta, args[2], args[3], '+', '0-0')
    local groups = redis.call('XINFO', 'GROUPS', c)
    for _, group in ipairs(groups) do
      consumer_groups.note(meta, group[2], '0-0 0-0 0-0 0', bell)
    end
    chosen.raise_generated(keys, args[1], clock.floor_of(s, args[2], extents.last(c)), bell)
    raise_fence(meta, name)
    return { redis.call('XLEN', c), #groups }
  end

  --[[ Moving entries between strands of this region, oldest first, each under its user ID. For each group: delivered
       entries stay delivered, pending entries stay pending with their consumer.

       A group that has entries of `c` left, and was given later ones of `s`, gets the acknowledged ones of those again.
       ]]
  local function group_positions(key)
    local found = {}
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
      local facts = {}
      for at = 1, #info, 2 do
        facts[info[at]] = info[at + 1]
      end
      found[facts['name']] = facts
    end
    return found
  end

  local function user_id(id, writer)
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    return ms .. '-' .. string.format('%.0f', tonumber(seq) * WRITERS + writer)
  end

  -- What a group has pending of a page. Entries that were deleted since may be pending too, any number of them: then
  -- each entry of the page is looked up.
  local function pending_in(s, group, page)
    local rows = redis.call('XPENDING', s, group, page[1][1], page[#page][1], TAKEN_AT_ONCE)
    if #rows < TAKEN_AT_ONCE then return rows end
    rows = {}
    for _, entry in ipairs(page) do
      rows[#rows + 1] = redis.call('XPENDING', s, group, entry[1], entry[1], 1)[1]
    end
    return rows
  end

  -- The same of all groups, and whether XNACK gave some of it back.
  local function all_pending(s, page)
    local rows, is_given_back = {}, false
    for group in pairs(#page > 0 and group_positions(s) or {}) do
      rows[group] = pending_in(s, group, page)
      for _, row in ipairs(rows[group]) do
        is_given_back = is_given_back or consumer_groups.was_given_back(row)
      end
    end
    return rows, is_given_back
  end

  local function move_pending(s, c, group, rows, writer)
    local moved = {}
    for _, row in ipairs(rows) do
      consumer_groups.put_pending(c, group, user_id(row[1], writer), row)
      moved[#moved + 1] = row[1]
    end
    if #moved > 0 then redis.call('XACK', s, group, unpack(moved)) end
  end

  local function move_page(s, c, page, pending, writer)
    local first, last = page[1][1], page[#page][1]
    local before = group_positions(c)
    local reads = {}
    for group, at in pairs(before) do
      local rest = redis.call('XRANGE', c, '(' .. at['last-delivered-id'], '+', 'COUNT', 1)
      reads[group] = #rest == 0
    end
    for _, entry in ipairs(page) do
      redis.call('XADD', c, user_id(entry[1], writer), unpack(entry[2]))
    end
    for group, at in pairs(group_positions(s)) do
      local delivered = at['last-delivered-id']
      if reads[group] and not ids.less(delivered, first) then
        local upto = ids.less(delivered, last) and delivered or last
        local count = 0
        for _, entry in ipairs(page) do
          if not ids.less(upto, entry[1]) then count = count + 1 end
        end
        local known = before[group]['entries-read']
        local read = known and { 'ENTRIESREAD', known + count } or {}
        redis.call('XGROUP', 'SETID', c, group, user_id(upto, writer), unpack(read))
      end
      move_pending(s, c, group, pending[group], writer)
    end
    redis.call('XTRIM', s, 'MINID', ids.following(last))
  end

  -- Nothing is left to move: `c` becomes the native stream again. gone: fields of the registry that end.
  local function end_release(keys, args, gone, bell)
    local meta, s, c, name = keys[1], keys[2], keys[3], keys[4]
    local writer = tonumber(registry.writer_of(s))
    local last = extents.last(s) or '0-0'
    if redis.call('XLEN', c) == 0 or ids.less(extents.last(c), user_id(last, writer)) then
      -- IDs that were deleted since are not generated again.
      if last ~= '0-0' and #string.match(last, '%d+$') < 13 then extents.set_id(c, user_id(last, writer)) end
    end
    registry.register(meta, args[2], args[3], '-', extents.last(c))
    registry.register(meta, args[1], '0', '-', last)
    redis.call('UNLINK', s, name)
    redis.call('RENAME', c, name)
    for at = 5, #keys do
      redis.call('UNLINK', keys[at])
    end
    for _, field in ipairs(gone) do
      redis.call('HDEL', meta, field)
    end
    redis.call('HDEL', meta, META.FENCE)
    deadline.forget(meta)
    idempotence.forget(meta, true)
    bells.ring(meta, bell)
  end

  --[[ native_release: the reverse of native_adopt, for a region without peers.
       FCALL bs_native_release n <meta> <s> <c> <name> <turn>... [<bell>] <s label> <c label> <life of c> <stamp>
       <group>... Moves up to 1000 entries that were appended since. Returns how many it moved; as -1 - n if these were
       the last and the native stream is back. BSSTALE if the stream has other strands or groups than the caller named.
       BSORDER if an entry with a later ID is in the way: a native stream only grows at its end.
       Why a function: readers and writers must never see half of it. ]]
  function natives.release(keys, args)
    local bell = bells.take(keys, args[4])
    local meta, s, c, name = keys[1], keys[2], keys[3], keys[4]
    local writer, named = tonumber(registry.writer_of(s)), {}
    for at = 5, #args do
      named[args[at]] = true
    end
    if
      not redis.call('HGET', meta, META.FENCE)
      or not chosen.is_current(meta, args[2], args[3])
      or redis.call('EXISTS', c) == 0
    then
      return redis.error_reply('BSNOTADOPTED this stream was not adopted here')
    end
    local gone, fields = {}, redis.call('HGETALL', meta)
    for at = 1, #fields, 2 do
      local prefix, group = registry.split_field(fields[at])
      if registry.there(fields[at], fields[at + 1]) and fields[at] ~= args[1] and fields[at] ~= args[2] then
        return redis.error_reply('BSPEERS the stream has entries of other regions')
      end
      if braids.DELETED_WITH_STREAM[prefix] then gone[#gone + 1] = fields[at] end
      if prefix == META.GROUP and not named[group] then return redis.error_reply(consumer_groups.STALE) end
    end
    if bells.is_stale(meta, bell) then return redis.error_reply(bells.STALE) end
    if redis.call('EXISTS', name) == 1 and redis.call('TYPE', name).ok ~= 'hash' then
      return redis.error_reply('BSSTRAY another key has the name')
    end
    local refused = rights.denied(name, 'RENAME', 'UNLINK')
      or rights.denied(meta, 'HSET', 'HDEL', 'TIME')
      or rights.denied(s, 'XPENDING', 'XACK', 'XTRIM', 'UNLINK', 'XRANGE')
      or rights.denied(c, 'XADD', 'XCLAIM', 'XGROUP SETID')
    if refused then return refused end
    local page = redis.call('EXISTS', s) == 1 and redis.call('XRANGE', s, '-', '+', 'COUNT', TAKEN_AT_ONCE) or {}
    for _, entry in ipairs(page) do
      if #entry[2] > streams.WIDEST then
        return redis.error_reply('BSWIDE entry ' .. entry[1] .. ' has too many fields')
      end
      if #string.match(entry[1], '%d+$') >= 13 then
        return redis.error_reply('BSHIGH ' .. entry[1] .. ' is not exact in Lua')
      end
    end
    if #page > 0 and not ids.less(extents.last(c), user_id(page[1][1], writer)) then
      return redis.error_reply('BSORDER ' .. extents.last(c) .. ' is not before ' .. user_id(page[1][1], writer))
    end
    local pending, is_given_back = all_pending(s, page)
    refused = is_given_back and rights.denied(c, 'XNACK')
    if refused then return refused end
    if #page > 0 then move_page(s, c, page, pending, writer) end
    if #page == TAKEN_AT_ONCE then return #page end
    end_release(keys, args, gone, bell)
    return -1 - #page
  end

  --[[ native_unfence: FCALL bs_native_unfence 2 <meta> <name>
       Remove the fence of a stream that a peer deleted. Returns 1; 0 if the stream exists, or has no fence.
       Why a function: the stream may be created again at any moment. ]]
  function natives.unfence(keys)
    local meta, name = keys[1], keys[2]
    if chosen.exists(meta) or not redis.call('HGET', meta, META.FENCE) then return 0 end
    local refused = rights.denied(meta, 'HDEL') or rights.denied(name, 'HGET', 'UNLINK')
    if refused then return refused end
    braids.unlink_fence(name)
    redis.call('HDEL', meta, META.FENCE)
    return 1
  end

  --[[ native_set_aside: FCALL bs_native_set_aside 3 <meta> <name> <stray>
       A native stream beside a stream of ours is renamed to <stray>, and the name is fenced. Returns its length.
       BSNONATIVE if there is none; BSLOG if it is beside a log; BSBUSY while an earlier one is still there. ]]
  function natives.set_aside(keys)
    local meta, name, stray = keys[1], keys[2], keys[3]
    if not is_stream(name) or not chosen.exists(meta) then
      return redis.error_reply('BSNONATIVE there is no native stream beside a stream of that name')
    end
    if logs.is_log(meta) then return redis.error_reply('BSLOG a log has that name') end
    if redis.call('EXISTS', stray) == 1 then return redis.error_reply('BSBUSY bring in the earlier ones first') end
    local refused = rights.denied(name, 'RENAME', 'HSET') or rights.denied(meta, 'HSET')
    if refused then return refused end
    redis.call('RENAME', name, stray)
    redis.call('PERSIST', stray)
    raise_fence(meta, name)
    return redis.call('XLEN', stray)
  end

  --[[ native_append: FCALL bs_native_append 2 <s> <stray>
       Append up to 1000 entries of <stray> to the stream, with new IDs, and take them from <stray>. Returns how many;
       nil if <s> does not exist: create it first. Each is appended once, however often this is called. ]]
  function natives.append(keys)
    local s, stray = keys[1], keys[2]
    if redis.call('EXISTS', stray) == 0 then return 0 end
    if redis.call('EXISTS', s) == 0 then return false end
    local refused = rights.denied(s, 'XADD') or rights.denied(stray, 'XRANGE', 'XDEL', 'UNLINK')
    if refused then return refused end
    local page = redis.call('XRANGE', stray, '-', '+', 'COUNT', TAKEN_AT_ONCE)
    if #page == 0 then
      redis.call('UNLINK', stray)
      return 0
    end
    for at, entry in ipairs(page) do
      if #entry[2] > streams.WIDEST then
        return redis.error_reply('BSWIDE entry ' .. entry[1] .. ' has too many fields')
      end
      local reply = redis.pcall('XADD', s, '*', unpack(entry[2]))
      if type(reply) == 'table' and reply.err then return at > 1 and at - 1 or reply end
      extents.delete(stray, entry[1])
    end
    return #page
  end
end

--[[ The settings of idempotent production, in a stream's meta: idmp -> <era>:<duration s>:<max size>:<since>.
     Each change begins the next era, and all messages of earlier eras are forgotten (idempotence.lua).
     <since> is the era in which the stream was last deleted: its counters restarted there. ]]
-- fills: idempotence, logs
-- uses: chosen, clock, deadline, extents, ids, journals, registry, rights, streams, valid
do
  idempotence.DEFAULTS = '0:100:100:0'

  function idempotence.read_settings(text)
    local era, duration, size, since = string.match(text, '^(%d+):(%d+):(%d+):(%d+)$')
    if not era or #era > 15 or #duration > 12 or #size > 12 or #since > 15 then return nil end
    return { text = text, era = era, duration = duration * 1000, size = tonumber(size), since = since }
  end

  --[[ While the region has no peers, Redis 8.6.2 and newer deduplicates messages itself, in the strand:
       XADD strand NOMKSTREAM IDMP <producer> <iid> * ... Map and queue are not used then.

         native -> <era>            in this era; clients send that XADD directly, without a function
         native -> <era>:<ms>       the region got peers. Map and queue are used, and until that time the engine is
                                    queried too, because it may remember a message that they lack

       Native deduplication starts only with a new era, when no message is remembered, so no message is stored in
       one place and looked up in the other. `native` is local to this region (decision 0017). ]]
  idempotence.NATIVE_MARGIN_MS = 10000 -- how much longer than REGION_FRESH_S a client may believe that it has no peers

  function idempotence.may_know_messages() return (redis.REDIS_VERSION_NUM or 0) >= 0x080602 end

  function idempotence.engine_can(key)
    if not idempotence.may_know_messages() then return false end
    return (pcall(redis.acl_check_cmd, 'XCFGSET', key, 'IDMP-MAXSIZE', '1')) -- an error: there is no such command
  end

  --[[ In a region with peers a stream remembers messages for a day, if nobody chose a duration: a message that was
       sent again in another region must still be known there when the first region is back. ]]
  function idempotence.current(text, has_peers)
    text = text or idempotence.DEFAULTS
    if not has_peers or not string.find(text, ':100:100:', 2, true) then return text end
    return (string.gsub(text, '^(%d+):100:(100:%1)$', '%1:86400:%2'))
  end

  function idempotence.settings_of(meta)
    return idempotence.read_settings(redis.call('HGET', meta, META.IDEMPOTENCE) or idempotence.DEFAULTS)
  end

  --[[ Merge two regions' settings: the later era wins; within an era the later deletion, then the greater values. ]]
  function idempotence.merge_settings(meta, text)
    local ours, theirs = idempotence.settings_of(meta), idempotence.read_settings(text)
    local order = { 'era', 'since', 'duration', 'size' }
    for _, part in ipairs(order) do
      local a, b = tostring(ours[part]), tostring(theirs[part])
      if a ~= b then
        if not ids.less_number(a, b) then return ours end
        redis.call('HSET', meta, META.IDEMPOTENCE, text)
        return theirs
      end
    end
    return ours
  end

  --[[ idempotence_configure: XCFGSET. FCALL bs_idempotence_configure 1|2 <meta> [<strand>] <duration or empty> <size or
       empty> [RAISE] Returns OK; BSNOKEY if the stream does not exist. A changed setting forgets every message.
       RAISE: only to greater values. Then the era stays: all messages stay known, those of clients with the old
       settings too, and regions merge to the greater values.
       <strand>, the home strand, is passed by a region without peers. ]]
  function idempotence.configure(keys, args)
    for at = 1, 2 do
      if args[at] ~= '' then valid.counted(args[at], 10 ^ 12 - 1, 'setting') end
    end
    local _, not_settled = deadline.settle(keys[1], keys)
    if not_settled then return not_settled end
    if not chosen.exists(keys[1]) then return redis.error_reply('BSNOKEY the stream does not exist') end
    local known = redis.call('HGET', keys[1], META.IDEMPOTENCE)
    local is_log, raises = logs.is_log(keys[1]), args[3] == 'RAISE'
    local settings = idempotence.read_settings(idempotence.current(known, not keys[2] and not is_log))
    local duration, size = tonumber(args[1]) or settings.duration / 1000, tonumber(args[2]) or settings.size
    if raises then
      duration, size = math.max(duration, settings.duration / 1000), math.max(size, settings.size)
    end
    duration, size = string.format('%d', duration), string.format('%d', size)
    local era = settings.era
    local text = era .. ':' .. duration .. ':' .. size .. ':' .. settings.since
    local changed = text ~= settings.text
    if changed and raises and keys[2] and redis.call('HGET', keys[1], META.NATIVE) == era then
      return redis.error_reply(
        'ERR RAISE needs a region with peers: here the engine remembers the messages, and a change would forget them'
      )
    elseif changed and not raises then
      era = ids.successor(era)
      text = era .. ':' .. duration .. ':' .. size .. ':' .. settings.since
    end
    local natively = keys[2] and (changed or not known) and idempotence.engine_can(keys[2]) and not (is_log or raises)
    if natively and redis.call('EXISTS', keys[2]) == 1 then
      local refused = rights.denied(keys[2], 'XCFGSET')
      if refused then return refused end
      redis.call('XCFGSET', keys[2], 'IDMP-DURATION', duration, 'IDMP-MAXSIZE', size)
    end
    redis.call('HSET', keys[1], META.IDEMPOTENCE, text)
    if natively then redis.call('HSET', keys[1], META.NATIVE, era) end
    return redis.status_reply('OK')
  end

  --[[ Deleting a stream resets its messages, settings and counters. `alone`: the region has no peers. ]]
  function idempotence.forget(meta, alone)
    if not redis.call('HGET', meta, META.IDEMPOTENCE) then return end
    local era = ids.successor(idempotence.settings_of(meta).era)
    redis.call('HSET', meta, META.IDEMPOTENCE, era .. ':100:100:' .. era)
    if alone and idempotence.engine_can(meta) then redis.call('HSET', meta, META.NATIVE, era) end
  end
end

--[[ Idempotent production: which messages of which producer are already in the stream.

       bs:meta:<tag>  idmp -> <era>:<duration s>:<max size>:<since>       the settings; absent: 0:100:100:0
       map    (hash)   <iid> -> <ms-n>:<w>[:<received>]      '' -> until when an ID counts as a time, the settings
       queue  (list)   <iid> <iid> ...                        in the order they were accepted
       about  (hash)   =<producer> -> <era>:<listed at>       since -> the era of added, duplicates, unchecked: counts

     Each producer has a map and a queue, with the era in their names. To forget all messages of a stream, a
     function begins the next era: the old keys are no longer read, and expire.
     <since> is the era in which the stream was last deleted: its counters restarted there.

     An entry's ID is also the time at which its message was received, unless the stream's last ID is ahead of
     the clock. To save a TIME call, IDs up to half a duration after the last TIME call are trusted as times; the
     field '' keeps that limit, and the settings that it was computed with. Beyond it the function calls TIME, and
     stores the time beside an ID that is ahead. So no message counts as received more than half the duration too
     late.

     Messages over the size limit are removed in steps of a few, so that most calls do not pay for it. A lookup
     that finds an ID in the map first removes all that are over the limit, so its answer is exact. ]]
do
  local LONGEST_VALUE = 80 -- characters of a value of the map
  local IDMP_STEP = 16
  local IDMP_PRUNED_AT_ONCE = 10

  local function is_expired(value, now, duration)
    local ms, received = string.match(string.sub(value, 1, LONGEST_VALUE), '^(%d+)%-%d+:%d+:?(%d*)$')
    return math.abs(now - (received ~= '' and received or ms)) > duration
  end

  -- The value for the map: with the time beside the ID if the two differ by more than a second.
  local function stamped(value, now)
    return math.abs(string.match(value, '^%d+') - now) > 1000 and value .. ':' .. now or value
  end

  local function forget_oldest(map, queue, count)
    if count > 0 then redis.call('HDEL', map, unpack(redis.call('LPOP', queue, count))) end
  end

  local function forget_expired(map, queue, now, duration)
    local oldest = redis.call('LINDEX', queue, 0)
    local value = oldest and redis.call('HGET', map, oldest)
    if value and not is_expired(value, now, duration) then return end
    local iids, count = redis.call('LRANGE', queue, 0, 2 * IDMP_STEP - 1), 0
    if #iids == 0 then return end
    for at, each in ipairs(redis.call('HMGET', map, unpack(iids))) do
      if each and not is_expired(each, now, duration) then break end
      count = at
    end
    forget_oldest(map, queue, count)
  end

  --[[ The map's value for an ID that was found in it; nil if it has expired or is over the size limit. ]]
  local function still_known(where, settings, iid, waiting, now)
    if deadline.is_over(where.meta) then return nil end -- the stream has expired, and its messages with it
    forget_oldest(where.map, where.queue, redis.call('LLEN', where.queue) + waiting - settings.size)
    local value = redis.call('HGET', where.map, iid)
    if not value or not is_expired(value, now, settings.duration) then return value or nil end
    redis.call('LREM', where.queue, 1, iid)
    redis.call('HDEL', where.map, iid)
    return nil
  end

  --[[ Extend the time to live of map and queue, and list the producer. Also removes a few expired producers. ]]
  local function keep_alive(where, settings, producer, now)
    -- A value this long makes the engine use a hash table from the start: a lookup costs half of one in a listpack.
    redis.call('HSET', where.map, '', (now + settings.duration / 2) .. string.rep(' ', 65) .. settings.text)
    redis.call('PEXPIREAT', where.map, now + 2 * settings.duration)
    redis.call('PEXPIREAT', where.queue, now + 2 * settings.duration)
    redis.call('HSET', where.meta, META.IDEMPOTENCE, settings.text)
    if redis.call('HGET', where.about, 'since') ~= settings.since then redis.call('UNLINK', where.about) end
    local listed = redis.call('HRANDFIELD', where.about, IDMP_PRUNED_AT_ONCE, 'WITHVALUES')
    for at = 1, #listed, 2 do
      local era, set = string.match(listed[at + 1], '^(%d+):(%d+)$')
      local over = era and (era ~= settings.era or math.abs(now - set) > 2 * settings.duration)
      if over then redis.call('HDEL', where.about, listed[at]) end
    end
    redis.call('HSET', where.about, 'since', settings.since, '=' .. producer, settings.era .. ':' .. now)
  end

  local function forget_surplus(where, settings, length, now)
    forget_oldest(where.map, where.queue, length - settings.size)
    forget_expired(where.map, where.queue, now or clock.now_ms(), settings.duration)
  end

  --[[ Whether an ID can be trusted as a time. `believed`: the field ''; not if its settings are others: a raised
       duration lengthens the time to live of the map. Both have 13 digits until the year 2286; comparing them as text
       instead of numbers saves a tenth of the whole call. ]]
  local function is_time(id, believed, text)
    if not believed or string.sub(believed, -#text - 1) ~= ' ' .. text then return false end
    if string.byte(id, 14) == 45 and string.byte(believed, 14) == 32 then return id < believed end
    return string.match(id, '^%d+') - string.match(believed, '^%d+') <= 0
  end

  --[[ The common case: one message, not a duplicate, and its ID counts as a time. ]]
  local function remember_one(keys, args, id)
    local value = id .. ':' .. args[2]
    redis.call('HSET', keys[3], args[4], value)
    local length = redis.call('RPUSH', keys[4], args[4])
    redis.call('HINCRBY', keys[5], 'added', 1)
    if length % IDMP_STEP == 0 then
      forget_surplus({ map = keys[3], queue = keys[4] }, idempotence.settings_of(keys[1]), length)
    end
    if keys[6] then journals.add_messages(keys[6], args[1], args[3], args[4], value) end
  end

  --[[ Store accepted messages in map and queue. `new`: iid, value, iid, value, ... ]]
  local function remember(where, settings, producer, iids, new, now)
    redis.call('HSET', where.map, unpack(new))
    local length = redis.call('RPUSH', where.queue, unpack(iids))
    local steps = math.floor(length / IDMP_STEP) - math.floor((length - #iids) / IDMP_STEP)
    if steps > 0 then forget_surplus(where, settings, length, now) end
    local believed, text = string.match(redis.call('HGET', where.map, '') or '', '^(%d+%.?%d*) +(%S*)$')
    if text ~= settings.text or math.abs(believed - now) > settings.duration / 2 then
      keep_alive(where, settings, producer, now)
    end
  end

  --[[ Whether the engine deduplicates natively (idempotence.lua): 'alone' it does; 'left' it did, and may still
       remember messages; nil it does not. `found`: idmp and native of the registry. The first message of a stream
       sets the state, and the first one with a journal (the region got peers) ends native deduplication. ]]
  local function native_state(keys, text, found)
    if found[1] and not found[2] or not idempotence.engine_can(keys[2]) then return nil end
    local alone, settings = not keys[6], idempotence.read_settings(text)
    local era = settings.era
    if not found[1] then
      local is_there = alone and redis.call('EXISTS', keys[2]) == 1 -- else the caller creates it first
      if is_there then redis.call('HSET', keys[1], META.IDEMPOTENCE, text, META.NATIVE, era) end
      return alone and 'alone' or nil
    end
    local since, left = string.match(string.sub(found[2], 1, LONGEST_VALUE), '^(%d+):?(%d*)$')
    if since ~= era then return nil end
    if left ~= '' then return clock.now_ms() - left <= 0 and 'left' or nil end
    if not alone then
      local known = idempotence.read_settings(found[1]).duration + idempotence.NATIVE_MARGIN_MS
      redis.call('HSET', keys[1], META.NATIVE, string.format('%s:%d', era, clock.now_ms() + known))
    end
    return alone and 'alone' or 'left'
  end

  -- The settings of a stream; `idmp` and `native` of its registry. Old engines never have the second.
  local function facts_of(meta, has_peers)
    local facts = idempotence.may_know_messages() and redis.call('HMGET', meta, META.IDEMPOTENCE, META.NATIVE)
      or { redis.call('HGET', meta, META.IDEMPOTENCE) }
    return idempotence.current(facts[1], has_peers), facts
  end

  local function append(keys, args, start, native)
    local first, last = start + 2, start + 1 + args[start + 1]
    if not native then return redis.pcall('XADD', keys[2], 'NOMKSTREAM', unpack(args, first, last)) end
    return redis.pcall('XADD', keys[2], 'NOMKSTREAM', 'IDMP', args[3], args[start], unpack(args, first, last))
  end

  --[[ The engine deduplicates the messages of this stream itself. ]]
  local function add_natively(keys, args, starts)
    local answers = {}
    for which, start in ipairs(starts) do
      local id = append(keys, args, start, true)
      answers[which] = type(id) == 'table' and '-' .. id.err or id and '+' .. id
    end
    return answers
  end

  local function add_each(keys, args, starts, found, how)
    local where = { meta = keys[1], map = keys[3], queue = keys[4], about = keys[5] }
    local settings, now = idempotence.read_settings(args[1]), clock.now_ms()
    local fresh, iids, new, answers, duplicates = {}, {}, {}, {}, 0
    for which, start in ipairs(starts) do
      local iid = args[start]
      local value = found[which + 1] and still_known(where, settings, iid, #iids, now) or fresh[iid]
      local id = not value and which == 1 and how.first_id
      if not value and not id then
        local last = how.native and extents.last(keys[2])
        id = append(keys, args, start, how.native)
        if last and type(id) == 'string' and not ids.less(last, id) then value = id .. ':' .. args[2] end
      end
      if value then
        answers[which], duplicates = string.match(value, '^%d+%-%d+:%d+'), duplicates + 1
      else
        answers[which] = id
        if type(id) == 'table' then
          answers[which] = '-' .. id.err
        elseif id then
          value = stamped(id .. ':' .. args[2], now)
          fresh[iid], iids[#iids + 1] = value, iid
          new[#new + 1], new[#new + 2] = iid, value
        end
      end
    end
    if duplicates > 0 then redis.call('HINCRBY', where.about, 'duplicates', duplicates) end
    if #iids == 0 then return answers end
    remember(where, settings, args[3], iids, new, now)
    redis.call('HINCRBY', where.about, 'added', #iids)
    if keys[6] then journals.add_messages(keys[6], settings.text, args[3], unpack(new)) end
    return answers
  end

  --[[ idempotence_add: append messages that are not duplicates.
       FCALL bs_idempotence_add 5|6 <meta> <strand> <map> <queue> <about> [<journal>]
             <settings> <writer> <producer> (<iid> <n> <word of XADD after NOMKSTREAM> * n)...
       Returns for each message: `ms-n` appended, its native ID; `ms-n:w` a duplicate of the entry with this ID of
       writer w; `+ms-n` appended or a duplicate: the engine deduplicates natively, and the caller may send XADD
       IDMP directly; nil the strand does not exist; `-ERR ...` the error of XADD.

       BSSTALE <settings> if the caller has other settings; nothing is done. With a journal (the region has peers)
       accepted messages are written there.
       The caller sends at most as many messages as the size limit, and a few dozen at once.
       Why a function: the lookup, the append and the storing of the ID are one step. ]]
  function idempotence.add(keys, args)
    local text, facts = facts_of(keys[1], keys[6])
    if args[1] ~= text then return redis.error_reply('BSSTALE ' .. text) end
    local wanted, starts, at = { '' }, {}, 4
    while at < #args do
      local size = tonumber(args[at + 1])
      if not size or size < 1 or size > #args or size % 1 ~= 0 then break end
      wanted[#wanted + 1], starts[#starts + 1] = args[at], at
      at = at + 2 + size
    end
    if at ~= #args + 1 then return redis.error_reply('BSBATCH malformed batch') end
    local native = native_state(keys, text, facts)
    if native == 'alone' then return add_natively(keys, args, starts) end
    local found = redis.call('HMGET', keys[3], unpack(wanted))
    return add_each(keys, args, starts, found, { native = native })
  end

  --[[ idempotence_one: append one message if it is not a duplicate.
       FCALL bs_idempotence_one 5|6 <meta> <strand> <map> <queue> <about> [<journal>]
             <settings> <writer> <producer> <iid> <word of XADD after NOMKSTREAM>...
       Returns what idempotence_add returns for one message, or the error of XADD.
       Why beside idempotence_add: most calls have one message, and without lists they cost a fifth less. ]]
  function idempotence.one(keys, args)
    local text, facts = facts_of(keys[1], keys[6])
    if args[1] ~= text then return redis.error_reply('BSSTALE ' .. text) end
    local native = native_state(keys, text, facts)
    local found, id = native ~= 'alone' and redis.call('HMGET', keys[3], '', args[4]), nil
    if not native and not found[2] then
      id = redis.pcall('XADD', keys[2], 'NOMKSTREAM', unpack(args, 5))
      if type(id) ~= 'string' then return id end
      if is_time(id, found[1], text) then
        remember_one(keys, args, id)
        return id
      end
    end
    table.insert(args, 5, #args - 4)
    local starts, how = { 4 }, { native = native, first_id = id }
    local answers = found and add_each(keys, args, starts, found, how) or add_natively(keys, args, starts)
    local refused = answers[1] and string.match(answers[1], '^%-(.*)')
    return refused and redis.error_reply(refused) or answers[1]
  end

  --[[ log_message: append entries to a log, if they are not a duplicate (TWRITE IDMP).
       FCALL bs_log_message n <meta> <strand> <map> <queue> <about> [<journal> <journal of a former home>...]
             <settings> <writer> <producer> <iid> <max length, or 0> (<tag> <entry>)...
       Returns `0-<offset>` of the first entry; `0-<offset>:<w>` if it is a duplicate of a message whose first entry has
       that offset; nil if the strand does not exist. BSSTALE <settings> if the caller has other settings; nothing is
       done. BSBEHIND if the log has moved here and messages of a former home have not arrived yet; nothing is done.
       The offset is no time, so the map has the time beside it. The engine itself knows no messages of logs.
       Why a function: the lookup, the append and the storing of the ID are one step. ]]
  function logs.message(keys, args)
    local facts = redis.call('HMGET', keys[1], META.IDEMPOTENCE, META.HOMES, META.MESSAGES)
    local text = facts[1] or idempotence.DEFAULTS
    if args[1] ~= text then return redis.error_reply('BSSTALE ' .. text) end
    if #args < 7 or #args % 2 == 0 then return redis.error_reply('BSBATCH malformed message') end
    local where = { meta = keys[1], map = keys[3], queue = keys[4], about = keys[5] }
    local settings, now, iid = idempotence.read_settings(text), clock.now_ms(), args[4]
    local known = redis.call('HGET', where.map, iid) and still_known(where, settings, iid, 0, now)
    if known then
      redis.call('HINCRBY', where.about, 'duplicates', 1)
      return string.match(known, '^%d+%-%d+:%d+')
    end
    if logs.lacks_messages(facts[2], facts[3], keys, now, settings.duration) then
      return redis.error_reply('BSBEHIND messages of a former home have not arrived here')
    end
    local first
    for at = 6, #args, 2 do
      local cap = at == #args - 1 and args[5] ~= '0' and { 'MAXLEN', '~', args[5] } or {}
      cap[#cap + 1] = '0-*'
      for _, word in ipairs({ 't', args[at], 'e', args[at + 1] }) do
        cap[#cap + 1] = word
      end
      local id = redis.pcall('XADD', keys[2], 'NOMKSTREAM', unpack(cap))
      if type(id) ~= 'string' then return id end -- only the first can fail: a missing or a sealed strand
      first = first or id
    end
    local new = { iid, stamped(first .. ':' .. args[2], now) }
    remember(where, settings, args[3], { iid }, new, now)
    redis.call('HINCRBY', where.about, 'added', 1)
    if keys[6] then journals.add_messages(keys[6], text, args[3], unpack(new)) end
    return first
  end

  --[[ idempotence_mark: XIDMPRECORD: record an existing entry as this message.
       FCALL bs_idempotence_mark 2 <meta> <strand> <producer> <iid> <id>
       Only if the engine deduplicates natively; else BSOURS, and nothing is done. ]]
  function idempotence.mark(keys, args)
    local found = redis.call('HMGET', keys[1], META.IDEMPOTENCE, META.NATIVE)
    if not idempotence.engine_can(keys[2]) then return redis.error_reply('BSOURS this engine knows no messages') end
    local refused = rights.denied(keys[2], 'XIDMPRECORD')
    if refused then return refused end
    if #redis.call('XRANGE', keys[2], args[3], args[3]) == 0 then
      return redis.error_reply('ERR No such message in stream')
    end
    if native_state(keys, found[1] or idempotence.DEFAULTS, found) ~= 'alone' then
      return redis.error_reply('BSOURS the engine does not know the messages of this stream')
    end
    return redis.pcall('XIDMPRECORD', keys[2], unpack(args))
  end

  local function before(a, b)
    local a_id, a_writer = string.match(a, '^([^:]+):(%d+)')
    local b_id, b_writer = string.match(b, '^([^:]+):(%d+)')
    if a_id ~= b_id then return ids.less(a_id, b_id) end
    return ids.less_number(a_writer, b_writer)
  end

  --[[ The ID of a message that the engine remembers and map and queue do not; else nil. The only way to query the
       engine is an append; if it appends, the entry is deleted again. Only in the state 'left' (idempotence.lua). ]]
  local function native_duplicate(where, settings, producer, iid)
    local own = where.own
    if
      not own.key
      or native_state({ where.meta, own.key, nil, nil, nil, own.journal }, settings.text, own.found) ~= 'left'
    then
      return nil
    end
    local last = extents.last(own.key)
    local id = last and redis.pcall('XADD', own.key, 'NOMKSTREAM', 'IDMP', producer, iid, '*', '', '')
    if type(id) ~= 'string' then return nil end
    if not ids.less(last, id) then return id .. ':' .. own.writer end
    extents.delete(own.key, id)
  end

  -- The oldest message of a producer of which no more can be stored without forgetting it; else nil.
  local function oldest_of_all(where, settings, now)
    if redis.call('LLEN', where.queue) < settings.size then return nil end
    local value = redis.call('HGET', where.map, redis.call('LINDEX', where.queue, -settings.size))
    return value and not is_expired(value, now, settings.duration) and value or nil
  end

  --[[ Store messages that a peer accepted. `messages`: iid, `ms-n:w`, iid, ... If this region has the message as
       another entry, two regions accepted it during a partition, and the entry with the smaller ID stays
       everywhere. Returns the entries to delete: `ms-n:w` ...
       Messages that are older than all that fit are not stored, only counted: they would replace newer ones of which
       the peer tells later. So of many messages that two regions accepted apart, the latest are recognised. ]]
  local function idempotence_record(where, settings, producer, messages, now)
    local wanted, iids, new, goes = {}, {}, {}, {}
    for at = 1, #messages, 2 do
      wanted[#wanted + 1] = messages[at]
    end
    local found = redis.call('HMGET', where.map, unpack(wanted))
    local oldest, unchecked = oldest_of_all(where, settings, now), 0
    for at, iid in ipairs(wanted) do
      local value = string.match(messages[2 * at], '^%d+%-%d+:%d+')
      local known = found[at] and still_known(where, settings, iid, #iids, now)
      if not known and oldest and before(value, oldest) then
        unchecked = unchecked + 1
      elseif not known then
        local native = native_duplicate(where, settings, producer, iid)
        if native and native ~= value then
          local ours_stays = before(native, value)
          goes[#goes + 1] = ours_stays and value or native
          value = ours_stays and native or value
        end
        iids[#iids + 1] = iid
        new[#new + 1], new[#new + 2] = iid, stamped(value, now)
      elseif before(known, value) then
        goes[#goes + 1] = value
      elseif before(value, known) then
        redis.call('HSET', where.map, iid, stamped(value, now))
        goes[#goes + 1] = string.match(known, '^%d+%-%d+:%d+')
      end
    end
    if #iids > 0 then remember(where, settings, producer, iids, new, now) end
    if unchecked > 0 then redis.call('HINCRBY', where.about, 'unchecked', unchecked) end
    return goes
  end

  --[[ Journal entry: idmp <settings> by <producer> (<iid> <ms-n:w>)...   these messages were accepted.
       It waits until their entries have arrived here. Messages of an older era are ignored. The region that finds
       two entries of one message deletes one and writes that into its own journal: the other regions may have
       forgotten the message by then.
       The caller names the keys `map:<era>:<producer>`, `queue:<era>:<producer>`, `about`, and `journal`, our own. ]]
  local function apply_messages(meta, named, words)
    local text, producer, messages = journals.read_messages(words)
    local theirs = text and idempotence.read_settings(text)
    if not theirs then return false end
    local is_log = logs.is_log(meta)
    local function strand_of(value)
      local id, writer = string.match(value, '^(%d+%-%d+):(%d+)')
      if id and is_log then
        local label, epoch = logs.label_of(redis.call('HGET', meta, META.HOMES), writer, id)
        return label and journals.strand_named(meta, named, label .. ':' .. epoch), id
      end
      local label = id and KIND.GENERATED .. writer
      if not label or not streams.is_strand(label, '0') then return nil end
      return journals.strand_named(meta, named, label .. ':0'), id, label .. ':0'
    end
    for at = 1, #messages, 2 do
      local strand, id = strand_of(messages[at + 1])
      if not strand or messages[at] == '' or ids.less(strand.ends, id) then return false end
    end
    local settings = idempotence.merge_settings(meta, text)
    local which = settings.era .. ':' .. producer
    local where = { meta = meta, map = named[JOURNAL.MAP .. which], queue = named[JOURNAL.QUEUE .. which] }
    if settings.era ~= theirs.era or not where.map then return true end
    local own = named[JOURNAL.OWN]
    local writer = registry.writer_of(own)
    where.about = named[JOURNAL.ABOUT]
    where.own = { writer = writer, journal = own, key = named[KIND.GENERATED .. writer .. ':0'] }
    where.own.found = redis.call('HMGET', meta, META.IDEMPOTENCE, META.NATIVE)
    for _, value in ipairs(idempotence_record(where, settings, producer, messages, clock.now_ms())) do
      local strand, id, label = strand_of(value)
      if strand.key and label and extents.delete(strand.key, id) == 1 then
        journals.add_deletions(own, label, { id })
      end
    end
    return true
  end
  journals.VERBS[JOURNAL.MESSAGES] = apply_messages

  local function count_known(where, settings, now)
    local length = redis.call('LLEN', where.queue)
    local low, high = math.max(0, length - settings.size), length
    while low < high do -- find the first that is not expired; the queue is in order of arrival
      local middle = math.floor((low + high) / 2)
      local value = redis.call('HGET', where.map, redis.call('LINDEX', where.queue, middle))
      if value and not is_expired(value, now, settings.duration) then
        high = middle
      else
        low = middle + 1
      end
    end
    return length - low
  end

  --[[ idempotence_count: FCALL_RO bs_idempotence_count n (<map> <queue>)... <settings>
       Returns how many of these producers have unexpired messages, and how many messages. ]]
  function idempotence.count(keys, args)
    local settings, now, producers, known =
      valid.need(idempotence.read_settings(args[1]), 'settings'), clock.now_ms(), 0, 0
    for at = 1, #keys, 2 do
      local count = count_known({ map = keys[at], queue = keys[at + 1] }, settings, now)
      known, producers = known + count, producers + (count > 0 and 1 or 0)
    end
    return { producers, known }
  end
end

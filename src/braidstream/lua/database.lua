--[[ Which writers exist, and which have left for good: `writers` and `left` in bs:config. ]]
-- fills: database
-- uses: clock, streams, valid
do
  local function numbers_of(text)
    local found = {}
    for number in string.gmatch(text or '', '%S+') do
      if not string.match(number, '^%d+$') then return nil end
      found[tonumber(number)] = true
    end
    return found
  end

  local function numbers_text(found)
    local listed = {}
    for number in pairs(found) do
      listed[#listed + 1] = number
    end
    table.sort(listed)
    return table.concat(listed, ' ')
  end

  -- One by one: daemons have no right to HMGET.
  local function config_fields(config, ...)
    local found = {}
    for at, field in ipairs({ ... }) do
      found[at] = redis.call('HGET', config, field)
    end
    return found
  end

  --[[ region_writers: FCALL bs_region_writers 1 bs:config <meet or part> <writer>...
       meet: add these writers, except those that have left. part: these have left for good. Other numbers are ignored.
       Returns bs:config afterwards; changes nothing if the database is no region or the fields are malformed.
       Why a function: two concurrent calls must not undo each other. ]]
  function database.writers(keys, args)
    local config = keys[1]
    local found = config_fields(config, CONFIG.WRITER, CONFIG.WRITERS, CONFIG.LEFT)
    local own, writers, left = tonumber(found[1]), numbers_of(found[2]), numbers_of(found[3])
    if not own or not writers or not left then return redis.call('HGETALL', config) end
    local before = { numbers_text(writers), numbers_text(left) }
    writers[own] = true
    for at = 2, #args do
      local group = args[1] == 'part' and left or writers
      local number = tonumber(args[at])
      if number and number >= 1 and number < WRITERS then group[number] = true end
    end
    if left[own] then return redis.error_reply('BSSELF this is the region itself') end
    for number in pairs(left) do
      writers[number] = nil
    end
    local after = { numbers_text(writers), numbers_text(left) }
    if after[1] ~= before[1] or after[2] ~= before[2] then
      redis.call('HSET', config, CONFIG.WRITERS, after[1], CONFIG.LEFT, after[2])
      if not string.find(before[1], ' ') then
        redis.call('HSET', config, CONFIG.MET, string.format('%.0f', clock.now_ms()))
      end
      redis.call('HINCRBY', config, CONFIG.TOPOLOGY, 1)
    end
    return redis.call('HGETALL', config)
  end

  --[[ The highest ID that this region has generated: `generated` -> `<ms> <run id> <+ or ->`: the milliseconds of a
       home strand, the server process that generated it, and whether that was ahead of the clock. If another process
       serves the region now, it may have lost IDs and generate them again. So clients wait (plan/cache.py) until
       the daemon has raised the home strands above the peers' copies: all clients if IDs were ahead of the clock, and
       those who write logs in any case, because offsets do not follow the clock. Returns who waits. ]]
  local NOBODY, LOGS, EVERYBODY = 0, 1, 2 -- operations/membership.py reads it

  local function note_generated(config, run, highest, raised, now)
    local ms, by, ahead = string.match(redis.call('HGET', config, CONFIG.GENERATED) or '', '^(%d+) (.*) ([+-])$')
    ms = math.max(tonumber(ms or 0), tonumber(highest))
    local is_other = by and by ~= run and not raised
    local is_ahead = ms >= now or (is_other and ahead == '+')
    local text = string.format('%.0f', ms) .. ' ' .. (is_other and by or run) .. (is_ahead and ' +' or ' -')
    redis.call('HSET', config, CONFIG.GENERATED, text)
    if not is_other then return NOBODY end
    return is_ahead and EVERYBODY or LOGS
  end

  --[[ region_alive: FCALL bs_region_alive 1 bs:config <run id of the server> [<highest ms of a home strand> <0|1:
       raised>] The daemon of a region calls it every few seconds. `run` and `alive` record the server process and the
       time of the last call. If another process serves the region now, writes since that time may be lost: the window
       is added to `doubts`, `<ms>-<ms>` ..., and entries missing in it were lost, not trimmed
       (replication/heal/search.py). The fields are part of the data, so a lagging replica or a backup restores old
       values. Returns {which clients wait until the home strands are raised: 0 none, 1 those who write logs, 2 all; 1
       while the region is fenced}. ]]
  function database.alive(keys, args)
    local DOUBTS_KEPT = 8 -- windows; the oldest ones are joined
    local found = config_fields(keys[1], CONFIG.REGION, CONFIG.RUN, CONFIG.ALIVE, CONFIG.DOUBTS, CONFIG.FENCED)
    valid.need(not args[2] or valid.number(args[2]), 'highest ID')
    if not found[1] then return { 0, 0 } end
    local now = clock.now_ms()
    if found[2] and found[2] ~= args[1] then
      local windows, since = {}, tonumber(found[3])
      for window in string.gmatch(found[4] or '', '%S+') do
        if streams.is_id(window) then windows[#windows + 1] = window end
      end
      windows[#windows + 1] = string.format('%.0f-%.0f', since, math.max(now, since) + CLOCK_BOUND_MS)
      while #windows > DOUBTS_KEPT do
        local first, second = table.remove(windows, 1), windows[1]
        windows[1] = string.match(first, '^%d+') .. '-' .. string.match(second, '^%d+%-(%d+)$')
      end
      redis.call('HSET', keys[1], CONFIG.DOUBTS, table.concat(windows, ' '))
    end
    redis.call('HSET', keys[1], CONFIG.RUN, args[1], CONFIG.ALIVE, string.format('%.0f', now))
    return { note_generated(keys[1], args[1], args[2] or '0', args[3] == '1', now), found[5] and 1 or 0 }
  end
end

--[[ database_flush: FLUSHALL in the other databases. FCALL bs_database_flush 1 bs:config <number>...
     A region's bs:config is kept. BSREGION if a region has other keys; nothing is done: its streams must be
     deleted there, so that their last IDs are saved. Returns OK.
     Why a function: a shared connection cannot SELECT. ]]
do
  function database.flush(keys, args)
    local plain = {}
    for _, number in ipairs(args) do
      redis.call('SELECT', number)
      if redis.call('HEXISTS', keys[1], CONFIG.REGION) == 0 then
        plain[#plain + 1] = number
      elseif redis.call('DBSIZE') > 1 then
        return redis.error_reply('BSREGION ' .. number)
      end
    end
    for _, number in ipairs(plain) do
      redis.call('SELECT', number)
      redis.call('FLUSHDB')
    end
    return redis.status_reply('OK')
  end
end

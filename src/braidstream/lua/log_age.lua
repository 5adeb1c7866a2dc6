--[[ The age of entries of a log. Offsets carry no time, so the home notes now and then how far the log has come:

       bs:tick:<tag>    1700000000000-0 {o 1017 t 1:t.2}   at this time the last offset was 1017, or an entry before it,
                                                           written in epoch 2 by writer 1

     An entry is at least as old as the first tick that has reached it. Eviction by age is late by the time between two
     ticks, never early. A region that becomes the home starts with no ticks: what it got is as old as its first one. Ticks of
     an earlier epoch do not count: the region may have written beyond it, and those offsets are other entries now. ]]
do
  local MOST_TICKS = 100000
  local EVERY_MS, SHORTEST_MS, TICKS_PER_AGE = 60000, 1000, 1000
  local KEPT_MS = 90 * 24 * 3600 * 1000
  local EVICTED_AT_ONCE = 100000

  -- The last offset that was reached so many ms ago; nil if no tick is so old.
  local function reached(tick, before)
    if before < 0 then return nil end
    local row = redis.call('XREVRANGE', tick, string.format('%.0f', before), '-', 'COUNT', 1)[1]
    return row and row[2][2]
  end

  -- The writer and the epoch of a strand, as its key says them.
  local function epoch_of(strand) return string.match(strand, '^' .. KEY_PREFIX .. '(%d+:[^:]+):') end

  -- The last tick of this epoch; nil if there is none.
  local function newest_of(tick, home)
    local row = redis.call('XREVRANGE', tick, '+', '-', 'COUNT', 1)[1]
    return row and row[2][4] == epoch_of(home) and row or nil
  end

  local function evict(strand, upto)
    local row = redis.call('XRANGE', strand, '-', '+', 'COUNT', 1)[1]
    if not row then return 0 end
    local most = string.format('%.0f', tonumber(string.match(row[1], '%d+$')) + EVICTED_AT_ONCE)
    if less_number(most, upto) then upto = most end
    return redis.call('XTRIM', strand, 'MINID', '=', '0-' .. successor(upto))
  end

  --[[ log_tick: FCALL bs_log_tick n <tick> <strand>... <home strand> <max age in ms, or 0> <end>...
       <end>: of each strand, the last offset that counts. What a former home wrote beyond it stays, until it is rescued.
       Notes how far the log has come, if the last tick is old enough, and evicts what is older than <max age>: at most
       100,000 entries of each strand. Returns how many. ]]
  function logs.tick(keys, args)
    local tick, home, age = keys[1], keys[#keys], valid.counted(args[1], 2 ^ 53, 'age')
    for at = 2, #args do valid.need(valid.number(args[at]), 'offset') end
    local last = last_of(home)
    if not last or not less(last, '1-0') then return 0 end
    local now = now_ms()
    local newest = newest_of(tick, home)
    if not newest and redis.call('EXISTS', tick) == 1 then redis.call('XTRIM', tick, 'MAXLEN', '=', 0) end
    local every = age > 0 and math.max(SHORTEST_MS, age / TICKS_PER_AGE) or EVERY_MS
    if not newest or now - tonumber(string.match(newest[1], '^%d+')) >= every then
      redis.call('XADD', tick, 'MAXLEN', '~', MOST_TICKS, '*', 'o', string.match(last, '%d+$'), 't', epoch_of(home))
      redis.call('PEXPIRE', tick, string.format('%.0f', math.max(KEPT_MS, 2 * age)))
    end
    local upto, gone = age > 0 and reached(tick, now - age), 0
    if upto then
      for at = 2, #keys do
        local last = args[at] or upto
        gone = gone + evict(keys[at], less_number(last, upto) and last or upto)
      end
    end
    return gone
  end

  --[[ log_older: FCALL bs_log_older 2 <tick> <home strand> <ms>
       The last offset that is at least so old, as far as the ticks show; 0 if there is none. ]]
  function logs.older(keys, args)
    local age = valid.counted(args[1], 2 ^ 53, 'age')
    if keys[2] and not newest_of(keys[1], keys[2]) then return 0 end -- clients before version 24 name no strand
    return tonumber(reached(keys[1], now_ms() - age) or '0')
  end
end

--[[ Groups of logs: TREAD GROUP RETRY and TACK.

     A group is a native group. The name of a consumer is its policy, `<retry ms>:<expire ms>`: everyone who reads with
     the same times shares a pending list. An entry expires so long after its first delivery. While its delivery count
     is 1 that follows from the delivery time; a redelivery stores `<time of expiry in ms> * 1024 + <deliveries>` as the
     count, which commands/xack.py shows as deliveries.

     Never more than <max> entries are pending. Readers that wait in the engine have *reservations*, which count as
     well:

         room    stream, there while readers wait for room; each entry is a ticket for one of them. Expires after 10 s
         look    string, there while somebody has just looked for due entries
         gate    stream, always empty; a native XREADGROUP names it, so it fails if bs_log_admit took it away
         waits   sorted set, `<token>:<count>` -> when the reservation ends

     KEYS of bs_log_take and bs_log_admit: <strand>... <room> <look> <gate> <waits> [<meta>]; strands from the oldest
     epoch on. With <meta>, for a group of scope `once`, the last argument is `@<held>:<stamp>`. The first <held>
     strands are handed over to another region: nothing new is taken from them. BSSTALE if the bell has another stamp:
     the owners may be others. ]]
-- fills: logs
-- uses: bells, clock, ids, rights, valid
do
  local FIRST_COUNTS = 1000000000 -- counts below are the engine's own, those above have a time in ms
  local FIRST_SHARED, SHARE = 2 ^ 50, 1024 -- counts from here on have both; before version 27 the time alone was stored
  local LATEST_MS = 2 ^ 43 - 1
  local MOST_POLICIES = 32
  local MORE_ROWS = 100
  local ROOM_MS = 10000
  local GATE_MS = 3600000
  local LONGEST_WAIT_MS, SHORTEST_WAIT_MS, MARGIN_MS = 5000, 20, 10000
  local ACKED_AT_ONCE = 1000

  -- How long nobody else looks for due entries.
  local function look_ms(pending) return SHORTEST_WAIT_MS + pending / 50 end

  local function whole(number) return string.format('%.0f', number) end

  -- Takes <meta> and the last argument away, if they are there. Returns <held>, or the error.
  local function take_scope(keys, args)
    local held, stamp = string.match(args[#args] or '', '^@(%d+):(.*)$')
    if not held then return 0 end
    held = valid.counted(held, #keys, 'scope')
    local meta = table.remove(keys)
    table.remove(args)
    return held, bells.is_stale(meta, { stamp = stamp }) and redis.error_reply(bells.STALE) or nil
  end

  local function split_keys(keys)
    local strands = {}
    valid.need(#keys >= 4, 'keys')
    for at = 1, #keys - 4 do
      strands[at] = keys[at]
    end
    return strands, { room = keys[#keys - 3], look = keys[#keys - 2], gate = keys[#keys - 1], waits = keys[#keys] }
  end

  -- The error if the caller lacks a right that reads with RETRY need later. It takes as long as half a read.
  local function not_allowed(strand, at)
    return rights.denied(strand, 'XACK', 'XCLAIM')
      or rights.denied(at.room, 'PEXPIRE', 'XADD', 'XGROUP CREATE')
      or rights.denied(at.look, 'SET')
      or rights.denied(at.gate, 'UNLINK')
      or rights.denied(at.waits, 'PEXPIREAT', 'ZADD', 'ZCARD', 'ZRANGE', 'ZREM', 'ZREMRANGEBYSCORE')
  end

  -- The group, how many entries, the policy, and how many may be pending.
  local function read_limits(args)
    local count, max = valid.counted(args[2], 2 ^ 53, 'count'), valid.counted(args[5], 2 ^ 53, 'limit')
    for at = 3, 4 do
      valid.counted(args[at], 2 ^ 53, 'time')
    end
    return args[1], count, args[3] .. ':' .. args[4], max
  end

  -- How many entries are pending, and the policies that have some, by strand.
  local function pending_of(strands, group)
    local total, policies, number, by_strand = 0, {}, 0, {}
    for at, strand in ipairs(strands) do
      local summary = redis.call('XPENDING', strand, group)
      total = total + summary[1]
      by_strand[at] = {}
      for _, consumer in ipairs(summary[4] or {}) do
        local name = consumer[1]
        if #name <= 41 and string.match(name, '^%d+:%d+$') then
          table.insert(by_strand[at], name)
          if not policies[name] then
            policies[name], number = true, number + 1
          end
        end
      end
    end
    return total, policies, number, by_strand
  end

  local function reserved_in(waits, now)
    redis.call('ZREMRANGEBYSCORE', waits, '-inf', whole(now))
    local total = 0
    for _, member in ipairs(redis.call('ZRANGE', waits, 0, -1)) do
      total = total + (valid.count(string.match(member, '^[^:]*:(%d+)$'), 2 ^ 53) or 0)
    end
    return total
  end

  local function reserve(waits, count, until_ms)
    local number = redis.call('ZCARD', waits)
    local token
    repeat -- a number that nobody has: as many tries as there are readers at most
      number = number + 1
      token = whole(until_ms) .. '.' .. number .. ':' .. count
    until redis.call('ZADD', waits, 'NX', whole(until_ms), token) == 1
    redis.call('PEXPIREAT', waits, whole(until_ms + MARGIN_MS))
    return token
  end

  -- When a row of XPENDING expires, and how often it was delivered.
  local function state_of(row, expire, now)
    local count = row[4]
    if count >= FIRST_SHARED then return math.floor(count / SHARE), count % SHARE end
    if count > FIRST_COUNTS then return count, 2 end
    return now - row[3] + expire, count
  end

  local function as_count(ends, deliveries)
    return whole(math.min(ends, LATEST_MS) * SHARE + math.min(deliveries, SHARE - 1))
  end

  -- In how many ms the first entry of a policy expires, at the latest: its lowest offset was delivered first.
  local function next_expiry(strands, by_strand, group, now)
    local soonest = math.huge
    for at, strand in ipairs(strands) do
      for _, name in ipairs(by_strand[at]) do
        local row = redis.call('XPENDING', strand, group, '-', '+', 1, name)[1]
        if row then soonest = math.min(soonest, (state_of(row, tonumber(string.match(name, ':(%d+)$')), now)) - now) end
      end
    end
    return soonest
  end

  -- Entries whose retry time has come, by offset; expired ones leave the pending list, and so does what a former home
  -- wrote beyond the end of its epoch (`lasts`). Returns how many left it.
  local function take_due(strands, lasts, by_strand, group, policy, want, now)
    local found, dropped = {}, 0
    for at, strand in ipairs(strands) do
      for _, name in ipairs(by_strand[at]) do
        local retry, expire = string.match(name, '^(%d+):(%d+)$')
        retry, expire = tonumber(retry), tonumber(expire)
        local rows = redis.call(
          'XPENDING',
          strand,
          group,
          'IDLE',
          whole(math.min(retry, expire)),
          '-',
          '+',
          want + MORE_ROWS,
          name
        )
        for _, row in ipairs(rows) do
          local ends, deliveries = state_of(row, expire, now)
          if ends <= now or ids.less_number(lasts[at], string.sub(row[1], 3)) then
            dropped = dropped + redis.call('XACK', strand, group, row[1])
          elseif row[3] >= retry then
            found[#found + 1] = { strand, row[1], as_count(ends, deliveries + 1) }
          end
        end
      end
    end
    table.sort(found, function(a, b) return ids.less(a[2], b[2]) end)
    local out = {}
    for _, each in ipairs(found) do
      if #out == want then break end
      local got = redis.call('XCLAIM', each[1], group, policy, 0, each[2], 'TIME', whole(now), 'RETRYCOUNT', each[3])
      if got[1] then
        out[#out + 1] = got[1]
      else
        dropped = dropped + 1
      end
    end
    return out, dropped
  end

  -- `ends`: the last offset of each strand that counts. What a former home wrote beyond it is not part of the log.
  local function take_new(strands, ends, held, group, policy, room, out)
    for at = held + 1, #strands do
      if room <= 0 then break end
      local strand = strands[at]
      local got = redis.call('XREADGROUP', 'GROUP', group, policy, 'COUNT', room, 'STREAMS', strand, '>')
      for _, entry in ipairs(got and got[1][2] or {}) do
        if ids.less_number(ends[at], string.sub(entry[1], 3)) then
          redis.call('XACK', strand, group, entry[1])
        else
          out[#out + 1] = entry
          room = room - 1
        end
      end
    end
  end

  --[[ log_take: FCALL bs_log_take n <keys> <group> <count> <retry> <expire> <max> <0|1: ticket> <block> <token>
       <end>... <end>: of each strand, the last offset that counts.
       <block>: empty: do not wait; `+<ms>`: wait so long from now; otherwise until then.
       Returns {entries, state, until, token, count, wait ms}:
         state 0   nothing to wait for: there are entries, or the time is up
               1   the pending list is full: wait for a ticket on <room>
               2   wait on the last strand, for <count> entries at most; <token> is the reservation
       Due entries come first, then new ones. Who has no ticket gets no new ones while others wait for room.
       Why a function: the limit holds only if counting and taking are one step. ]]
  function logs.take(keys, args)
    local held, stale = take_scope(keys, args)
    if stale then return stale end
    local strands, at = split_keys(keys)
    local group, count, policy, max = read_limits(args)
    local now, block = clock.now_ms(), string.match(args[7] or '', '^%+?(.*)$')
    local ends = block ~= '' and valid.counted(block, 2 ^ 53, 'time') or nil
    if string.sub(args[7], 1, 1) == '+' then ends = now + ends end
    for place = 9, 8 + #strands do
      valid.need(args[place] and valid.number(args[place]), 'end of an epoch')
    end
    if args[8] ~= '' then redis.call('ZREM', at.waits, args[8]) end
    local pending, policies, number, by_strand = pending_of(strands, group)
    if number >= MOST_POLICIES and not policies[policy] then
      return redis.error_reply(
        "ERR too many RETRY settings in group '" .. group .. "' (at most " .. MOST_POLICIES .. ')'
      )
    end
    -- Before anything is taken: whoever lacks a right is refused.
    local queued, reserved = redis.call('EXISTS', at.room) == 1, reserved_in(at.waits, now)
    local refused = queued and rights.denied(at.room, 'XADD')
    if refused then return refused end
    local out, lasts = {}, { unpack(args, 9) }
    if pending > 0 and redis.call('SET', at.look, '1', 'NX', 'PX', whole(look_ms(pending))) then
      local dropped
      out, dropped = take_due(strands, lasts, by_strand, group, policy, count, now)
      pending = pending - dropped
    end
    local free = max - pending - reserved
    local may_take = args[6] == '1' or not queued
    local before = #out
    if may_take then take_new(strands, lasts, held, group, policy, math.min(count - #out, free), out) end
    free, pending = free - (#out - before), pending + (#out - before)
    if #out > 0 then
      if queued and free > 0 then redis.call('XADD', at.room, 'MAXLEN', 1, '*', 'r', 1) end
      return { out, 0, '', '', 0, 0 }
    end
    if not ends or now >= ends then
      if queued and free > 0 and args[6] == '1' then redis.call('XADD', at.room, 'MAXLEN', 1, '*', 'r', 1) end
      return { out, 0, '', '', 0, 0 }
    end
    local wait = math.max(SHORTEST_WAIT_MS, math.min(ends - now, tonumber(args[3]), LONGEST_WAIT_MS))
    if free <= 0 or not may_take or held == #strands then
      if not queued then redis.call('XGROUP', 'CREATE', at.room, group, '$', 'MKSTREAM') end
      redis.call('PEXPIRE', at.room, ROOM_MS)
      local makes_room = next_expiry(strands, by_strand, group, now)
      return { out, 1, whole(ends), '', 0, math.min(wait, math.max(look_ms(pending), makes_room)) }
    end
    local most = math.min(count, free)
    if queued and free > most then redis.call('XADD', at.room, 'MAXLEN', 1, '*', 'r', 1) end
    return { out, 2, whole(ends), reserve(at.waits, most, now + wait + MARGIN_MS), most, wait }
  end

  --[[ log_admit: FCALL bs_log_admit n <keys> <group> <count> <retry> <expire> <max>
       Whether <count> new entries may be taken by the native XREADGROUP that follows in the same MULTI. It names <gate>
       too, and fails if that is missing. Returns 1, or 0 if bs_log_take must decide: something may be due, or the list
       may become full.
       Why: entries that go through Lua cost three times as much. ]]
  function logs.admit(keys, args)
    local _, stale = take_scope(keys, args)
    if stale then return stale end
    local strands, at = split_keys(keys)
    local group, count, policy, max = read_limits(args)
    local pending, policies, number = pending_of(strands, group)
    local admitted = (pending == 0 or redis.call('EXISTS', at.look) == 1)
      and (number < MOST_POLICIES or policies[policy])
      and redis.call('EXISTS', at.room) == 0
      and pending + count <= max
      and (redis.call('EXISTS', at.waits) == 0 or pending + count + reserved_in(at.waits, clock.now_ms()) <= max)
    local is_there = redis.call('EXISTS', at.gate) == 1
    if admitted and not is_there then
      local refused = not_allowed(strands[1], at)
      if refused then return refused end
      redis.call('XGROUP', 'CREATE', at.gate, group, '$', 'MKSTREAM')
      redis.call('PEXPIRE', at.gate, GATE_MS)
    elseif is_there and not admitted then
      redis.call('UNLINK', at.gate)
    end
    return admitted and 1 or 0
  end

  --[[ log_ack: FCALL bs_log_ack n <strand>... <room> <group> <from> <to>
       Acknowledges what is pending between two offsets. Returns how many; the caller calls again after 100,000. ]]
  function logs.ack(keys, args)
    local group, acked = args[1], 0
    for at = 1, #keys - 1 do
      for _ = 1, 100 do
        local rows = redis.call('XPENDING', keys[at], group, '0-' .. args[2], '0-' .. args[3], ACKED_AT_ONCE)
        if #rows == 0 then break end
        local entry_ids = {}
        for place, row in ipairs(rows) do
          entry_ids[place] = row[1]
        end
        acked = acked + redis.call('XACK', keys[at], group, unpack(entry_ids))
      end
    end
    if acked > 0 and redis.call('EXISTS', keys[#keys]) == 1 then
      redis.call('XADD', keys[#keys], 'MAXLEN', 1, '*', 'r', 1)
    end
    return acked
  end
end

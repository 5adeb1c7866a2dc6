--[[ The settings of idempotent production, in a stream's meta: idmp -> <era>:<duration s>:<max size>:<since>.
     Each change begins the next era, and all messages of earlier eras are forgotten (idempotence.lua).
     <since> is the era in which the stream was last deleted: its counters restarted there. ]]
local IDMP_DEFAULTS = '0:100:100:0'

local function read_settings(text)
  local era, duration, size, since = string.match(text, '^(%d+):(%d+):(%d+):(%d+)$')
  if not era or #era > 15 or #duration > 12 or #size > 12 or #since > 15 then return nil end
  return { text = text, era = era, duration = duration * 1000, size = tonumber(size), since = since }
end

--[[ While the region has no peers, Redis 8.6.2 and newer deduplicates messages itself, in the strand:
     XADD strand NOMKSTREAM IDMP <producer> <iid> * ... Map and queue are not used then.

       native -> <era>            in this era; clients send that XADD directly, without a function
       native -> <era>:<ms>       until that time; then the region got peers. Map and queue are used, and the
                                  engine is queried too while it may remember a message that they lack

     Native deduplication starts only with a new era, when no message is remembered, so no message is stored in
     one place and looked up in the other. `native` is local to this region (decision 0017). ]]
local NATIVE_MARGIN_MS = 10000 -- how much longer than REGION_FRESH_S a client may believe that it has no peers

local function may_know_messages() return (redis.REDIS_VERSION_NUM or 0) >= 0x080602 end

local function engine_can(key)
  return may_know_messages()
    and (pcall(redis.acl_check_cmd, 'XCFGSET', key, 'IDMP-MAXSIZE', '1')) -- an error: there is no such command
end

local function settings_of(meta) return read_settings(redis.call('HGET', meta, META.IDEMPOTENCE) or IDMP_DEFAULTS) end

--[[ Merge two regions' settings: the later era wins; within an era the later deletion, then the greater values. ]]
local function merge_settings(meta, text)
  local ours, theirs = settings_of(meta), read_settings(text)
  local order = { 'era', 'since', 'duration', 'size' }
  for _, part in ipairs(order) do
    local a, b = tostring(ours[part]), tostring(theirs[part])
    if a ~= b then
      if not less_number(a, b) then return ours end
      redis.call('HSET', meta, META.IDEMPOTENCE, text)
      return theirs
    end
  end
  return ours
end

--[[ idempotence_configure: XCFGSET. FCALL bs_idempotence_configure 1|2 <meta> [<strand>] <duration or empty> <size or empty>
     Returns OK; BSNOKEY if the stream does not exist. A changed setting forgets every message.
     <strand>, the home strand, is passed by a region without peers. ]]
local function idempotence_configure(keys, args)
  for at = 1, 2 do
    if args[at] ~= '' then valid.counted(args[at], 10 ^ 12 - 1, 'setting') end
  end
  local _, not_settled = deadline.settle(keys[1], keys)
  if not_settled then return not_settled end
  if not exists(keys[1]) then return redis.error_reply('BSNOKEY the stream does not exist') end
  local known = redis.call('HGET', keys[1], META.IDEMPOTENCE)
  local settings = read_settings(known or IDMP_DEFAULTS)
  local duration = args[1] ~= '' and args[1] or string.format('%d', settings.duration / 1000)
  local size, era = args[2] ~= '' and args[2] or tostring(settings.size), settings.era
  local text = era .. ':' .. duration .. ':' .. size .. ':' .. settings.since
  local changed = text ~= settings.text
  if changed then
    era = successor(era)
    text = era .. ':' .. duration .. ':' .. size .. ':' .. settings.since
  end
  local natively = keys[2] and (changed or not known) and engine_can(keys[2]) and not logs.is_log(keys[1])
  if natively and redis.call('EXISTS', keys[2]) == 1 then
    local refused = denied(keys[2], 'XCFGSET')
    if refused then return refused end
    redis.call('XCFGSET', keys[2], 'IDMP-DURATION', duration, 'IDMP-MAXSIZE', size)
  end
  redis.call('HSET', keys[1], META.IDEMPOTENCE, text)
  if natively then redis.call('HSET', keys[1], META.NATIVE, era) end
  return redis.status_reply('OK')
end

--[[ Deleting a stream resets its messages, settings and counters. `alone`: the region has no peers. ]]
local function forget_idempotence(meta, alone)
  if not redis.call('HGET', meta, META.IDEMPOTENCE) then return end
  local era = successor(settings_of(meta).era)
  redis.call('HSET', meta, META.IDEMPOTENCE, era .. ':100:100:' .. era)
  if alone and engine_can(meta) then redis.call('HSET', meta, META.NATIVE, era) end
end

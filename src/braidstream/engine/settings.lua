--[[ The settings of idempotent production, in a stream's meta: idmp -> <era>:<duration s>:<max size>:<since>.
     Each change begins the next era, and nothing is known any more of what was before (idempotence.lua).
     <since> is the era in which the stream was last deleted: its counts start over there. ]]
local IDMP_DEFAULTS = '0:100:100:0'

local function read_settings(text)
  local era, duration, size, since = string.match(text, '^(%d+):(%d+):(%d+):(%d+)$')
  if not era then return nil end
  return { text = text, era = era, duration = duration * 1000, size = tonumber(size), since = since }
end

local function settings_of(meta) return read_settings(redis.call('HGET', meta, 'idmp') or IDMP_DEFAULTS) end

--[[ Of two regions' settings the later era counts; in one era a deletion before a change, then the greater. ]]
local function merge_settings(meta, text)
  local ours, theirs = settings_of(meta), read_settings(text)
  local order = { 'era', 'since', 'duration', 'size' }
  for _, part in ipairs(order) do
    local a, b = tostring(ours[part]), tostring(theirs[part])
    if a ~= b then
      if not less_number(a, b) then return ours end
      redis.call('HSET', meta, 'idmp', text)
      return theirs
    end
  end
  return ours
end

--[[ idempotence_configure: XCFGSET. FCALL bs_idempotence_configure 1 <meta> <duration or empty> <size or empty>
     Returns OK; BSNOKEY if the stream does not exist. What changes a setting forgets every ID. ]]
local function idempotence_configure(keys, args)
  if not exists(keys[1]) then return redis.error_reply('BSNOKEY the stream does not exist') end
  local settings = settings_of(keys[1])
  local duration = args[1] ~= '' and args[1] or string.format('%d', settings.duration / 1000)
  local size, era = args[2] ~= '' and args[2] or tostring(settings.size), settings.era
  local text = era .. ':' .. duration .. ':' .. size .. ':' .. settings.since
  if text ~= settings.text then text = successor(era) .. ':' .. duration .. ':' .. size .. ':' .. settings.since end
  redis.call('HSET', keys[1], 'idmp', text)
  return redis.status_reply('OK')
end

--[[ A stream that is deleted forgets its IDs, its settings and its counts. ]]
local function forget_idempotence(meta)
  if not redis.call('HGET', meta, 'idmp') then return end
  local era = successor(settings_of(meta).era)
  redis.call('HSET', meta, 'idmp', era .. ':100:100:' .. era)
end

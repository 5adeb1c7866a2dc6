--[[ Which writers there are, and which will never write again: `writers` and `left` in bs:config. ]]

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
  for number in pairs(found) do listed[#listed + 1] = number end
  table.sort(listed)
  return table.concat(listed, ' ')
end

-- One by one: daemons have no right to HMGET.
local function config_fields(config, ...)
  local found = {}
  for at, field in ipairs({ ... }) do found[at] = redis.call('HGET', config, field) end
  return found
end

--[[ region_writers: FCALL bs_region_writers 1 bs:config <meet or part> <writer>...
     meet: these write too, but for those that have left. part: these have left for good.
     Returns bs:config as it is then; nothing is changed where it is no region, or cannot be read.
     Why a function: of two that tell a region at once, neither may undo what the other told. ]]
local function region_writers(keys, args)
  local config = keys[1]
  local told = config_fields(config, CONFIG.WRITER, CONFIG.WRITERS, CONFIG.LEFT)
  local writers, left = numbers_of(told[2]), numbers_of(told[3])
  if not told[1] or not writers or not left then return redis.call('HGETALL', config) end
  local before = { numbers_text(writers), numbers_text(left) }
  writers[tonumber(told[1])] = true
  for at = 2, #args do
    local group = args[1] == 'part' and left or writers
    group[tonumber(args[at])] = true
  end
  if left[tonumber(told[1])] then return redis.error_reply('BSSELF this is the region itself') end
  for number in pairs(left) do writers[number] = nil end
  local after = { numbers_text(writers), numbers_text(left) }
  if after[1] ~= before[1] or after[2] ~= before[2] then
    redis.call('HSET', config, CONFIG.WRITERS, after[1], CONFIG.LEFT, after[2])
    redis.call('HINCRBY', config, CONFIG.TOPOLOGY, 1)
  end
  return redis.call('HGETALL', config)
end

-- So many windows are kept; older ones become one. IDs may be ahead of the clock by so much (clock.lua).
local DOUBTS_KEPT = 8

--[[ What the daemon notes of the IDs that this region mints: `minted` -> `<ms> <run id> <+ or ->`. The highest
     milliseconds of a home strand, the process that minted it, and whether that was ahead of the clock then. Another process
     that finds such a note may have forgotten IDs that it would count up again. So clients wait (braid.py) until
     the daemon has raised the home strands above what the peers have. ]]
local function note_minted(config, run, highest, raised, now)
  local ms, by, ahead = string.match(redis.call('HGET', config, CONFIG.GENERATED) or '', '^(%d+) (.*) ([+-])$')
  ms = math.max(tonumber(ms or 0), tonumber(highest))
  local waits = by and by ~= run and not raised and (ahead == '+' or ms >= now)
  if waits then run, ahead = by, '+' else ahead = ms >= now and '+' or '-' end
  redis.call('HSET', config, CONFIG.GENERATED, string.format('%.0f', ms) .. ' ' .. run .. ' ' .. ahead)
  return waits and 1 or 0
end

--[[ region_alive: FCALL bs_region_alive 1 bs:config <run id of the server> [<highest ms of a home strand> <0|1: raised>]
     The daemon of a region calls it every few seconds. `run` and `alive` say which process served the region
     when it last did. If another one does now, whatever was written in between may be lost: that window goes
     to `doubts`, `<ms>-<ms>` ... What is missing of it was not trimmed (replication/heal.py).
     The fields are part of the data, so a replica that lagged or a backup brings back old ones.
     Returns {1 while clients wait until the home strands are raised, 1 while the region is fenced}. ]]
local function region_alive(keys, args)
  local told = config_fields(keys[1], CONFIG.REGION, CONFIG.RUN, CONFIG.ALIVE, CONFIG.DOUBTS, CONFIG.FENCED)
  local time = redis.call('TIME')
  if not told[1] then return { 0, 0 } end
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  if told[2] and told[2] ~= args[1] then
    local windows, since = {}, tonumber(told[3])
    for window in string.gmatch(told[4] or '', '%d+%-%d+') do windows[#windows + 1] = window end
    windows[#windows + 1] = string.format('%.0f-%.0f', since, math.max(now, since) + CLOCK_BOUND_MS)
    while #windows > DOUBTS_KEPT do
      local first, second = table.remove(windows, 1), windows[1]
      windows[1] = string.match(first, '^%d+') .. '-' .. string.match(second, '%d+$')
    end
    redis.call('HSET', keys[1], CONFIG.DOUBTS, table.concat(windows, ' '))
  end
  redis.call('HSET', keys[1], CONFIG.RUN, args[1], CONFIG.ALIVE, string.format('%.0f', now))
  return { note_minted(keys[1], args[1], args[2] or '0', args[3] == '1', now), told[5] and 1 or 0 }
end

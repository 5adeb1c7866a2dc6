--[[ A hybrid logical clock, by the engine's own means. `XADD *` mints above the clock and above the last ID of
     its strand. So that it mints above every entry that this region has seen, the last ID of the home strand
     is moved up to entries that are ahead of the clock:

        clock here       10:00:00.000
        entry of s1      10:00:07.123-4       from a region whose clock is 7 s ahead
        home strand s2   10:00:07.123-3       its next ID is 10:00:07.123-4 of writer 2: above that entry

     Entries that are not ahead need nothing. Those that are ahead by more than CLOCK_BOUND_MS are ignored: a
     broken clock must not carry all regions into the far future. ]]
local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

local function predecessor(number) -- of one above 0
  local kept, zeros = string.match(number, '^(%d-)(0*)$')
  local digits = string.sub(kept, 1, -2) .. string.char(string.byte(kept, -1) - 1) .. string.rep('9', #zeros)
  return (string.gsub(digits, '^0+(%d)', '%1'))
end

local function end_of_millisecond_before(ms) return predecessor(ms) .. '-' .. MAX_SEQ end

-- Ahead of the clock: the engine would mint below it by itself.
local function is_ahead(id, now)
  local ms = tonumber(string.match(id, '^%d+'))
  return ms >= now and ms <= now + CLOCK_BOUND_MS
end

--[[ The last ID of a home strand that mints after entry `id` of strand `label`, and is itself not above that
     entry; nil if the clock alone will do, or if the entry is too far ahead. ]]
local function floor_after(home, label, id, now)
  if not is_ahead(id, now) then return nil end
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  local kind, writer = split_label(string.match(label, '^[^:]+'))
  local own = tonumber(writer_of(home))
  if #seq > 15 then return ms .. '-' .. MAX_SEQ end
  if kind == KIND.GENERATED then
    if tonumber(writer) >= own then return id end
    return seq == '0' and end_of_millisecond_before(ms) or ms .. '-' .. predecessor(seq)
  end
  if tonumber(seq) < own then return end_of_millisecond_before(ms) end
  return ms .. '-' .. string.format('%.0f', math.floor((seq - own) / WRITERS))
end

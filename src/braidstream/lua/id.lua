--[[ Native IDs are compared as text: Lua's numbers are doubles and would round them. ]]
local MAX_SEQ = '18446744073709551615'

local function less_number(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function successor(number)
  local kept, nines = string.match(number, '^(%d-)(9*)$')
  if kept == '' then return '1' .. string.rep('0', #nines) end
  return string.sub(kept, 1, -2) .. string.char(string.byte(kept, -1) + 1) .. string.rep('0', #nines)
end

local function less(a, b)
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return less_number(a_ms, b_ms) end
  return less_number(a_seq, b_seq)
end

-- The smallest ID above `id`.
local function following(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  if seq == MAX_SEQ then return successor(ms) .. '-0' end
  return ms .. '-' .. successor(seq)
end

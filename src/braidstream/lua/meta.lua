--[[ The registry of a stream: how its fields are read. META names them (model/fields.py); beside those there is one field
     for each strand, by its label: `s2` or `c2` -> `<life>:<state>:<cut>`
       +   the key exists; if its last ID is still the cut, nothing was appended since it was created again
       -   deleted; the cut is its last ID before the deletion ]]

-- Splits a field into its prefix and the rest; nil without a prefix.
local function split_field(field) return string.match(field, '^(%a:)(.*)$') end

-- Splits a strand's label into kind and writer; nil for any other field.
local function split_label(field)
  local kind, writer = string.match(field, '^(%a)(%d+)$')
  if kind == KIND.GENERATED or kind == KIND.CHOSEN then return kind, writer end
end

local function is_chosen(label) return split_label(label) == KIND.CHOSEN end

local function read_strand(value) return string.match(value, '^(%d+):([+-]):(%d+%-%d+)$') end

-- Life and cut of a strand that exists; nil for a deleted strand and for any other field.
local function strand_there(field, value)
  if not split_label(field) then return nil end
  local life, state, cut = read_strand(value)
  if state == '+' then return life, cut end
end

local function registered(meta, label)
  local value = redis.call('HGET', meta, label)
  if value then return read_strand(value) end
end

local function register(meta, label, life, state, cut)
  redis.call('HSET', meta, label, life .. ':' .. state .. ':' .. cut)
end

-- Called when the key exists: if the registry lacks it, the registry lost the field.
local function register_again(meta, label, life) redis.call('HSETNX', meta, label, life .. ':+:0-0') end

-- The writer of a strand's or a journal's key.
local function writer_of(key) return string.match(key, '^' .. KEY_PREFIX .. '(%d+):') end

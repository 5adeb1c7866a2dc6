--[[ The registry of a stream: how its fields are read. META names them (model/fields.py); beside those there is one field
     for each strand, by its label: `s2` or `c2`, of a log `t<epoch>.2` -> `<life>:<state>:<cut>`
       +   the key exists; if its last ID is still the cut, nothing was appended since it was created again
       -   deleted; the cut is its last ID before the deletion ]]

-- Splits a field into its prefix and the rest; nil without a prefix.
local function split_field(field) return string.match(field, '^(%a:)(.*)$') end

-- Splits a strand's label into kind and writer; nil for any other field.
local function split_label(field)
  local kind, writer = string.match(field, '^(%a)(%d+)$')
  if kind == KIND.GENERATED or kind == KIND.CHOSEN then return kind, writer end
  local epoch
  kind, epoch, writer = string.match(field, '^(%a)(%d+)%.(%d+)$')
  if kind == KIND.LOG then return kind, writer, epoch end
end

--[[ What is known of logs (log.lua), in one table: the main chunk has room for 200 locals. ]]
local logs = {}

-- What is known of deadlines (deadline.lua), likewise.
local deadline = {}

-- What was trimmed (trim.lua), likewise.
local trims = {}

function logs.is_label(label) return split_label(label) == KIND.LOG end

local function is_chosen(label) return split_label(label) == KIND.CHOSEN end

local function read_strand(value)
  if #value <= 64 then return string.match(value, '^(%d+):([+-]):(%d+%-%d+)$') end
end

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

--[[ The error if a caller knows a strand (its `word` says so) that the registry has never had. Deleted strands stay
     registered, so the server was emptied: the caller must read first which region it is now. Else nil. ]]
local function forgotten(meta, label, word)
  if not string.find(word or '', 'known', 1, true) or registered(meta, label) then return nil end
  return redis.error_reply('BSSTALE this server does not know the strand ' .. label)
end

local function register(meta, label, life, state, cut)
  redis.call('HSET', meta, label, life .. ':' .. state .. ':' .. cut)
end

-- Called when the key exists: if the registry lacks it, the registry lost the field. Clients that cached the stream without
-- it look again, because the stamp of the bell is another one (strand.lua).
local function register_again(meta, label, life, cut)
  if redis.call('HSETNX', meta, label, life .. ':+:' .. (cut or '0-0')) == 0 then return end
  local bell = redis.call('HGET', meta, META.BELL)
  if bell then redis.call('HSET', meta, META.BELL, string.format('%.0f', bell + 1)) end
end

-- The writer of a strand's or a journal's key.
local function writer_of(key) return string.match(key, '^' .. KEY_PREFIX .. '(%d+):') end

--[[ A log (log.lua): a strand of it is there, or its home has one that has not come here yet. `home` lists its epochs,
     the last one is where it is written. ]]
function logs.last_word(text) return string.match(' ' .. (text or ''), '^.* (%S+)$') or '' end

function logs.home_label(homes)
  local epoch, writer = string.match(logs.last_word(homes), '^(%d+)%.(%d+):[%d:]+$')
  if epoch then return KIND.LOG .. epoch .. '.' .. writer end
end

function logs.is_log(meta)
  local fields = redis.call('HGETALL', meta)
  local homes, known = nil, {}
  for at = 1, #fields, 2 do
    if fields[at] == META.HOMES then homes = fields[at + 1] end
    if logs.is_label(fields[at]) then
      known[fields[at]] = true
      if strand_there(fields[at], fields[at + 1]) then return true end
    end
  end
  local home = logs.home_label(homes)
  return home ~= nil and not known[home]
end

-- Why a command that chooses IDs cannot run: the name is a log's.
function logs.refused(meta, command)
  if not logs.is_log(meta) then return nil end
  local tag = string.match(meta, '^' .. KEY_PREFIX .. '%a+:(.*)$')
  local name = string.match(tag, '^%+(.*)$') or string.match(tag, '^!{!}(.*)$') or string.sub(tag, 2, -2)
  name = string.gsub(name, '[\r\n]', ' ')
  return redis.error_reply('ERR ' .. command .. " refused by braidstream: '" .. name .. "' is a log, its offsets are generated. Use TWRITE.")
end

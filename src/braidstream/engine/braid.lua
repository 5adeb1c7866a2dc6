--[[ A stream as a whole: whether it exists, its deletion, its adoption of a copy.

     Callers name every strand (<label>:<life>, one for each key after meta). If the registry knows
     another set, the caller's knowledge is stale: nothing is done (BSSTALE), it looks again. ]]

local STALE = 'BSSTALE the strands of this stream have changed'

local function cuts_of(meta, keys, args, first_arg)
  local given, count = {}, #keys - 1
  for at = 1, count do given[args[first_arg + at - 1]] = true end
  local cuts, found = {}, 0
  local fields = redis.call('HGETALL', meta)
  for at = 1, #fields, 2 do
    if string.match(fields[at], '^[sc]%d+$') then
      local life, cut = string.match(fields[at + 1], '^(%d+):(.*)$')
      local strand = fields[at] .. ':' .. life
      if not given[strand] then return nil end
      cuts[strand], found = cut, found + 1
    elseif fields[at] == 'live' then
      cuts.live = true
    end
  end
  if found ~= count then return nil end
  return cuts
end

--[[ A stream exists while something ends past its cut: entries, an ID that was set, or entries that
     were there and were taken out one by one. `live` is for one that was made empty on purpose. ]]
local function lives(cuts, keys, args, first_arg)
  if cuts.live then return true end
  for at = 2, #keys do
    if end_of(keys[at], cuts[args[first_arg + at - 2]]) ~= '0-0' then return true end
  end
  return false
end

--[[ braid_exists: FCALL_RO bs_braid_exists n <meta> <strand>... <label:life>...
     Returns 1 or 0. ]]
local function braid_exists(keys, args)
  local cuts = cuts_of(keys[1], keys, args, 1)
  if not cuts then return redis.error_reply(STALE) end
  return lives(cuts, keys, args, 1) and 1 or 0
end

--[[ braid_delete: DEL. FCALL bs_braid_delete n <meta> <strand>... <label:life>...
     Returns 1 if the stream existed. Each strand is emptied and keeps its last ID, so nothing is
     minted twice; the cut says that it is gone.
     Why a function: between taking the key away and setting the last ID, nobody may append. ]]
local function braid_delete(keys, args)
  local cuts = cuts_of(keys[1], keys, args, 1)
  if not cuts then return redis.error_reply(STALE) end
  local existed = lives(cuts, keys, args, 1)
  for at = 2, #keys do
    local last = last_of(keys[at])
    if last then
      local label, life = string.match(args[at - 1], '^(%a%d+):(%d+)$')
      redis.call('UNLINK', keys[at])
      create_empty(keys[at])
      redis.call('XSETID', keys[at], last)
      redis.call('HSET', keys[1], label, life .. ':' .. last)
    end
  end
  redis.call('HDEL', keys[1], 'live')
  return existed and 1 or 0
end

--[[ braid_add: XADD NOMKSTREAM: append to the home strand only if the stream exists.
     FCALL bs_braid_add n <meta> <home> <strand>... <label:life of each>... <the rest of XADD>
     Returns the ID, or nil. ]]
local function braid_add(keys, args)
  local cuts = cuts_of(keys[1], keys, args, 1)
  if not cuts then return redis.error_reply(STALE) end
  if not lives(cuts, keys, args, 1) then return false end
  return redis.call('XADD', keys[2], 'NOMKSTREAM', unpack(args, #keys))
end

--[[ braid_adopt: a finished copy becomes the `c` strand's next life, and the stream exists.
     FCALL bs_braid_adopt 4 <meta> <s> <copy> <c of the next life> <s label> <c label> <next life> <floor>
     The caller has deleted what the stream was before, in the same MULTI. Returns OK. ]]
local function braid_adopt(keys, args)
  redis.call('PERSIST', keys[3])
  redis.call('RENAME', keys[3], keys[4])
  redis.call('HSET', keys[1], args[2], args[3] .. ':0-0', 'live', '1')
  move_minted_on({ keys[1], keys[2] }, args[1], args[4])
  return redis.status_reply('OK')
end

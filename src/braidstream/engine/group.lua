--[[ Groups: made, moved and destroyed on all strands at once.

     FCALL bs_group_<verb> n <meta> <strand>... <group> <start> <flag> (<label> <life> <from> <entries read>)...
     One quadruple for each strand key, in order. If the registry has a strand that is not named,
     nothing is done (BSSTALE). ]]

local function strands_of(keys, args)
  local named, strands = {}, {}
  for at = 2, #keys do
    local first = 4 + (at - 2) * 4
    strands[#strands + 1] =
      { key = keys[at], label = args[first], life = args[first + 1], from = args[first + 2], read = args[first + 3] }
    named[args[first] .. ':' .. args[first + 1]] = true
  end
  local fields = redis.call('HGETALL', keys[1])
  for at = 1, #fields, 2 do
    local life = string.match(fields[at + 1], '^(%d+):%+')
    if life and string.match(fields[at], '^[sc]%d+$') and not named[fields[at] .. ':' .. life] then return nil end
  end
  return strands
end

local function entries_read(strand)
  if strand.read == '' then return {} end
  return { 'ENTRIESREAD', strand.read }
end

--[[ group_create: <flag> is MKSTREAM or empty. Strands that are named and not there are made: a waiting
     reader can only wait for what is there. Returns OK. ]]
local function group_create(keys, args)
  local meta, group, start = keys[1], args[1], args[2]
  local strands = strands_of(keys, args)
  if not strands then return redis.error_reply('BSSTALE the strands of this stream have changed') end
  if args[3] == '' and not exists(meta) then return redis.error_reply('BSNOKEY') end
  if redis.call('HEXISTS', meta, 'g:' .. group) == 1 then
    return redis.error_reply('BUSYGROUP Consumer Group name already exists')
  end
  for _, strand in ipairs(strands) do
    if string.sub(strand.label, 1, 1) == 'c' then
      if not is_current(meta, strand.key, strand.label, strand.life) then
        return redis.error_reply('BSSTALE ' .. strand.label)
      end
      enter(meta, strand.key, strand.label, strand.life)
    elseif redis.call('EXISTS', strand.key) == 0 then
      make(meta, strand.key, strand.label)
    end
  end
  for _, strand in ipairs(strands) do
    redis.call('XGROUP', 'CREATE', strand.key, group, strand.from, unpack(entries_read(strand)))
  end
  redis.call('HSET', meta, 'g:' .. group, start)
  return redis.status_reply('OK')
end

--[[ group_setid: move the group, on every strand. Returns OK. ]]
local function group_setid(keys, args)
  local meta, group, start = keys[1], args[1], args[2]
  local strands = strands_of(keys, args)
  if not strands then return redis.error_reply('BSSTALE the strands of this stream have changed') end
  if redis.call('HEXISTS', meta, 'g:' .. group) == 0 then return redis.error_reply('BSNOGROUP') end
  for _, strand in ipairs(strands) do
    redis.call('XGROUP', 'SETID', strand.key, group, strand.from, unpack(entries_read(strand)))
  end
  redis.call('HSET', meta, 'g:' .. group, start)
  return redis.status_reply('OK')
end

--[[ group_destroy: returns 1 if it was there. ]]
local function group_destroy(keys, args)
  local meta, group = keys[1], args[1]
  local strands = strands_of(keys, args)
  if not strands then return redis.error_reply('BSSTALE the strands of this stream have changed') end
  if redis.call('HDEL', meta, 'g:' .. group) == 0 then return 0 end
  for _, strand in ipairs(strands) do redis.call('XGROUP', 'DESTROY', strand.key, group) end
  return 1
end

--[[ A stream as a whole: its deletion, its adoption of a copy. It exists while one of its strands does. ]]

--[[ braid_delete: DEL. FCALL bs_braid_delete n <meta> <strand>... <label:life>...
     Returns 1 if the stream existed. The strands' last IDs go to the registry.

     The caller names every strand that may be there. If the registry has one more, nothing is done
     (BSSTALE): the caller looks again.
     Why a function: between taking the keys away and noting their last IDs, nobody may append. ]]
local function braid_delete(keys, args)
  local given, strands, groups = {}, {}, {}
  for at = 1, #args do given[args[at]] = keys[at + 1] end
  local fields = redis.call('HGETALL', keys[1])
  for at = 1, #fields, 2 do
    local life, state, cut = string.match(fields[at + 1], '^(%d+):([+-]):(.*)$')
    if string.match(fields[at], '^g:') then
      groups[#groups + 1] = fields[at]
    elseif string.match(fields[at], '^[sc]%d+$') and state == '+' then
      local key = given[fields[at] .. ':' .. life]
      if not key then return redis.error_reply('BSSTALE the strands of this stream have changed') end
      strands[fields[at]] = { key = key, life = life, cut = cut }
    end
  end
  local existed = 0
  for label, strand in pairs(strands) do
    local last = last_of(strand.key)
    if last then
      existed = 1
      redis.call('UNLINK', strand.key)
    end
    register(keys[1], label, strand.life, '-', last or after_loss(strand.cut))
  end
  for _, field in ipairs(groups) do redis.call('HDEL', keys[1], field) end
  return existed
end

--[[ braid_adopt: a finished copy becomes the `c` strand, in a life in which it was never used.
     FCALL bs_braid_adopt 4 <meta> <s> <copy> <c> <s label> <c label> <life> <floor>
     The caller has deleted what the stream was before, in the same MULTI. Returns OK. ]]
local function braid_adopt(keys, args)
  redis.call('PERSIST', keys[3])
  redis.call('RENAME', keys[3], keys[4])
  register(keys[1], args[2], args[3], '+', '0-0')
  move_minted_on(keys, args[1], args[4])
  return redis.status_reply('OK')
end

--[[ A stream as a whole: its deletion, its adoption of a copy. It exists while one of its strands does. ]]

--[[ braid_delete: DEL. FCALL bs_braid_delete n <meta> <strand>... <writer> <label:life>... [<command> <name>]
     <command>, with the name: only for a user who may also delete the plain key so, for that is what was said.
     Returns 1 if the stream existed. The strands' last IDs go to the registry. Groups that peers make
     meanwhile die of it as well: the writer's count of deletions goes up (merge.lua); 0 is no writer,
     the region has no peers.

     The caller names every strand that may be there. If the registry has one more, nothing is done
     (BSSTALE): the caller looks again.
     Why a function: between taking the keys away and noting their last IDs, nobody may append. ]]
-- What deletes them; or nil, and the error.
local function delete_strands(meta, writer, named)
  local strands, groups, moved = {}, {}, {}
  local fields = redis.call('HGETALL', meta)
  for at = 1, #fields, 2 do
    local life, state, cut = string.match(fields[at + 1], '^(%d+):([+-]):(.*)$')
    if string.match(fields[at], '^[gvkbhlm]:') then
      groups[#groups + 1] = fields[at]
    elseif string.match(fields[at], '^f:') then
      moved[string.sub(fields[at], 3)] = true
    elseif string.match(fields[at], '^[sc]%d+$') and state == '+' then
      local key = named[fields[at] .. ':' .. life]
      if not key then return nil, redis.error_reply('BSSTALE the strands of this stream have changed') end
      strands[fields[at]] = { key = key, life = life, cut = cut }
    end
  end
  local refused = denied(meta, 'EXISTS', 'XINFO STREAM', 'TIME', 'UNLINK', 'HGET', 'HSET')
  if not refused and #groups > 0 then refused = denied(meta, 'HDEL') end
  if refused then return nil, refused end
  return function()
    local existed = 0
    for label, strand in pairs(strands) do
      local last = last_of(strand.key)
      if last then
        existed = 1
        redis.call('UNLINK', strand.key)
        -- Peers may have been moved on by the same ID, and would not come back: only alone can we.
        if writer == '0' and less(this_moment(), last) then last = really_last(meta, label, last) end
      end
      if moved[label] then redis.call('HSET', meta, 'f:' .. label, '') end
      -- Of a copy that was lost nothing was seen, so nothing is deleted but what was before.
      local own = writer == '0' or string.sub(label, 2) == writer
      local lost = own and after_loss(strand.cut) or strand.cut
      register(meta, label, strand.life, '-', last or lost)
    end
    for _, group in ipairs(groups) do
      redis.call('HDEL', meta, group)
      if string.sub(group, 1, 2) == 'g:' then redis.call('UNLINK', turn_of(meta, string.sub(group, 3))) end
    end
    if #groups > 0 then ring(meta) end
    if existed == 1 then count_deletion(meta, 'x', writer) end
    forget_idempotence(meta, writer == '0')
    return existed
  end
end

local function braid_delete(keys, args)
  local named = {}
  for at = 2, #keys do named[args[at]] = keys[at] end
  local command, name = args[#keys + 1], args[#keys + 2]
  if command and not redis.acl_check_cmd(command, name) then return no_permission(string.lower(command)) end
  local delete, refused = delete_strands(keys[1], args[1], named)
  return refused or delete()
end

--[[ braid_adopt: a finished copy becomes the stream: the `c` strand, in a life in which it was never used.
     FCALL bs_braid_adopt n <meta> <s> <copy> <c> <strand of it>... [<source's meta> <strand of it>...] [<name>]
           <s label> <c label> <life> <floor> <length of the copy> <writer>
           <how many strands> <label:life>... <how many strands of the source, or -1> <label:life>... <0|1: name>
           (<group of the copy> <where it starts on other strands>)...
     What the stream was is deleted, and so is the source where one is given (RENAME), and a plain key.
     Everything is checked before the first write. Returns OK.
     Why a function: a half of it would lose a stream. ]]
local function braid_adopt(keys, args)
  local meta, copy, c = keys[1], keys[3], keys[4]
  if redis.call('EXISTS', copy) == 0 or redis.call('XLEN', copy) ~= tonumber(args[5]) then
    return redis.error_reply('BSCOPY the copy is not what it was')
  end
  local key, at, named = 5, 8, {}
  for _ = 1, tonumber(args[7]) do
    named[args[at]], key, at = keys[key], key + 1, at + 1
  end
  local delete, refused = delete_strands(meta, args[6], named)
  local source, delete_source = tonumber(args[at]), nil
  at = at + 1
  if source >= 0 then
    local source_meta, source_named = keys[key], {}
    key = key + 1
    for _ = 1, source do
      source_named[args[at]], key, at = keys[key], key + 1, at + 1
    end
    if not refused then delete_source, refused = delete_strands(source_meta, args[6], source_named) end
  end
  refused = refused or denied(copy, 'RENAME', 'HSETNX', 'XSETID', 'XGROUP CREATE', 'XGROUP DESTROY')
  if refused then return refused end
  delete()
  if delete_source then delete_source() end
  if args[at] == '1' then redis.call('UNLINK', keys[key]) end
  redis.call('RENAME', copy, c)
  register(meta, args[2], args[3], '+', '0-0')
  for group = at + 1, #args, 2 do note_group(meta, args[group], args[group + 1]) end
  move_minted_on(keys, args[1], args[4])
  -- With peers, what never held an entry and has no group is nothing: it could not exist elsewhere.
  if args[6] ~= '0' then vanish(meta, { [args[2] .. ':' .. args[3]] = c, [args[1] .. ':0'] = keys[2] }) end
  return redis.status_reply('OK')
end

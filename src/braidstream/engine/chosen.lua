--[[ IDs the user chose go, as they are, to the writer's `c` strand. Within a region IDs ascend,
     whichever strand they go to:

        s (minted)   1-0 ----------- 5-0                 last native ID moved on to the floor of 7-3,
        c (chosen)          3-1             7-3          so that the next minted ID sorts after it

     Native and user IDs of `s` differ, and only the client can translate. It sends two natives:
       bound   the last native of `s` whose image is below the chosen ID: `s` must not be past it
       floor   the last native of `s` whose image is not above it: `s` is moved on to it

     A stream that was deleted starts over: smaller IDs are free again. A strand cannot go back, so
     the `c` strand gets a next life, under a key of its own. All of the old life was cut by then. ]]

local SMALLER = 'ERR The ID specified in XADD is equal or smaller than the target stream top item'
local EXHAUSTED = 'ERR The stream has exhausted the last possible ID, unable to add more items'

-- The `c` strand that can take `id`: this life's; or the next one's, where this one was cut past it, or
-- was lost behind our back (copies elsewhere may know IDs of it that we do not).
local function room_for(keys, label, life, id)
  local c, c_next = keys[3], keys[4]
  local has_life, state, cut = registered(keys[1], label)
  if (has_life or '0') ~= life then return nil, 'BSSTALE ' .. label .. ' has another life here' end
  local last = last_of(c)
  local lost = state == '+' and not last
  local past = state and (last or cut) == cut and cut ~= '0-0' and not less(cut, id)
  if lost or past then
    return { key = c_next, old = c, last = '0-0', life = string.format('%d', life + 1) }
  end
  if not last or last == cut then return { key = c, last = '0-0', missing = not last } end
  return { key = c, last = last }
end

local function move_in(keys, label, room)
  if room.old then
    redis.call('UNLINK', room.old)
    create_empty(room.key)
    register(keys[1], label, room.life, '+', '0-0')
  elseif room.missing then
    make(keys[1], room.key, label)
  end
end

local function move_minted_on(keys, label, floor)
  if redis.call('EXISTS', keys[2]) == 0 then make(keys[1], keys[2], label) end
  redis.call('HSETNX', keys[1], label, '0:+:0-0')
  if less(last_of(keys[2]), floor) then redis.call('XSETID', keys[2], floor) end
end

--[[ chosen_add: append an entry under an ID the user chose.
     FCALL bs_chosen_add 4|5 <meta> <s> <c> <c of the next life> [<name>]
           <s label> <c label> <life of c> <id> <bound> <floor> <field> <value>...
     Returns the ID.
     Why a function: the check and the two strands must agree. ]]
local function chosen_add(keys, args)
  local s_label, c_label, id, bound = args[1], args[2], args[4], args[5]
  if keys[5] and redis.call('EXISTS', keys[5]) == 1 then
    return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
  end
  local _, _, s_cut = registered(keys[1], s_label)
  local room, stale = room_for(keys, c_label, args[3], id)
  if not room then return redis.error_reply(stale) end
  if room.last == MAX_SEQ .. '-' .. MAX_SEQ then return redis.error_reply(EXHAUSTED) end
  if not less(room.last, id) or less(bound, end_of(keys[2], s_cut)) then return redis.error_reply(SMALLER) end
  move_in(keys, c_label, room)
  local reply = redis.pcall('XADD', room.key, id, unpack(args, 7))
  if type(reply) == 'table' and reply.err then return reply end
  move_minted_on(keys, s_label, args[6])
  return reply
end

local function counters(added, deleted)
  local options = {}
  if added ~= '' then options = { 'ENTRIESADDED', added } end
  if deleted ~= '' then
    options[#options + 1] = 'MAXDELETEDID'
    options[#options + 1] = deleted
  end
  return options
end

--[[ chosen_setid: XSETID. The last ID moves on, on both strands; it never moves back.
     FCALL bs_chosen_setid 4 <meta> <s> <c> <c of the next life> <s label> <c label> <life of c> <id> <floor>
           <s entries added> <c entries added> <max deleted> <max deleted of s>     (empty where not given)
     Returns OK. The counters are the whole stream's: the client has split them over the strands. ]]
local function chosen_setid(keys, args)
  local s_label, c_label, id = args[1], args[2], args[4]
  local room, stale = room_for(keys, c_label, args[3], id)
  if not room then return redis.error_reply(stale) end
  if less(id, room.last) then
    return redis.error_reply('ERR The ID specified in XSETID is smaller than the target stream top item')
  end
  move_in(keys, c_label, room)
  redis.call('XSETID', room.key, id, unpack(counters(args[7], args[8])))
  move_minted_on(keys, s_label, args[5])
  local rest = counters(args[6], args[9])
  if #rest > 0 then redis.call('XSETID', keys[2], last_of(keys[2]), unpack(rest)) end
  return redis.status_reply('OK')
end

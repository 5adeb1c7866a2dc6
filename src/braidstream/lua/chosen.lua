--[[ Entries with user-chosen IDs go, with these IDs, to the writer's `c` strand. Within a region IDs ascend
     over both strands:

        s (generated)   1-0 ----------- 5-0                 last native ID raised to the floor of 7-3,
        c (chosen)             3-1             7-3          so that the next generated ID sorts after it

     Native and user IDs of `s` differ, and only the client translates. It sends two native IDs:
       bound   the last native ID of `s` whose user ID is below the chosen ID: `s` must not be past it
       floor   the last native ID of `s` whose user ID is not above it: `s` is raised to it

     After a deletion a stream starts over: smaller IDs are allowed again. A native stream cannot go back, so
     after a deletion the `c` strand begins its next life, in a new key. ]]
-- fills: chosen
-- uses: bells, deadline, extents, ids, logs, registry, rights, streams, valid
do
  local SMALLER = 'ERR The ID specified in XADD is equal or smaller than the target stream top item'
  local EXHAUSTED = 'ERR The stream has exhausted the last possible ID, unable to add more items'

  --[[ Whether the `c` strand can be written in `life`: the present life, or the next one after a deletion. A life whose
       key was lost goes on: a next one would delete it in the other regions, and they have what was lost. ]]
  local function follows(life, has_life, state)
    if not has_life then return life == '0' end
    return life == (state == '-' and ids.successor(has_life) or has_life)
  end

  function chosen.is_current(meta, label, life) return follows(life, registry.registered(meta, label)) end

  -- Its last ID. If the key was lost, all up to the cut was deleted before.
  local function last_chosen(c, life, has_life, cut) return extents.last(c) or (has_life == life and cut) or '0-0' end

  -- Reset the mark of an earlier life: it does not apply to the IDs of this one.
  function chosen.begin_life(meta, label, life)
    local has_life = registry.registered(meta, label)
    if has_life and has_life ~= life then redis.call('HSET', meta, META.NEW .. label, '0-0') end
  end

  function chosen.ensure(meta, c, label, life, bell)
    local has_life = registry.registered(meta, label)
    if redis.call('EXISTS', c) == 1 then
      if not has_life then registry.register_again(meta, label, life) end
    elseif has_life == life then
      streams.create(meta, c, label, true, bell) -- it was lost
    else
      chosen.begin_life(meta, label, life)
      -- Created for groups to wait on: see settle_new (acks.lua).
      if not has_life and not redis.call('HGET', meta, META.NEW .. label) then
        redis.call('HSET', meta, META.NEW .. label, '?')
      end
      streams.create_empty(c)
      streams.join_groups(meta, c, label, life, bell)
      registry.register(meta, label, life, '+', '0-0')
      deadline.arm(meta, c)
    end
  end

  -- last: the last ID of the `s` strand, if the caller has just read it.
  function chosen.raise_generated(keys, label, floor, bell, last)
    last = last or extents.last(keys[2])
    if not last then
      streams.create(keys[1], keys[2], label, true, bell)
      last = extents.last(keys[2])
    end
    registry.register_again(keys[1], label, '0')
    if not ids.less(last, floor) then return end
    if ids.less(streams.this_moment(), floor) then
      redis.call(
        'HSET',
        keys[1],
        META.FUTURE .. label,
        streams.last_before_future(keys[1], label, last) .. ' ' .. floor
      )
    end
    extents.set_id(keys[2], floor)
  end

  -- The error if the caller lacks a right to write `c`, to raise `s`, or to create one of them; else nil.
  local function writing_refused(meta, s, c, s_label, bell)
    local refused = rights.denied(meta, 'XSETID', 'HSET', 'HSETNX', 'TIME', unpack(deadline.rights(meta)))
    if not refused and redis.call('EXISTS', c) == 0 then
      refused = rights.denied(meta, 'XADD', 'XGROUP CREATE', 'XGROUP DESTROY') or streams.joining_refused(meta, bell)
    end
    if not refused and redis.call('EXISTS', s) == 0 then refused = streams.create_refused(meta, s_label, bell) end
    return refused
  end

  function chosen.exists(meta)
    local fields = redis.call('HGETALL', meta)
    for at = 1, #fields, 2 do
      if registry.there(fields[at], fields[at + 1]) then return true end
    end
    return false
  end

  --[[ chosen_add: append an entry under an ID the user chose.
       FCALL bs_chosen_add n <meta> <s> <c> [<name>] [<bell>]
             <s label> <c label> <life of c> <id> <bound> <floor> <words> <stamp> <field> <value>...
       <words>: NOMKSTREAM, known, both or none. Returns the ID; nil if NOMKSTREAM is given and the stream does not
       exist. BSSTALE if the caller knows the `s` strand and this server does not.
       Why a function: the check and the writes to two strands must be one step. ]]
  function chosen.add(keys, args)
    local meta, s, c = keys[1], keys[2], keys[3]
    local s_label, c_label, life, id, bound = args[1], args[2], args[3], args[4], args[5]
    valid.need(streams.is_id(id) and streams.is_id(bound) and streams.is_id(args[6]) and valid.number(life), 'ID')
    local bell = bells.take(keys, args[8])
    local emptied = registry.forgotten(meta, s_label, args[7])
    if emptied then return emptied end
    local _, not_settled = deadline.settle(meta, keys)
    if not_settled then return not_settled end
    if keys[4] and streams.is_taken(meta, keys[4]) then
      return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
    end
    local refused = logs.refused(meta, 'XADD')
    if refused then return refused end
    if string.find(args[7], 'NOMKSTREAM', 1, true) and not chosen.exists(meta) then return false end
    local has_life, state, cut = registry.registered(meta, c_label)
    if not follows(life, has_life, state) then return redis.error_reply('BSSTALE ' .. c_label) end
    local last, s_last = last_chosen(c, life, has_life, cut), extents.last(s)
    if last == ids.MAX .. '-' .. ids.MAX then return redis.error_reply(EXHAUSTED) end
    local is_begun = s_last and s_last ~= select(3, registry.registered(meta, s_label))
    if not ids.less(last, id) or (is_begun and ids.less(bound, s_last)) then return redis.error_reply(SMALLER) end
    refused = writing_refused(meta, s, c, s_label, bell)
    if refused then return refused end
    if not has_life then redis.call('HSET', meta, META.NEW .. c_label, id) end
    deadline.end_chosen(meta, c)
    chosen.ensure(meta, c, c_label, life, bell)
    local reply = redis.pcall('XADD', c, id, unpack(args, 9))
    if type(reply) == 'table' and reply.err then return reply end
    chosen.raise_generated(keys, s_label, args[6], bell, s_last)
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

  --[[ chosen_setid: XSETID. Raises the last ID of both strands; it never lowers one.
       FCALL bs_chosen_setid n <meta> <s> <c> [<bell>] <s label> <c label> <life of c> <id> <floor>
             <s entries added> <c entries added> <max deleted> <max deleted of s> <stamp>  (empty where not given)
       Returns OK. The client has split the stream's counters over the strands. ]]
  function chosen.setid(keys, args)
    local meta, s, c, c_label, life, id = keys[1], keys[2], keys[3], args[2], args[3], args[4]
    valid.need(streams.is_id(id) and streams.is_id(args[5]) and valid.number(life), 'ID')
    local bell = bells.take(keys, args[10])
    local _, not_settled = deadline.settle(meta, keys)
    if not_settled then return not_settled end
    local refused = logs.refused(meta, 'XSETID')
    if refused then return refused end
    local has_life, state, cut = registry.registered(meta, c_label)
    if not follows(life, has_life, state) then return redis.error_reply('BSSTALE ' .. c_label) end
    if ids.less(id, last_chosen(c, life, has_life, cut)) then
      return redis.error_reply('ERR The ID specified in XSETID is smaller than the target stream top item')
    end
    refused = writing_refused(meta, s, c, args[1], bell)
    if refused then return refused end
    chosen.ensure(meta, c, c_label, life, bell)
    extents.set_id(c, id, unpack(counters(args[7], args[8])))
    chosen.raise_generated(keys, args[1], args[5], bell)
    local rest = counters(args[6], args[9])
    if #rest > 0 then extents.set_id(s, extents.last(s), unpack(rest)) end
    return redis.status_reply('OK')
  end
end

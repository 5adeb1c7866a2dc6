--[[ A strand: the native stream of one writer. When a native key is deleted, the engine forgets its last ID
     and could generate that ID again. So a function that deletes a strand saves the last ID in the registry
     in the same step, and the function that creates the strand again restores it. ]]
-- fills: streams
-- uses: bells, clock, deadline, extents, ids, logs, registry, returned, rights, trims, valid
do
  local function has_had_entries(key) return redis.call('EXISTS', key) == 0 or extents.of(key).added > 0 end

  function streams.create_empty(key)
    redis.call('XGROUP', 'CREATE', key, 'bs', '0', 'MKSTREAM')
    redis.call('XGROUP', 'DESTROY', key, 'bs')
  end

  --[[ A group is a native group on every strand of the stream. For strands that are created later the registry
       keeps its start: `g:<name>` -> `<user ID> <native> <native> <writer>`. The first native ID is for `s`
       strands of writers up to that number, the second for those above; the client has computed both. A `c`
       strand starts at the user ID. A trailing ` told` means that the user passed ENTRIESREAD. ]]
  function streams.start_of(value, label)
    local user, low, high, bound = string.match(value, '^(%S+) (%S+) (%S+) (%d+)')
    local kind, writer = registry.split_label(label)
    if kind ~= KIND.GENERATED then return user end
    return tonumber(writer) <= tonumber(bound) and low or high
  end

  -- Acknowledged without a gap, in any region: `k:<group>` -> `<label:life> <native>` ... (merge.lua)
  function streams.acked_of(value)
    local acked = {}
    valid.each_pair(value, function(strand, id) acked[strand] = id end)
    return acked
  end

  function streams.has_groups(fields)
    for at = 1, #fields, 2 do
      if registry.split_field(fields[at]) == META.GROUP then return true end
    end
    return false
  end

  -- The error if the stream has groups and the caller's bell is stale; else nil.
  function streams.joining_refused(meta, bell)
    if streams.has_groups(redis.call('HGETALL', meta)) and bells.is_stale(meta, bell) then
      return redis.error_reply(bells.STALE)
    end
  end

  -- Create the stream's groups on a strand, except those in `there`. Each starts where it has acknowledged everything.
  function streams.join_groups(meta, key, label, life, bell, there)
    local fields, groups, moved, acked = redis.call('HGETALL', meta), {}, {}, {}
    for at = 1, #fields, 2 do
      local prefix, group = registry.split_field(fields[at])
      if prefix == META.GROUP then groups[group] = streams.start_of(fields[at + 1], label) end
      if prefix == META.GROUP_MOVED then moved[group] = streams.start_of(fields[at + 1], label) end
      if prefix == META.GROUP_ACKED then acked[group] = streams.acked_of(fields[at + 1])[label .. ':' .. life] end
    end
    for group, start in pairs(groups) do
      start = moved[group] or start
      if acked[group] and ids.less(start, acked[group]) then start = acked[group] end
      if not there or not there[group] then
        redis.call('XGROUP', 'CREATE', key, group, start)
        returned.reopen_all(meta, { key = key }, label .. ':' .. life, group)
      end
    end
    if next(groups) then bells.ring(meta, bell) end
  end

  -- Everything in the strand up to this ID was deleted.
  function streams.deleted_upto(meta, label, cut) return redis.call('HGET', meta, META.LOST .. label) or cut end

  function streams.this_moment() return string.format('%.0f', clock.now_ms()) .. '-' .. ids.MAX end

  --[[ A user-chosen ID in the future raises the `s` strand too; `f:<label>` -> `<native before> <native after>`
       (chosen.lua). If the strand has generated nothing since, this returns its last ID before that. A deletion
       in a region without peers goes back to it, so that deleted IDs of the future block no later ones. ]]
  function streams.last_before_future(meta, label, last)
    local before, floor = string.match(redis.call('HGET', meta, META.FUTURE .. label) or '', '^(%S+) (%S+)$')
    return floor == last and before or last
  end

  -- An ID above every ID that a strand can have generated before its key was lost: after this millisecond, and
  -- after the millisecond that follows its last start (it may have generated ahead of the clock there). In a log:
  -- the time in microseconds, which is more than the offsets that it can have given out.
  function streams.after_loss(label, cut)
    if logs.is_label(label) then
      local now, last = redis.call('TIME'), string.match(cut, '%d+$')
      local start = now[1] .. string.format('%06d', now[2])
      return '0-' .. (ids.less_number(start, last) and last or start)
    end
    local start = string.match(streams.this_moment(), '^%d+')
    local again = ids.successor(string.match(cut, '^%d+'))
    if ids.less_number(start, again) then start = again end
    return start .. '-' .. ids.MAX
  end

  -- Raise the home strand's last ID to `floor`. If the strand does not exist yet, save the floor in `ahead`.
  function streams.raise_home(meta, home, floor)
    local last = extents.last(home)
    if last and ids.less(last, floor) then
      extents.set_id(home, floor)
    elseif not last and ids.less(redis.call('HGET', meta, META.AHEAD) or '0-0', floor) then
      redis.call('HSET', meta, META.AHEAD, floor)
    end
  end

  --[[ Called after a peer's entries up to `last` were applied. Entries ahead of our clock beyond the bound do not
       raise the home strand; `o:<label>` then keeps by how many milliseconds they were ahead on arrival, so that
       MAXLEN finds the oldest entries (commands/removal.py). ]]
  local function follow_clock(meta, home, label, last)
    local now, field = clock.now_ms(), META.AHEAD_MS .. label
    local floor, known = clock.floor_after(home, label, last, now), redis.call('HGET', meta, field)
    if floor then streams.raise_home(meta, home, floor) end
    local ahead = tonumber(string.match(last, '^%d+')) - now
    if ahead > CLOCK_BOUND_MS then
      if not known or math.abs(known - ahead) > 1000 then
        redis.call('HSET', meta, field, string.format('%.0f', ahead))
      end
    elseif known then
      redis.call('HDEL', meta, field)
    end
  end

  -- Where a home strand created now starts: above received entries that are ahead of the clock.
  local function start_ahead(meta, cut)
    local ahead = redis.call('HGET', meta, META.AHEAD)
    if ahead and ids.less(cut or '0-0', ahead) and tonumber(string.match(ahead, '^%d+')) >= clock.now_ms() then
      return ahead
    end
    return cut
  end

  -- Duration and size for XCFGSET, if the engine itself deduplicates (idempotence.lua) and they are not the defaults.
  local function native_settings(meta)
    local native = redis.call('HGET', meta, META.NATIVE)
    if not native then return nil end
    local era, duration, size = string.match(redis.call('HGET', meta, META.IDEMPOTENCE) or '', '^(%d+):(%d+):(%d+):')
    if native == era and (duration ~= '100' or size ~= '100') then return duration, size end
  end

  --[[ Create the key of a strand and register it. It is new, or it was deleted by us (its last ID is restored),
       or it was lost: evicted, expired or deleted by a native command. A lost copy of another writer's strand
       is replicated again; a lost strand of our own must not generate an ID twice. ]]
  function streams.create(meta, strand, label, own, bell)
    local life, state, cut = registry.registered(meta, label)
    local kind = registry.split_label(label)
    streams.create_empty(strand)
    -- Never registered here. If a peer has entries of it, this engine lost them: see settle_new (acks.lua).
    if not life and own then redis.call('HSET', meta, META.NEW .. label, '?') end
    if state == '+' and own then
      -- Lost, not deleted: `l:<label>` keeps the cut of the last real deletion, and peers keep their entries.
      redis.call('HSETNX', meta, META.LOST .. label, cut)
      if kind ~= KIND.CHOSEN then cut = streams.after_loss(label, cut) end
      -- Of chosen IDs a link notes it.
      local resumed = kind ~= KIND.CHOSEN and life .. ' ' .. cut .. ' ' .. ids.following(cut) or ''
      redis.call('HSET', meta, META.RESUMED .. label, resumed)
    end
    local start = own and kind == KIND.GENERATED and start_ahead(meta, cut) or cut
    if start and start ~= '0-0' then extents.set_id(strand, start) end
    local duration, size = native_settings(meta)
    if duration and own and kind == KIND.GENERATED then
      redis.call('XCFGSET', strand, 'IDMP-DURATION', duration, 'IDMP-MAXSIZE', size)
    end
    life = life or select(3, registry.split_label(label)) or '0'
    streams.join_groups(meta, strand, label, life, bell)
    registry.register(meta, label, life, '+', cut or '0-0')
    deadline.arm(meta, strand)
    if own and kind == KIND.GENERATED then -- other IDs do not show when they were written
      local first, now = ids.following(start or '0-0'), string.format('%.0f', clock.now_ms()) .. '-0'
      trims.begin(meta, label, life, ids.less(first, now) and now or first)
    end
  end

  -- The error if `create_strand` would fail: a missing right or a stale bell. A strand without its registry
  -- entry would accept appends that no reader sees.
  function streams.create_refused(meta, label, bell)
    local _, state, cut = registry.registered(meta, label)
    local needs, fields = { 'XGROUP CREATE', 'XGROUP DESTROY', 'HSET' }, redis.call('HGETALL', meta)
    if cut and (state == '+' or cut ~= '0-0') then needs[#needs + 1] = 'XSETID' end
    if state == '+' then needs[#needs + 1] = 'HSETNX' end
    if redis.call('HGET', meta, META.AHEAD) then
      needs[#needs + 1] = 'TIME'
      needs[#needs + 1] = 'XSETID'
    end
    if native_settings(meta) then needs[#needs + 1] = 'XCFGSET' end
    for _, right in ipairs(deadline.rights(meta)) do
      needs[#needs + 1] = right
    end
    local joins = streams.has_groups(fields)
    if joins or state == '+' then
      needs[#needs + 1] = 'TIME'
      needs[#needs + 1] = 'UNLINK'
    end
    if joins and bells.is_stale(meta, bell) then return redis.error_reply(bells.STALE) end
    return rights.denied(meta, unpack(needs))
  end

  -- Whether a plain key prevents a stream of that name. The fence of an adopted stream does not (native.lua).
  function streams.is_taken(meta, name)
    return redis.call('EXISTS', name) == 1 and not redis.call('HGET', meta, META.FENCE)
  end

  --[[ strand_ensure: create and register a strand before its first append, if it is missing.
       FCALL bs_strand_ensure n <meta> <strand> [<name>] [<bell>] <label> [<stamp>] [known]
       Returns 1 if it was created, 0 if it existed. BSSTALE if the stream has groups and the bell is stale, or if
       the caller knows the strand and this server does not.

       <name> is the plain key of the same name; WRONGTYPE if it exists.
       Why a function: two clients may append the first entry at once, and the registry must agree with the keys. ]]
  function streams.ensure(keys, args)
    local meta, strand, label = keys[1], keys[2], args[1]
    if redis.call('EXISTS', strand) == 1 then
      registry.register_again(meta, label, '0')
      return 0
    end
    local emptied = registry.forgotten(meta, label, args[3])
    if emptied then return emptied end
    local _, not_settled = deadline.settle(meta, keys)
    if not_settled then return not_settled end
    local bell = bells.take(keys, args[2] or '')
    if keys[3] and streams.is_taken(meta, keys[3]) then
      return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
    end
    local refused = logs.refused(meta, 'XADD') or streams.create_refused(meta, label, bell)
    if refused then return refused end
    streams.create(meta, strand, label, true, bell)
    return 1
  end

  --[[ strand_undo_ensure: delete a strand that was created for an append that was refused.
       FCALL bs_strand_undo_ensure 2 <meta> <strand> <label>
       Returns 1; 0 if any client appended since. ]]
  function streams.undo_ensure(keys, args)
    local meta, strand, label = keys[1], keys[2], args[1]
    local life, state, cut = registry.registered(meta, label)
    if state ~= '+' or has_had_entries(strand) then return 0 end
    local refused = rights.denied(meta, 'HSET')
    if refused then return refused end
    redis.call('UNLINK', strand)
    registry.register(meta, label, life, '-', cut)
    return 1
  end

  --[[ strand_apply: append what a peer has to our copy of a strand.
       FCALL bs_strand_apply n <meta> <strand> [<home>] [<bell>]
             <label> <life> <after> <upto> <stamp> (<id> <n> <field or value> * n)...
       Returns how many entries were new. BSSTALE if a new copy must join groups and the bell is stale.

       <home> is our own strand: it is raised, so that IDs generated from now on are above the applied entries,
       also if those are ahead of our clock.

       <after> is the ID before the batch at its source. If our copy ends below it, entries are missing in
       between: nothing is applied (BSGAP), and the link continues from our last ID.
       <upto> is the source's position after the batch: above its last entry if later entries were deleted
       there. Entries that the copy has are skipped, so a batch may be sent twice. The first refused entry ends
       the batch: after a later entry the refused one could never be appended.

       Why a function: a pipeline cannot stop at its first error. ]]
  streams.WIDEST = 7800 -- the limit of unpack; wider entries are sent as native commands (replication/link/batches.py)

  function streams.is_strand(label, life)
    local kind, writer, epoch = registry.split_label(label)
    if not kind or not string.match(writer, '^[1-9]%d?%d?%d?$') then return nil end
    return valid.number(life) and (kind ~= KIND.LOG or epoch == life)
  end

  -- Quick: the engine itself refuses an ID that is too high. 41 characters: two numbers of 64 bits.
  function streams.is_id(text) return text and #text <= 41 and string.match(text, '^%d+-%d+$') end

  -- Where the entries of a batch start; nil and the wrong argument if there is one.
  function streams.batch_of(args, first)
    local at, starts = first, {}
    while at <= #args do
      local size = tonumber(args[at + 1])
      if not size or size < 2 or size % 2 ~= 0 or size > streams.WIDEST or not streams.is_id(args[at]) then
        return nil, at
      end
      starts[#starts + 1] = at
      at = at + 2 + size
    end
    if at ~= #args + 1 then return nil, at end
    return starts
  end

  -- The same for strand_apply_even, and how many words follow each ID.
  local function even(args)
    local count, width, starts = tonumber(args[6]), tonumber(args[7]), {}
    if not count or not width or width < 2 or width % 2 ~= 0 or width > streams.WIDEST then return nil, 6 end
    if #args ~= 7 + count * (width + 1) then return nil, #args + 1 end
    for at = 8, #args, width + 1 do
      if not streams.is_id(args[at]) then return nil, at end
      starts[#starts + 1] = at
    end
    return starts, width
  end

  local function append(strand, args, start, width)
    if width then return redis.pcall('XADD', strand, unpack(args, start, start + width)) end
    return redis.pcall('XADD', strand, args[start], unpack(args, start + 2, start + 1 + tonumber(args[start + 1])))
  end

  local function apply_batch(keys, args, starts, width)
    local meta, strand, label, life, after, upto = keys[1], keys[2], args[1], args[2], args[3], args[4]
    local bell = bells.take(keys, args[5])
    if not streams.is_strand(label, life) then
      return redis.error_reply('BSBATCH ' .. label .. ' in life ' .. life .. ' is no strand')
    end
    if not streams.is_id(after) or not streams.is_id(upto) then
      return redis.error_reply('BSBATCH ' .. after .. ' is no ID')
    end
    if not starts then return redis.error_reply('BSBATCH malformed batch at argument ' .. width) end
    if deadline.settle(meta, keys) then return redis.error_reply('BSSTALE the stream has expired here') end
    local has_life, state, cut = registry.registered(meta, label)
    if has_life and has_life ~= life then
      if state == '+' or ids.less_number(life, has_life) then
        return redis.error_reply('BSSTALE ' .. label .. ' is in life ' .. has_life .. ' here')
      end
      state, cut = nil, nil -- a later life begins here
    end
    -- A deleted copy ends at its cut; a lost copy is replicated again from there.
    local last = extents.last(strand, true) or (state and streams.deleted_upto(meta, label, cut)) or '0-0'
    if ids.less(last, after) then
      return redis.error_reply('BSGAP our copy ends at ' .. last .. ', the batch follows ' .. after)
    end
    local highest = starts[1] and args[starts[#starts]] or upto
    if ids.less(highest, upto) then highest = upto end
    local first = starts[1] and args[starts[1]] or ids.following(highest)
    if redis.call('EXISTS', strand) == 0 then
      if not ids.less(last, highest) then return 0 end
      local refused = streams.joining_refused(meta, bell)
      if refused then return refused end
      streams.create_empty(strand)
      if last ~= '0-0' then extents.set_id(strand, last) end
      streams.join_groups(meta, strand, label, life, bell)
      registry.register(meta, label, life, '+', last)
      deadline.arm(meta, strand)
      -- Entries below the batch were never in this copy, so peers must not read their absence as a trim.
      redis.call('HSET', meta, META.NEW .. label, first)
      trims.begin(meta, label, life, first)
    else
      registry.register_again(meta, label, life)
      -- Created without entries, for groups to wait on.
      if last == (cut or '0-0') and ids.less(last, highest) then trims.begin(meta, label, life, first) end
    end
    local applied = 0
    for _, start in ipairs(starts) do
      -- After the first new entry all are new: IDs ascend, or the engine refuses them.
      if applied > 0 or ids.less(last, args[start]) then
        local reply = append(strand, args, start, width)
        if type(reply) == 'table' and reply.err then return reply end
        last, applied = args[start], applied + 1
      end
    end
    if ids.less(last, upto) then extents.set_id(strand, upto) end
    if keys[3] and not logs.is_label(label) then follow_clock(meta, keys[3], label, last) end
    return applied
  end

  function streams.apply(keys, args) return apply_batch(keys, args, streams.batch_of(args, 6)) end

  --[[ strand_apply_even: the same if all entries have <n> fields and values. <count> detects a batch that was cut.
       FCALL bs_strand_apply_even n <meta> <strand> [<home>] [<bell>]
             <label> <life> <after> <upto> <stamp> <count> <n> (<id> <field or value> * n)...
       Why a function of its own: links send the bytes of a page as they are, and it costs less. ]]
  function streams.apply_even(keys, args) return apply_batch(keys, args, even(args)) end

  --[[ A log must not give out offsets up to `floor` again. If its strand is deleted or not known here, it continues
       there when it is created; `l:<label>` says that only what is below the cut was deleted. A strand that was lost
       starts far above (after_loss). ]]
  local function raise_log(meta, strand, label, floor)
    local last = extents.last(strand)
    if last then
      if not ids.less(last, floor) then return 0 end
      extents.set_id(strand, floor)
      return 1
    end
    local life, state, cut = registry.registered(meta, label)
    if not life then -- it forgot that it became the home
      life, state, cut = select(3, registry.split_label(label)), '-', '0-0'
    end
    if state ~= '-' or not ids.less(cut, floor) then return 0 end
    redis.call('HSETNX', meta, META.LOST .. label, cut)
    registry.register(meta, label, life, '-', floor)
    return 1
  end

  --[[ strand_raise: FCALL bs_strand_raise 2 <meta> <home strand> <floor> <label>
       Called when this engine may have lost its latest IDs and a peer has the strand up to <floor>. If the floor
       or the last ID here is not below the clock, the strand continues after that whole millisecond, because the
       lost IDs may be in it. Returns 1 if the strand was raised. ]]
  function streams.raise(keys, args)
    local meta, home, floor = keys[1], keys[2], args[1]
    if not streams.is_id(floor) then return redis.error_reply('BSBATCH ' .. floor .. ' is no ID') end
    -- Offsets do not follow the clock.
    if logs.is_label(args[2] or '') then return raise_log(meta, home, args[2], floor) end
    local last = extents.last(home) or '0-0'
    local ms = string.match(ids.less(last, floor) and floor or last, '^%d+')
    local raised = tonumber(ms) < clock.now_ms() and floor or ms .. '-' .. ids.MAX
    if not ids.less(last, raised) then return 0 end
    streams.raise_home(meta, home, raised)
    return 1
  end
end

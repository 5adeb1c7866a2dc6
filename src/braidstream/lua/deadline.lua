--[[ Deadlines: EXPIRE on a stream.

     With peers the deadline is a field of the registry that is replicated. The daemon of each region carries it out
     when its own clock has passed it (`bs_braid_due`), in two steps:

        1   the region trims what it wrote itself up to that time, as its IDs show. The trim travels
        2   when the entries of all other regions are gone too, it deletes the stream, with its groups

     So no region deletes what another one wrote: a region that was cut off may have extended the deadline. What a
     region writes after its step 1 stays.

     Without peers the engine itself does it: `due` -> `<ms> <our writer> <our writer, 0 without peers>`, or ''.

        strands, turns, bell, fence     each has the same native PEXPIREAT: the engine frees them, and a native append
                                        needs no check
        registry                        has none: it keeps the last IDs

     So after the deadline the keys are missing and the registry still lists them. They were deleted by the deadline,
     not lost: `deadline.settle` writes what DEL would have written. Every function that creates or lists strands calls
     it first. Clients that only read call `bs_braid_registry`, which writes nothing. ]]
-- fills: deadline
-- uses: bells, braids, chosen, clock, consumer_groups, extents, idempotence, ids, logs, registry, rights, streams,
-- valid, vectors
do
  --[[ The replicated deadline of a stream with peers: its fields in the registry, and which of two wins.

          until   <version> <ms, 0 for none>      the later version wins, then the later time; none is the latest
          ended   <version> <0|1|2>               the step that was done here; local to this region. 0: the deadline was
                                                  known here before it was over
          again   <version> <ms>                  after this deadline a region has entries with chosen IDs, which do not
                                                  show that they are later: the stream was started again. The later
                                                  one wins ]]
  local shared = {}

  -- Of a peer: numbers that are exact in Lua.
  function deadline.is_valid(text)
    local version, at = string.match(text, '^(%d+) (%d+)$')
    return version ~= nil and #version <= 15 and #at <= 16
  end

  function shared.read(text)
    local version, at = string.match(text or '', '^(%d+) (%d+)$')
    return { version = tonumber(version or 0), at = tonumber(at or 0) }
  end

  function shared.of(meta) return shared.read(redis.call('HGET', meta, META.UNTIL)) end

  -- Notes that the deadline is known before it is over: then chosen IDs that are there at that time are older.
  function shared.write(meta, version, at)
    redis.call('HSET', meta, META.UNTIL, string.format('%.0f %.0f', version, at))
    if at > clock.now_ms() then redis.call('HSET', meta, META.ENDED, string.format('%.0f 0', version)) end
  end

  -- The step of a deadline that was done here: 0, 1 or 2.
  function shared.step_of(meta, known)
    local version, step = string.match(redis.call('HGET', meta, META.ENDED) or '', '^(%d+) (%d)$')
    if not version or tonumber(version) < known.version then return 0 end
    return tonumber(step)
  end

  function shared.note_step(meta, known, step)
    redis.call('HSET', meta, META.ENDED, string.format('%.0f %d', known.version, step))
  end

  function shared.is_known_in_time(meta, known)
    return redis.call('HGET', meta, META.ENDED) == string.format('%.0f 0', known.version)
  end

  -- The replicated deadline, if there is one that is not over.
  function shared.not_over(meta)
    local known = shared.of(meta)
    if known.at > 0 and shared.step_of(meta, known) == 0 then return known end
  end

  -- Whether deadline a comes after b.
  local function is_later(a, b)
    local function when(known) return known.at == 0 and math.huge or known.at end
    return a.version > b.version or (a.version == b.version and when(a) > when(b))
  end

  function shared.is_used_again(meta, known)
    local again = redis.call('HGET', meta, META.AGAIN)
    return again and not is_later(known, shared.read(again))
  end

  function shared.note_again(meta, known)
    if shared.is_used_again(meta, known) then return end
    redis.call('HSET', meta, META.AGAIN, string.format('%.0f %.0f', known.version, known.at))
  end

  function deadline.merge_again(meta, text)
    if deadline.is_valid(text) then shared.note_again(meta, shared.read(text)) end
  end

  --[[ If two regions set a deadline at once, the later one may be over when it arrives: what was added after the
       earlier one may be later than both. ]]
  function deadline.merge(meta, text)
    local ours, theirs = shared.of(meta), shared.read(text)
    if not is_later(theirs, ours) then return end
    local is_used = theirs.version == ours.version
      and theirs.at > 0
      and theirs.at <= clock.now_ms()
      and shared.is_used_again(meta, ours)
    shared.write(meta, theirs.version, theirs.at)
    if is_used then shared.note_again(meta, theirs) end
  end

  -- Each region carries a deadline out, and all count it alike: its version and its time, under numbers that no writer
  -- has.
  local function counted_as(known) return { [0] = known.version, [WRITERS] = known.at } end

  function deadline.is_counted(meta, known)
    return vectors.covers(vectors.of(redis.call('HGET', meta, META.DELETIONS)), counted_as(known))
  end

  function deadline.count(meta, known)
    local counts = vectors.joined(vectors.of(redis.call('HGET', meta, META.DELETIONS)), counted_as(known))
    redis.call('HSET', meta, META.DELETIONS, vectors.text(counts))
  end

  local FOREVER = 9007199254740991 -- larger numbers are not exact in Lua

  local function read(text)
    local at, writer, journal = string.match(text or '', '^(%d+) (%d+) (%d+)$')
    if at then return { at = tonumber(at), text = at, writer = writer, journal = journal } end
  end

  local function of(meta) return read(redis.call('HGET', meta, META.DUE)) end

  -- As the engine: a key exists until its millisecond is over.
  local function is_past(due) return due ~= nil and clock.now_ms() > due.at end

  function deadline.is_over(meta) return is_past(of(meta)) end

  -- A key of a stream was created: it expires with the others. A copy of another region's strand does not.
  function deadline.arm(meta, key)
    local due, writer = of(meta), registry.writer_of(key)
    if due and (not writer or writer == due.writer) then redis.call('PEXPIREAT', key, due.text) end
  end

  function deadline.rights(meta) return of(meta) and { 'PEXPIREAT' } or {} end

  -- The stream was deleted before its deadline, or the name is a log now.
  function deadline.forget(meta)
    if of(meta) then redis.call('HSET', meta, META.DUE, '') end
    local known = shared.not_over(meta)
    if known then shared.write(meta, known.version + 1, 0) end
  end

  local function home_among(keys, writer)
    for _, key in ipairs(keys) do
      if string.match(key, '^' .. KEY_PREFIX .. writer .. ':' .. KIND.GENERATED .. ':') then return key end
    end
  end

  local function higher(a, b) return ids.less(a, b or '0-0') and b or a end

  -- Our own strand expired: everything that it can have generated is below this ID.
  local function cut_of(meta, label, cut, due)
    if registry.is_chosen(label) then return ids.MAX .. '-' .. ids.MAX end
    local last = higher(streams.after_loss(label, cut), redis.call('HGET', meta, META.AHEAD))
    local raised = due.journal ~= '0'
      and string.match(redis.call('HGET', meta, META.FUTURE .. label) or '', ' (%d+)-%d+$')
    return raised and higher(last, raised .. '-' .. ids.MAX) or last
  end

  --[[ The engine deletes the home strand at the deadline. If it exists now, it was created again since, or its last
       millisecond is not quite over. Keeps what was added after the deadline. Returns the cut; nil without such
       entries. ]]
  local function keep_later(home, due)
    if not home or redis.call('EXISTS', home) == 0 then return nil end
    local cut = due.text .. '-' .. ids.MAX
    redis.call('XTRIM', home, 'MINID', '=', ids.following(cut))
    if redis.call('XLEN', home) == 0 then
      redis.call('UNLINK', home)
      return nil
    end
    redis.call('PERSIST', home)
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', home)) do
      redis.call('XGROUP', 'DESTROY', home, group[2])
    end
    return cut
  end

  --[[ Which fields end with the deadline: the fence, and the groups and marks if nothing is left. Strands of other
       regions, which came after the deadline was set, do not expire: then the stream goes on, without what we wrote. ]]
  local function ending(fields, due)
    local goes_on = false
    for at = 1, #fields, 2 do
      local life = registry.there(fields[at], fields[at + 1])
      goes_on = goes_on or (life ~= nil and select(2, registry.split_label(fields[at])) ~= due.writer)
    end
    local function ends(field)
      return field == META.FENCE or (not goes_on and braids.DELETED_WITH_STREAM[registry.split_field(field)])
    end
    return ends, goes_on
  end

  --[[ If the deadline is over: record that the stream was deleted. Returns whether it did; or nil and the error, if the
       caller lacks a right. keys: those of the caller, among them our home strand. ]]
  function deadline.settle(meta, keys)
    local due = of(meta)
    if not is_past(due) then return false end
    local fields, gone, has_group = redis.call('HGETALL', meta), {}, false
    local ends, goes_on = ending(fields, due)
    for at = 1, #fields, 2 do
      if ends(fields[at]) then gone[#gone + 1] = fields[at] end
      has_group = has_group or registry.split_field(fields[at]) == META.GROUP
    end
    local refused = rights.denied(meta, 'HSET', 'HGET', 'TIME') or (#gone > 0 and rights.denied(meta, 'HDEL')) or nil
    if refused then return nil, refused end
    local kept = keep_later(home_among(keys, due.writer), due)
    for at = 1, #fields, 2 do
      local label = fields[at]
      local life, cut = registry.there(label, fields[at + 1])
      local kind, writer = registry.split_label(label)
      if life and writer == due.writer then
        if kept and kind == KIND.GENERATED then
          registry.register(meta, label, life, '+', kept)
        else
          registry.register(meta, label, life, '-', cut_of(meta, label, cut, due))
        end
        if redis.call('HGET', meta, META.FUTURE .. label) then redis.call('HSET', meta, META.FUTURE .. label, '') end
      end
    end
    for _, field in ipairs(gone) do
      redis.call('HDEL', meta, field)
    end
    if has_group then bells.ring(meta, {}) end
    if not goes_on then
      vectors.count(meta, META.DELETIONS, due.journal)
      idempotence.forget(meta, due.journal == '0')
    end
    redis.call('HSET', meta, META.DUE, '')
    return true
  end

  --[[ braid_registry: the registry as it is now. FCALL_RO bs_braid_registry 1 <meta>
       After the deadline it shows what `settle` will write, as far as readers need it. ]]
  function deadline.registry(keys)
    local fields = redis.call('HGETALL', keys[1])
    local due, shown = of(keys[1]), {}
    if not is_past(due) then return fields end
    local ends = ending(fields, due)
    for at = 1, #fields, 2 do
      local field, value = fields[at], fields[at + 1]
      local life, cut = registry.there(field, value)
      if life and select(2, registry.split_label(field)) == due.writer then
        value = life .. ':-:' .. cut_of(keys[1], field, cut, due)
      end
      if not ends(field) and field ~= META.DUE then
        shown[#shown + 1], shown[#shown + 2] = field, value
      end
    end
    return shown
  end

  -- Whether the caller named every strand and group.
  local function names_all(meta, named)
    local fields = redis.call('HGETALL', meta)
    for at = 1, #fields, 2 do
      local life = registry.there(fields[at], fields[at + 1])
      if life and not named[fields[at] .. ':' .. life] then return false end
      if registry.split_field(fields[at]) == META.GROUP and not named[fields[at]] then return false end
    end
    return true
  end

  local function is_refused(condition, due, at)
    if condition == 'NX' then return due ~= nil end
    if condition == 'XX' then return due == nil end
    if condition == 'GT' then return due == nil or at <= due.at end
    return condition == 'LT' and due ~= nil and at >= due.at
  end

  -- Remember IDs that are ahead of the clock: the strand is created again above them.
  local function note_ahead(meta, label, home)
    local last = home and extents.last(home)
    local ms = last and string.match(streams.last_before_future(meta, label, last), '^%d+')
    if ms and tonumber(ms) >= clock.now_ms() then
      redis.call('HSET', meta, META.AHEAD, higher(ms .. '-' .. ids.MAX, redis.call('HGET', meta, META.AHEAD)))
    end
  end

  -- The keys that the engine deletes at the deadline.
  local function keys_that_end(given, fence)
    local ends = {}
    if given.bell.key then ends[1] = given.bell.key end
    if fence then ends[#ends + 1] = fence end
    for _, each in pairs(given.named) do
      ends[#ends + 1] = each
    end
    return ends
  end

  local function persist(meta, ends)
    local refused = rights.denied(meta, 'HSET', 'PERSIST')
    if refused then return refused end
    for _, each in ipairs(ends) do
      redis.call('PERSIST', each)
    end
    deadline.forget(meta)
    return 1
  end

  local function delete_now(meta, journal, given, fence)
    given.named[META.FENCE] = fence or nil
    local delete, refused = braids.plan_deletion(meta, journal, given)
    if refused then return refused end
    delete()
    return 1
  end

  local function set_with_peers(meta, at, ends)
    if of(meta) then
      for _, each in ipairs(ends) do
        redis.call('PERSIST', each)
      end
      redis.call('HSET', meta, META.DUE, '')
    end
    shared.write(meta, shared.of(meta).version + 1, at)
  end

  --[[ braid_expire: EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT, PERSIST.
       FCALL bs_braid_expire n <meta> <its keys> [<name>] <our writer> <journal's writer> <at, in or never> <ms>
             <condition ...> <what its keys are> <0|1: name> <command> <its key>
       <name>: the plain key, to expire with the stream if it is the fence. <command>: NOPERM unless the user may run
       it. Returns 1 if the deadline changed; a deadline that is not in the future deletes. 0 if the stream does not
       exist, or a condition is not met. BSSTALE if it has a strand or a group that is not named, or a deadline is over.
       Why a function: the keys and the registry must agree, and no strand may be created in between. ]]
  function deadline.set(keys, args)
    local meta = keys[1]
    local given, key, place = braids.read_keys(keys, 2, args, 6)
    local time = args[3] == 'never' and 0
      or valid.need(tonumber(string.match(string.sub(args[4], 1, 21), '^-?%d+$')), 'time')
    local fence = args[place] == '1' and redis.call('HGET', meta, META.FENCE) and keys[key]
    local said = { args[place + 1], args[place + 2] }
    if args[3] ~= 'never' then said[3] = '10' end
    if not redis.acl_check_cmd(unpack(said)) then return rights.no_permission(said[1]) end
    local settled, refused = deadline.settle(meta, keys)
    if refused then return refused end
    local is_late = logs.is_log(meta) and args[3] ~= 'never' -- EXPIRE is refused, if the client knows that it is a log
    if settled or not names_all(meta, given.named) or is_late then return redis.error_reply(consumer_groups.STALE) end
    if not chosen.exists(meta) then return 0 end
    local due, now, has_peers = of(meta) or shared.not_over(meta), clock.now_ms(), args[2] ~= '0'
    local ends = keys_that_end(given, fence)
    if args[3] == 'never' then return due and persist(meta, ends) or 0 end
    local at = math.min(time + (args[3] == 'in' and now or 0), FOREVER)
    for condition in string.gmatch(args[5], '%u+') do
      if is_refused(condition, due, at) then return 0 end
    end
    if at <= now then return delete_now(meta, args[2], given, fence) end
    refused = rights.denied(meta, 'HSET', 'PEXPIREAT', 'TIME')
      or (of(meta) and has_peers and rights.denied(meta, 'PERSIST'))
      or nil
    if refused then return refused end
    if has_peers then
      set_with_peers(meta, at, ends)
    else
      deadline.forget(meta)
      local label = KIND.GENERATED .. args[1]
      note_ahead(meta, label, given.named[label .. ':0'])
      redis.call('HSET', meta, META.DUE, string.format('%.0f', at) .. ' ' .. args[1] .. ' ' .. args[2])
      for _, each in ipairs(ends) do
        deadline.arm(meta, each)
      end
    end
    return 1
  end

  local TRIMMED_AT_ONCE = 100000

  -- Whole nodes first, so that one call is short. Returns whether there may be more.
  local function trim(key, how, limit)
    if redis.call('XTRIM', key, how, '~', limit, 'LIMIT', TRIMMED_AT_ONCE) > 0 then return true end
    redis.call('XTRIM', key, how, '=', limit)
    return false
  end

  local function is_among(writers, whose) return string.find(' ' .. writers .. ' ', ' ' .. whose .. ' ', 1, true) end

  -- Trim what these writers wrote up to the deadline. Returns whether there is more.
  local function trim_own(strands, writers, known, with_chosen)
    local more = false
    for label, key in pairs(strands) do
      local kind, whose = registry.split_label(label)
      local is_ours = is_among(writers, whose) -- its own region trims each other one
      if is_ours and kind == KIND.GENERATED then
        more = trim(key, 'MINID', string.format('%.0f-0', known.at + 1)) or more
      elseif is_ours and with_chosen and kind == KIND.CHOSEN then
        more = trim(key, 'MAXLEN', 0) or more
      end
    end
    return more
  end

  -- Before an entry with a chosen ID is added after the deadline: those before it end now.
  function deadline.end_chosen(meta, key)
    local known = shared.of(meta)
    if known.at == 0 or clock.now_ms() <= known.at or not shared.is_known_in_time(meta, known) then return end
    if redis.call('EXISTS', key) == 1 then redis.call('XTRIM', key, 'MAXLEN', '=', 0) end
    redis.call('HDEL', meta, META.ENDED)
    shared.note_again(meta, known)
  end

  -- Once these writers' strands are trimmed: whether entries are left, and whether anything was written since.
  local function what_is_left(strands, writers, known)
    local left, is_used, is_again = 0, false, false
    for label, key in pairs(strands) do
      local facts, kind, whose = extents.of(key), registry.split_label(label)
      left = left + facts.length
      local is_beyond = tonumber(string.match(facts.last, '^%d+')) > known.at
      is_used = is_used or (is_beyond and kind == KIND.GENERATED)
      is_again = is_again or (facts.length > 0 and kind == KIND.CHOSEN and is_among(writers, whose))
    end
    return left, is_used, is_again
  end

  --[[ braid_due: carry out the replicated deadline.
       FCALL bs_braid_due n <meta> <its keys> [<name>] <writers> <journal's writer> <what its keys are> <0|1: name>
       <writers>: ours, and those of regions that have left or do not exchange the stream, separated by blanks.
       <name>: the plain key, to delete with the stream if it is the fence.
       Returns 0 if there is nothing to do, 1 if it is done, 2 if there is more to trim, 3 if entries of other regions
       are left: call it again later. BSSTALE if the stream has a strand or a group that is not named.
       Why a function: nothing may be written between the last look and the deletion. ]]
  function deadline.carry_out(keys, args)
    local meta = keys[1]
    local known = shared.of(meta)
    if known.at == 0 or clock.now_ms() <= known.at or shared.step_of(meta, known) == 2 then return 0 end
    if logs.is_log(meta) then -- it was set for a stream of that name
      local refused = rights.denied(meta, 'HSET')
      if refused then return refused end
      shared.note_step(meta, known, 2)
      return 1
    end
    local given, key_at, place = braids.read_keys(keys, 2, args, 3)
    if not names_all(meta, given.named) then return redis.error_reply(consumer_groups.STALE) end
    if args[place] == '1' then given.named[META.FENCE] = keys[key_at] end
    local delete, refused = braids.plan_deletion(meta, args[2], given, known)
    refused = refused or rights.denied(meta, 'HSET', 'XTRIM')
    if refused then return refused end
    local fields, strands = redis.call('HGETALL', meta), {}
    for at = 1, #fields, 2 do
      local life = registry.there(fields[at], fields[at + 1])
      local key = life and given.named[fields[at] .. ':' .. life]
      if key and redis.call('EXISTS', key) == 1 then strands[fields[at]] = key end
    end
    -- Also later: what was restored after a loss may be older.
    if trim_own(strands, args[1], known, shared.is_known_in_time(meta, known)) then return 2 end
    if shared.step_of(meta, known) == 0 then shared.note_step(meta, known, 1) end -- a write wakes the links
    local left, is_used, is_again = what_is_left(strands, args[1], known)
    if is_again then shared.note_again(meta, known) end
    is_used = is_used or shared.is_used_again(meta, known)
    if left > 0 and not is_used then return 3 end
    shared.note_step(meta, known, 2)
    -- A peer carried it out, and its deletion has arrived: groups that are here were created later.
    local is_new = deadline.is_counted(meta, known) and streams.has_groups(fields)
    if not is_used and not is_new then delete() end
    return 1
  end
end

--[[ A strand: the native stream of one writer. A native key that goes away forgets its last ID, and the
     engine would mint that ID again. So whoever takes a strand away notes its last ID in the registry,
     in the same step, and whoever makes it again gives it back. ]]

-- What XINFO STREAM says, by name.
local function stream_info(key)
  local info, facts = redis.call('XINFO', 'STREAM', key), {}
  for at = 1, #info, 2 do facts[info[at]] = info[at + 1] end
  return facts
end

local function last_of(key)
  if redis.call('EXISTS', key) == 0 then return nil end
  return stream_info(key)['last-generated-id']
end

local function has_had_entries(key) return redis.call('EXISTS', key) == 0 or stream_info(key)['entries-added'] > 0 end

local function create_empty(key)
  redis.call('XGROUP', 'CREATE', key, 'bs', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', key, 'bs')
end

--[[ A group is a native group on every strand of the stream. The registry keeps where it starts, for
     strands that come to be later: `g:<name>` -> `<user ID> <native> <native> <writer>`. Of the two
     natives the first is for writers up to that number, the second for those above: the client has
     translated, there is no arithmetic here. ` told` may follow: a user gave ENTRIESREAD. A `c` strand takes the user ID as it is. ]]
local function start_of(value, label)
  local user, low, high, bound = string.match(value, '^(%S+) (%S+) (%S+) (%d+)')
  local kind, writer = split_label(label)
  if kind == KIND.CHOSEN then return user end
  return tonumber(writer) <= tonumber(bound) and low or high
end

-- What is acknowledged without a gap, in any region: `k:<group>` -> `<label:life> <native>` ... (merge.lua)
local function acked_of(value)
  local acked = {}
  for strand, id in string.gmatch(value or '', '(%S+) (%S+)') do acked[strand] = id end
  return acked
end

--[[ The bell of a stream rings when a strand joins its groups, and when a group is made, moved or destroyed:
     what others remember of the groups is no longer true. `bell` in the registry is a stamp, new at each
     ring. Consumers that wait in the engine wait on a key with that stamp too (group_wait makes it): taking
     it away wakes them, and whoever comes late with an old stamp finds no such key.

     A function touches no key that it was not given. So the caller names the bell it knows: the stamp is an
     argument (empty: it knows none), the key is the last one. Who is about to ring first asks `is_stale`. ]]
local STALE_GROUPS = 'BSSTALE the groups of this stream have changed'

local function bell_given(keys, stamp)
  return { stamp = stamp, key = stamp ~= '' and table.remove(keys) or nil }
end

local function is_stale(meta, bell) return (redis.call('HGET', meta, META.BELL) or '') ~= bell.stamp end

local function ring(meta, bell)
  local now = redis.call('TIME')
  if bell.key then redis.call('UNLINK', bell.key) end
  redis.call('HSET', meta, META.BELL, now[1] .. string.format('%06d', now[2]))
end

local function has_groups(fields)
  for at = 1, #fields, 2 do
    if split_field(fields[at]) == META.GROUP then return true end
  end
  return false
end

-- Why a strand cannot join the groups there are: the caller does not know the bell.
local function joining_refused(meta, bell)
  if has_groups(redis.call('HGETALL', meta)) and is_stale(meta, bell) then return redis.error_reply(STALE_GROUPS) end
end

local function join_groups(meta, key, label, life, bell)
  local fields, groups, moved, acked = redis.call('HGETALL', meta), {}, {}, {}
  for at = 1, #fields, 2 do
    local prefix, group = split_field(fields[at])
    if prefix == META.GROUP then groups[group] = start_of(fields[at + 1], label) end
    if prefix == META.GROUP_MOVED then moved[group] = start_of(fields[at + 1], label) end
    if prefix == META.GROUP_ACKED then acked[group] = acked_of(fields[at + 1])[label .. ':' .. life] end
  end
  for group, start in pairs(groups) do
    start = moved[group] or start
    if acked[group] and less(start, acked[group]) then start = acked[group] end
    redis.call('XGROUP', 'CREATE', key, group, start)
  end
  if next(groups) then ring(meta, bell) end
end

-- Everything of a strand up to here was deleted.
local function deleted_upto(meta, label, cut) return redis.call('HGET', meta, META.LOST .. label) or cut end

local function end_of(key, cut)
  local last = last_of(key)
  if not last or last == cut then return '0-0' end
  return last
end

local function this_moment() return string.format('%.0f', now_ms()) .. '-' .. MAX_SEQ end

--[[ Where a strand ends that an ID chosen in the future moved on, and that has minted nothing since: where it
     was before. `f:<label>` -> `<native before> <native moved to>` (chosen.lua). Where there are no peers, deletion
     goes back to it, so that IDs chosen in the future, once deleted, hold nobody up. ]]
local function really_last(meta, label, last)
  local before, floor = string.match(redis.call('HGET', meta, META.FUTURE .. label) or '', '^(%S+) (%S+)$')
  return floor == last and before or last
end

-- After all that a strand whose key was lost can have minted: after this moment, and after the
-- millisecond that follows its last such start (it may have minted ahead of the clock there).
local function after_loss(cut)
  local start = string.match(this_moment(), '^%d+')
  local again = successor(string.match(cut, '^%d+'))
  if less_number(start, again) then start = again end
  return start .. '-' .. MAX_SEQ
end

-- The home strand goes on from `floor`, if it is not further. Where there is none yet, `ahead` keeps it.
local function move_home_on(meta, home, floor)
  local last = last_of(home)
  if last and less(last, floor) then
    redis.call('XSETID', home, floor)
  elseif not last and less(redis.call('HGET', meta, META.AHEAD) or '0-0', floor) then
    redis.call('HSET', meta, META.AHEAD, floor)
  end
end

--[[ After a peer's entries up to `last` came. What is ahead of our clock beyond the bound is not followed; `o:<label>`
     says by how many milliseconds it was ahead when it came, so that caps find the oldest (commands/trim.py). ]]
local function follow_clock(meta, home, label, last)
  local now, field = now_ms(), META.AHEAD_MS .. label
  local floor, known = floor_after(home, label, last, now), redis.call('HGET', meta, field)
  if floor then move_home_on(meta, home, floor) end
  local ahead = tonumber(string.match(last, '^%d+')) - now
  if ahead > CLOCK_BOUND_MS then
    if not known or math.abs(known - ahead) > 1000 then redis.call('HSET', meta, field, string.format('%.0f', ahead)) end
  elseif known then
    redis.call('HDEL', meta, field)
  end
end

-- Where a home strand starts that is made now: above the entries that are ahead of the clock.
local function start_ahead(meta, cut)
  local ahead = redis.call('HGET', meta, META.AHEAD)
  if ahead and less(cut or '0-0', ahead) and tonumber(string.match(ahead, '^%d+')) >= now_ms() then return ahead end
  return cut
end

-- Where the engine knows the messages (settings.lua), its settings are those of the stream.
local function native_settings(meta)
  local native = redis.call('HGET', meta, META.NATIVE)
  if not native then return nil end
  local era, duration, size = string.match(redis.call('HGET', meta, META.IDEMPOTENCE) or '', '^(%d+):(%d+):(%d+):')
  if native == era and (duration ~= '100' or size ~= '100') then return duration, size end
end

--[[ Make the key of a strand and register it: a new one, one that was deleted (it gets its last ID
     back), or one that was evicted, expired or deleted behind our back. A copy of another writer's
     that was lost is copied again; our own must not mint an ID twice. ]]
local function make(meta, strand, label, own, bell)
  local life, state, cut = registered(meta, label)
  create_empty(strand)
  -- This engine knows of none before it. If a peer does, this engine lost it: see settle_new (acks.lua).
  if not life and own then redis.call('HSET', meta, META.NEW .. label, '?') end
  if state == '+' and own then
    -- What peers have of it was not deleted: `l:<label>` keeps the cut that is one.
    redis.call('HSETNX', meta, META.LOST .. label, cut)
    cut = after_loss(cut)
  end
  local start = own and start_ahead(meta, cut) or cut
  if start and start ~= '0-0' then redis.call('XSETID', strand, start) end
  local duration, size = native_settings(meta)
  if duration and own then redis.call('XCFGSET', strand, 'IDMP-DURATION', duration, 'IDMP-MAXSIZE', size) end
  join_groups(meta, strand, label, life or '0', bell)
  register(meta, label, life or '0', '+', cut or '0-0')
end

-- Why `make` cannot be done: the caller lacks a right, or does not know the bell. Half a strand would take
-- appends that nobody sees.
local function making_refused(meta, label, bell)
  local _, state, cut = registered(meta, label)
  local needs, fields = { 'XGROUP CREATE', 'XGROUP DESTROY', 'HSET' }, redis.call('HGETALL', meta)
  if cut and (state == '+' or cut ~= '0-0') then needs[#needs + 1] = 'XSETID' end
  if state == '+' then needs[#needs + 1] = 'HSETNX' end
  if redis.call('HGET', meta, META.AHEAD) then
    needs[#needs + 1] = 'TIME'
    needs[#needs + 1] = 'XSETID'
  end
  if native_settings(meta) then needs[#needs + 1] = 'XCFGSET' end
  local joins = has_groups(fields)
  if joins or state == '+' then
    needs[#needs + 1] = 'TIME'
    needs[#needs + 1] = 'UNLINK'
  end
  if joins and is_stale(meta, bell) then return redis.error_reply(STALE_GROUPS) end
  return denied(meta, unpack(needs))
end

--[[ strand_ensure: create and register a strand before its first append, if it is missing.
     FCALL bs_strand_ensure n <meta> <strand> [<name>] [<bell>] <label> [<stamp>]
     Returns 1 if it was created, 0 if it existed. BSSTALE if it has groups to join and the bell is another.

     <name> is the plain key of the same name; if one exists the stream cannot (WRONGTYPE).
     Why a function: two clients may be first at once, and the registry must agree with the keys. ]]
local function strand_ensure(keys, args)
  local meta, strand, label = keys[1], keys[2], args[1]
  if redis.call('EXISTS', strand) == 1 then
    register_again(meta, label, '0')
    return 0
  end
  local bell = bell_given(keys, args[2] or '')
  if keys[3] and redis.call('EXISTS', keys[3]) == 1 then
    return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
  end
  local refused = making_refused(meta, label, bell)
  if refused then return refused end
  make(meta, strand, label, true, bell)
  return 1
end

--[[ strand_undo_ensure: delete a strand that was created for an append that was refused.
     FCALL bs_strand_undo_ensure 2 <meta> <strand> <label>
     Returns 1; 0 if something was appended since, by anyone. ]]
local function strand_undo_ensure(keys, args)
  local meta, strand, label = keys[1], keys[2], args[1]
  local life, state, cut = registered(meta, label)
  if state ~= '+' or has_had_entries(strand) then return 0 end
  local refused = denied(meta, 'HSET')
  if refused then return refused end
  redis.call('UNLINK', strand)
  register(meta, label, life, '-', cut)
  return 1
end

--[[ strand_apply: append what a peer has to our copy of a strand.
     FCALL bs_strand_apply n <meta> <strand> [<home>] [<bell>]
           <label> <life> <after> <upto> <stamp> (<id> <n> <field or value> * n)...
     Returns how many entries were new. BSSTALE if a new copy has groups to join and the bell is another.

     <home> is our own strand: what we mint from now on is above what has come, also where that is ahead of our
     clock.

     <after> is the ID the batch follows at its source. If our copy ends before it, something is
     missing in between: nothing is applied (BSGAP), the link starts again from our last ID.
     <upto> is where the source stands after the batch: further than its last entry if what followed
     was deleted there. What the copy has already is skipped, so a batch may be sent twice. The first
     refusal ends the batch: appending a later entry would shut the refused one out for ever.

     Why a function: a pipeline cannot stop at its first error. ]]
local WIDEST = 7800 -- unpack takes no more; wider entries come natively (replication/ship.py)

local function is_strand(label, life)
  return split_label(label) and string.match(label, '^%a[1-9]%d?%d?%d?$') and string.match(life, '^%d+$')
end

local function is_id(text) return string.match(text or '', '^%d+-%d+$') end

local function batch_of(args, first)
  local at, starts = first, {}
  while at <= #args do
    local size = tonumber(args[at + 1])
    if not size or size < 2 or size % 2 == 1 or size > WIDEST or not is_id(args[at]) then return nil, at end
    starts[#starts + 1] = at
    at = at + 2 + size
  end
  if at ~= #args + 1 then return nil, at end
  return starts
end

local function strand_apply(keys, args)
  local meta, strand, label, life, after, upto = keys[1], keys[2], args[1], args[2], args[3], args[4]
  local bell = bell_given(keys, args[5])
  if not is_strand(label, life) then
    return redis.error_reply('BSBATCH ' .. label .. ' in life ' .. life .. ' is no strand')
  end
  if not is_id(after) or not is_id(upto) then return redis.error_reply('BSBATCH ' .. after .. ' is no ID') end
  local starts, wrong = batch_of(args, 6)
  if not starts then return redis.error_reply('BSBATCH malformed batch at argument ' .. wrong) end
  local has_life, state, cut = registered(meta, label)
  if has_life and has_life ~= life then
    if state == '+' or less_number(life, has_life) then
      return redis.error_reply('BSSTALE ' .. label .. ' is in life ' .. has_life .. ' here')
    end
    state, cut = nil, nil -- a later life begins here
  end
  -- A copy that was deleted ends at its cut; one that was lost is copied again from there.
  local last = last_of(strand) or (state and deleted_upto(meta, label, cut)) or '0-0'
  if less(last, after) then
    return redis.error_reply('BSGAP our copy ends at ' .. last .. ', the batch follows ' .. after)
  end
  local ends = starts[1] and args[starts[#starts]] or upto
  if less(ends, upto) then ends = upto end
  if redis.call('EXISTS', strand) == 0 then
    if not less(last, ends) then return 0 end
    local refused = joining_refused(meta, bell)
    if refused then return refused end
    create_empty(strand)
    if last ~= '0-0' then redis.call('XSETID', strand, last) end
    join_groups(meta, strand, label, life, bell)
    register(meta, label, life, '+', last)
    -- What is below was never in this copy: it says nothing of it to others.
    redis.call('HSET', meta, META.NEW .. label, starts[1] and args[starts[1]] or following(ends))
  else
    register_again(meta, label, life)
  end
  local applied = 0
  for _, start in ipairs(starts) do
    -- Once one is new, so are those after it: they ascend, or the engine refuses them.
    if applied > 0 or less(last, args[start]) then
      local stop = start + 1 + tonumber(args[start + 1])
      local reply = redis.pcall('XADD', strand, args[start], unpack(args, start + 2, stop))
      if type(reply) == 'table' and reply.err then return reply end
      last, applied = args[start], applied + 1
    end
  end
  if less(last, upto) then redis.call('XSETID', strand, upto) end
  if keys[3] then follow_clock(meta, keys[3], label, last) end
  return applied
end

--[[ strand_raise: FCALL bs_strand_raise 2 <meta> <home strand> <floor>
     This engine may have forgotten what it minted last, and a peer knows the strand up to <floor>. If that, or the
     last ID here, is not below the clock, the strand goes on after its whole millisecond: what was forgotten was
     counted up in it. Returns 1 if it was moved. ]]
local function strand_raise(keys, args)
  local meta, home, floor = keys[1], keys[2], args[1]
  if not is_id(floor) then return redis.error_reply('BSBATCH ' .. floor .. ' is no ID') end
  local last = last_of(home) or '0-0'
  local ms = string.match(less(last, floor) and floor or last, '^%d+')
  local raised = tonumber(ms) < now_ms() and floor or ms .. '-' .. MAX_SEQ
  if not less(last, raised) then return 0 end
  move_home_on(meta, home, raised)
  return 1
end

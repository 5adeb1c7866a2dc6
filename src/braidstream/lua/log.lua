--[[ Logs (RCP 11, model/registry.py): streams with dense offsets, which one region gives out, the home.

       strand  t<epoch>.<w>, IDs 0-<offset>        `XADD strand NOMKSTREAM 0-* t <tag> e <entry>` counts by itself
       home    0.1:1 1.2:1018:1                    epoch 0: region 1, from offset 1; epoch 1: region 2, from 1018,
                                                   after the epoch of region 1
       log     3.1:1000:0:0                        version 3 of the settings, by region 1: pending, backlog, max age
       messages 1.2 1:1794713635841-0              in epoch 1.2 messages are accepted when the journal of region 1
                                                   was applied up to there

     A strand whose last ID is 1-0 is sealed: the engine refuses every further 0-*. ]]
-- fills: logs
-- uses: bells, chosen, clock, consumer_groups, deadline, extents, ids, rebuild, registry, rights, streams, valid
do
  function logs.is_label(label) return registry.split_label(label) == KIND.LOG end

  --[[ Whether a name is a log: a strand of it is there, or its home has one that has not come here yet. `home` lists
       its epochs, the last one is where it is written. ]]
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
        if registry.there(fields[at], fields[at + 1]) then return true end
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
    return redis.error_reply(
      'ERR ' .. command .. " refused by braidstream: '" .. name .. "' is a log, its offsets are generated. Use TWRITE."
    )
  end

  local SEALED = '1-0'
  local WRONG_TYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'
  local DEFAULTS = ':1000:0:0'
  local LONGEST_EPOCH, LONGEST_SETTINGS = 37, 64 -- characters

  local function epochs_of(text)
    local epochs = {}
    for word in string.gmatch(text or '', '%S+') do
      local epoch, writer, first, after =
        string.match(string.sub(word, 1, LONGEST_EPOCH + 1), '^(%d+)%.(%d+):(%d+)(:?%d*)$')
      if epoch and #epoch <= 9 and #writer <= 4 and #first <= 16 and #after <= 5 then
        epochs[#epochs + 1] = { epoch = tonumber(epoch), writer = tonumber(writer), first = first, after = after }
      end
    end
    return epochs
  end

  -- The label and the epoch of the strand in which a region wrote an ID; nil if it was never the home.
  function logs.label_of(homes, writer, id)
    local found
    for _, each in ipairs(epochs_of(homes)) do
      if tostring(each.writer) == writer and not ids.less(id, '0-' .. each.first) then
        found = string.format('%d', each.epoch)
      end
    end
    if found then return KIND.LOG .. found .. '.' .. writer, found end
  end

  local function is_earlier(a, b)
    if a.epoch ~= b.epoch then return a.epoch < b.epoch end
    return a.writer < b.writer
  end

  local function epochs_text(epochs)
    local words = {}
    table.sort(epochs, is_earlier)
    for at, each in ipairs(epochs) do
      words[at] = string.format('%d.%d:', each.epoch, each.writer) .. each.first .. each.after
    end
    return table.concat(words, ' ')
  end

  --[[ The epochs that either knows. One that both know begins at the lower offset, after the epoch that was known
       there: its region was forced to begin before it learned where the old home had been sealed. ]]
  function logs.merge_homes(meta, theirs)
    local known = redis.call('HGET', meta, META.HOMES) or ''
    local epochs, seen = epochs_of(known), {}
    for _, each in ipairs(epochs) do
      seen[each.epoch .. '.' .. each.writer] = each
    end
    for _, each in ipairs(epochs_of(theirs)) do
      local mine = seen[each.epoch .. '.' .. each.writer]
      if not mine then
        epochs[#epochs + 1] = each
      elseif ids.less_number(each.first, mine.first) or (each.first == mine.first and mine.after < each.after) then
        mine.first, mine.after = each.first, each.after
      end
    end
    local text = epochs_text(epochs)
    if text ~= known and #text <= valid.FIELD then redis.call('HSET', meta, META.HOMES, text) end
  end

  local function read_version(text)
    local version, writer = string.match(text or '', '^(%d+)%.(%d+):%d+:%d+:%d+$')
    if version and #text > LONGEST_SETTINGS then
      version, writer = nil, nil
    end
    return tonumber(version or 0), tonumber(writer or 0)
  end

  function logs.merge_settings(meta, theirs)
    local version, writer = read_version(redis.call('HGET', meta, META.LOG))
    local their_version, their_writer = read_version(theirs)
    if their_version > version or (their_version == version and their_writer > writer) then
      redis.call('HSET', meta, META.LOG, theirs)
    end
  end

  -- That of the later epoch; of one epoch, the one without journals: the move was forced.
  function logs.merge_messages(meta, theirs)
    local function parts(text)
      local number, writer, rest = string.match(text or '', '^(%d+)%.(%d+)(.*)$')
      return tonumber(number or -1), tonumber(writer or 0), rest == '' and 1 or 0, rest or ''
    end
    local ours = { parts(redis.call('HGET', meta, META.MESSAGES)) }
    for at, value in ipairs({ parts(theirs) }) do
      if value ~= ours[at] then
        if value > ours[at] then redis.call('HSET', meta, META.MESSAGES, theirs) end
        return
      end
    end
  end

  --[[ Whether messages that former homes accepted have not arrived here. Those that are older than `duration` do not
       count. keys: the caller names the journals of the former homes from the seventh on. ]]
  function logs.lacks_messages(homes, messages, keys, now, duration)
    local epoch, rest = string.match(messages or '', '^(%S+)(.*)$')
    if not epoch or KIND.LOG .. epoch ~= logs.home_label(homes) then return false end
    local journal_keys = {}
    for at = 7, #keys do
      journal_keys[registry.writer_of(keys[at])] = keys[at]
    end
    for writer, ms, seq in string.gmatch(rest, '(%d+):(%d+)(%-%d+)') do
      local journal = journal_keys[writer]
      if journal and math.abs(now - ms) <= duration and ids.less(extents.last(journal) or '0-0', ms .. seq) then
        return true
      end
    end
    return false
  end

  -- A log that is deleted forgets its settings, not its offsets.
  function logs.forget_settings(meta, writer)
    local version = read_version(redis.call('HGET', meta, META.LOG))
    if version > 0 then redis.call('HSET', meta, META.LOG, string.format('%d.%s', version + 1, writer) .. DEFAULTS) end
  end

  --[[ Our own strands of epochs that are over take no more entries: another region is the home. `makes` names
       our home strand for generated IDs, and so our writer. ]]
  function logs.seal_old_homes(meta, named, makes)
    local own
    for _, strand in ipairs(makes) do
      if strand.own then own = select(2, registry.split_label(strand.label)) end
    end
    local home = logs.home_label(redis.call('HGET', meta, META.HOMES))
    for id, key in pairs(named) do
      local label = string.match(id, '^[^:]+')
      local kind, writer = registry.split_label(label)
      if kind == KIND.LOG and writer == own and label ~= home then
        local last = extents.last(key)
        if last and ids.less(last, SEALED) then extents.set_id(key, SEALED) end
      end
    end
  end

  -- Create the strand of an epoch. It starts just before the epoch's first offset.
  function logs.open(meta, strand, label, bell)
    streams.create(meta, strand, label, true, bell)
    for _, each in ipairs(epochs_of(redis.call('HGET', meta, META.HOMES))) do
      if KIND.LOG .. each.epoch .. '.' .. each.writer == label and each.first ~= '1' then
        local before = '0-' .. ids.predecessor(each.first)
        if ids.less(extents.last(strand), before) then extents.set_id(strand, before) end
      end
    end
  end

  --[[ log_ensure: create and register the strand of a log at its home, if it is missing.
       FCALL bs_log_ensure n <meta> <strand> [<name>] [<bell>] <label> [<stamp>] [known]
       Returns 1 if it was created, 0 if it existed. WRONGTYPE: there is a stream or a plain key of the name.
       BSSTALE: the home is elsewhere, the strand has groups to join and the bell is another, or the caller knows the
       strand and this server does not.
       Why a function: two clients may be first at once, and the registry must agree with the keys. ]]
  function logs.ensure(keys, args)
    local meta, strand, label = keys[1], keys[2], args[1]
    local kind, writer, epoch = registry.split_label(label)
    if kind ~= KIND.LOG then return redis.error_reply('BSBATCH ' .. label .. ' is no strand of a log') end
    local home = logs.home_label(redis.call('HGET', meta, META.HOMES))
    if home and home ~= label then return redis.error_reply('BSSTALE the home of this log is ' .. home) end
    if redis.call('EXISTS', strand) == 1 then
      registry.register_again(meta, label, epoch)
      if not home then redis.call('HSET', meta, META.HOMES, epoch .. '.' .. writer .. ':1') end
      return 0
    end
    local emptied = registry.forgotten(meta, label, args[3])
    if emptied then return emptied end
    local _, not_settled = deadline.settle(meta, keys)
    if not_settled then return not_settled end
    local bell = bells.take(keys, args[2] or '')
    if keys[3] and streams.is_taken(meta, keys[3]) then return redis.error_reply(WRONG_TYPE) end
    if not logs.is_log(meta) and chosen.exists(meta) then return redis.error_reply(WRONG_TYPE) end
    local refused = streams.create_refused(meta, label, bell) or rights.denied(meta, 'XSETID')
    if refused then return refused end
    if not home then redis.call('HSET', meta, META.HOMES, epoch .. '.' .. writer .. ':1') end
    deadline.forget(meta) -- of a stream of that name
    logs.open(meta, strand, label, bell)
    return 1
  end

  --[[ log_configure: FCALL bs_log_configure 1 <meta> <writer> <pending or empty> <backlog or empty> <max age or empty>
       Returns OK. BSSTALE if it is no log. ]]
  function logs.configure(keys, args)
    local meta = keys[1]
    valid.counted(args[1], WRITERS, 'writer')
    for at = 2, 4 do
      if args[at] ~= '' then valid.counted(args[at], 2 ^ 53, 'setting') end
    end
    if not logs.is_log(meta) then return redis.error_reply('BSSTALE this is no log') end
    local known = redis.call('HGET', meta, META.LOG) or ('0.0' .. DEFAULTS)
    local version = read_version(known)
    local values = { string.match(known, ':(%d+):(%d+):(%d+)$') }
    for at = 1, 3 do
      if args[at + 1] ~= '' then values[at] = args[at + 1] end
    end
    local text = string.format('%d.%s:', version + 1, args[1]) .. table.concat(values, ':')
    redis.call('HSET', meta, META.LOG, text)
    return redis.status_reply('OK')
  end
end

--[[ The age of entries of a log. Offsets carry no time, so the home notes now and then how far the log has come:

       bs:tick:<tag>    1700000000000-0 {o 1017 t 1:t.2}   at this time the last offset was 1017, or an entry before it,
                                                           written in epoch 2 by writer 1

     An entry is at least as old as the first tick that has reached it. Eviction by age is late by the time between two
     ticks, never early. A region that becomes the home starts with no ticks: what it got is as old as its first one.
     Ticks of an earlier epoch do not count: the region may have written beyond it, and those offsets are other entries
     now. ]]
do
  local MOST_TICKS = 100000
  local EVERY_MS, SHORTEST_MS, TICKS_PER_AGE = 60000, 1000, 1000
  local KEPT_MS = 90 * 24 * 3600 * 1000
  local EVICTED_AT_ONCE = 100000

  -- The last offset that was reached so many ms ago; nil if no tick is so old.
  local function reached(tick, before)
    if before < 0 then return nil end
    local row = redis.call('XREVRANGE', tick, string.format('%.0f', before), '-', 'COUNT', 1)[1]
    return row and row[2][2]
  end

  -- The writer and the epoch of a strand, as its key says them.
  local function epoch_of(strand) return string.match(strand, '^' .. KEY_PREFIX .. '(%d+:[^:]+):') end

  -- The last tick of this epoch; nil if there is none.
  local function newest_of(tick, home)
    local row = redis.call('XREVRANGE', tick, '+', '-', 'COUNT', 1)[1]
    return row and row[2][4] == epoch_of(home) and row or nil
  end

  local function evict(strand, upto)
    local row = redis.call('XRANGE', strand, '-', '+', 'COUNT', 1)[1]
    if not row then return 0 end
    local most = string.format('%.0f', tonumber(string.match(row[1], '%d+$')) + EVICTED_AT_ONCE)
    if ids.less_number(most, upto) then upto = most end
    return redis.call('XTRIM', strand, 'MINID', '=', '0-' .. ids.successor(upto))
  end

  --[[ log_tick: FCALL bs_log_tick n <tick> <strand>... <home strand> <max age in ms, or 0> <end>...
       <end>: of each strand, the last offset that counts. What a former home wrote beyond it stays, until it is
       rescued. Notes how far the log has come, if the last tick is old enough, and evicts what is older than <max age>:
       at most 100,000 entries of each strand. Returns how many. ]]
  function logs.tick(keys, args)
    local tick, home, age = keys[1], keys[#keys], valid.counted(args[1], 2 ^ 53, 'age')
    for at = 2, #args do
      valid.need(valid.number(args[at]), 'offset')
    end
    local last = extents.last(home)
    if not last or not ids.less(last, '1-0') then return 0 end
    local now = clock.now_ms()
    local newest = newest_of(tick, home)
    if not newest and redis.call('EXISTS', tick) == 1 then redis.call('XTRIM', tick, 'MAXLEN', '=', 0) end
    local every = age > 0 and math.max(SHORTEST_MS, age / TICKS_PER_AGE) or EVERY_MS
    if not newest or now - tonumber(string.match(newest[1], '^%d+')) >= every then
      redis.call('XADD', tick, 'MAXLEN', '~', MOST_TICKS, '*', 'o', string.match(last, '%d+$'), 't', epoch_of(home))
      redis.call('PEXPIRE', tick, string.format('%.0f', math.max(KEPT_MS, 2 * age)))
    end
    local upto, gone = age > 0 and reached(tick, now - age), 0
    if upto then
      for at = 2, #keys do
        local most = args[at] or upto
        gone = gone + evict(keys[at], ids.less_number(most, upto) and most or upto)
      end
    end
    return gone
  end

  --[[ log_older: FCALL bs_log_older 2 <tick> <home strand> <ms>
       The last offset that is at least so old, as far as the ticks show; 0 if there is none. ]]
  function logs.older(keys, args)
    local age = valid.counted(args[1], 2 ^ 53, 'age')
    if keys[2] and not newest_of(keys[1], keys[2]) then return 0 end
    return tonumber(reached(keys[1], clock.now_ms() - age) or '0')
  end
end

--[[ A strand of a log is written anew, to free memory: the engine keeps deleted entries until all of a radix-tree node
     are deleted (braid log compact).

       bs_log_copy    page by page: what is left is copied under its IDs, while the log is used
       bs_log_swap    the rest is copied, and the copy takes the place of the strand, with its groups and pending
                      entries

     Only deletions make a copy differ from its strand, and restored entries (mend.lua). So a copy of the same length,
     with the same first and last entry, is the same, if nothing was restored. ]]
do
  local COPIED_AT_ONCE, READ_AT_ONCE = 1000, 10
  local MOST_BYTES = 4000000
  local COPY_KEPT_MS = 600000

  -- The next 1,000 entries, or 4 MB. Returns whether there may be more. The copy expires if it is left.
  local function copy_page(strand, copy)
    local copied, size, last = 0, 0, extents.last(copy)
    local page
    repeat
      page = redis.call('XRANGE', strand, last and '(' .. last or '-', '+', 'COUNT', READ_AT_ONCE)
      for _, entry in ipairs(page) do
        redis.call('XADD', copy, entry[1], unpack(entry[2]))
        last, copied = entry[1], copied + 1
        for _, word in ipairs(entry[2]) do
          size = size + #word
        end
      end
    until #page < READ_AT_ONCE or copied >= COPIED_AT_ONCE or size >= MOST_BYTES
    redis.call('PEXPIRE', copy, COPY_KEPT_MS)
    return #page == READ_AT_ONCE
  end

  --[[ log_copy: FCALL bs_log_copy 2 <strand> <copy>
       Copies the next entries. Returns 1 if there may be more, else 0. ]]
  function logs.copy(keys) return copy_page(keys[1], keys[2]) and 1 or 0 end

  local function is_copy(copy, facts)
    local copied = extents.of(copy)
    return copied.length == facts.length and copied.first == facts.first and copied.tail == facts.tail
  end

  local function take_place(strand, copy, facts)
    local groups = rebuild.groups_with_pending(strand)
    if not groups then return redis.error_reply('BSBUSY too many entries are pending') end
    for _, group in ipairs(groups) do
      for _, row in ipairs(group.rows) do
        if consumer_groups.was_given_back(row) then
          return redis.error_reply('BSBUSY group ' .. group.name .. ' has entries that were given back by XNACK')
        end
      end
    end
    redis.call('UNLINK', strand)
    redis.call('RENAME', copy, strand)
    redis.call('PERSIST', strand)
    extents.set_id(strand, facts.last, 'ENTRIESADDED', facts.added, 'MAXDELETEDID', facts.deleted)
    rebuild.create_groups(strand, groups)
    rebuild.restore_pending(strand, groups)
  end

  --[[ log_swap: FCALL bs_log_swap 3 <meta> <strand> <copy> <label> <what `y:<label>` was when the copy was begun>
       Returns 1; 0 if there is more to copy than one call may. BSSTALE: entries were deleted or restored meanwhile, and
       the copy must be made again. BSBUSY: groups cannot be moved now.
       Why a function: no reader may see the log without its groups, and no write may get lost in between. ]]
  function logs.swap(keys, args)
    local meta, strand, copy, label = keys[1], keys[2], keys[3], args[1]
    if redis.call('EXISTS', strand) == 0 or (redis.call('HGET', meta, META.RESTORES .. label) or '') ~= args[2] then
      return redis.error_reply('BSSTALE the strand is another')
    end
    local needs =
      { 'UNLINK', 'RENAME', 'PERSIST', 'XSETID', 'XGROUP CREATE', 'XGROUP CREATECONSUMER', 'XCLAIM', 'XTRIM' }
    local refused = rights.denied(strand, unpack(needs))
      or rights.denied(copy, 'XADD', 'PEXPIRE', 'XTRIM', 'XGROUP CREATE', 'XGROUP DESTROY')
    if refused then return refused end
    if redis.call('EXISTS', copy) == 0 then streams.create_empty(copy) end
    if copy_page(strand, copy) then return 0 end
    local facts = extents.of(strand)
    if facts.first then
      redis.call('XTRIM', copy, 'MINID', '=', facts.first)
    else
      redis.call('XTRIM', copy, 'MAXLEN', '=', 0)
    end
    if not is_copy(copy, facts) then
      redis.call('UNLINK', copy)
      return redis.error_reply('BSSTALE entries were deleted meanwhile')
    end
    refused = take_place(strand, copy, facts)
    if refused then return refused end
    deadline.arm(meta, strand)
    return 1
  end
end

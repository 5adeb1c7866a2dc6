--[[ Logs (RCP 11, model/offset_log.py): streams with dense offsets, which one region gives out, the home.

       strand  t<epoch>.<w>, IDs 0-<offset>        `XADD strand NOMKSTREAM 0-* t <tag> e <entry>` counts by itself
       home    0.1:1 1.2:1018:1                    epoch 0: region 1, from offset 1; epoch 1: region 2, from 1018,
                                                   after the epoch of region 1
       log     3.1:1000:0:0                        version 3 of the settings, by region 1: pending, backlog, max age
       messages 1.2 1:1794713635841-0              in epoch 1.2 messages are accepted when the journal of region 1
                                                   was applied up to there

     A strand whose last ID is 1-0 is sealed: the engine refuses every further 0-*. ]]
do
  local SEALED = '1-0'
  local WRONG_TYPE = 'WRONGTYPE Operation against a key holding the wrong kind of value'
  local DEFAULTS = ':1000:0:0'
  local LONGEST_EPOCH, LONGEST_SETTINGS = 37, 64 -- characters

  local function epochs_of(text)
    local epochs = {}
    for word in string.gmatch(text or '', '%S+') do
      local epoch, writer, first, after = string.match(string.sub(word, 1, LONGEST_EPOCH + 1), '^(%d+)%.(%d+):(%d+)(:?%d*)$')
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
      if tostring(each.writer) == writer and not less(id, '0-' .. each.first) then found = string.format('%d', each.epoch) end
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
    for at, each in ipairs(epochs) do words[at] = string.format('%d.%d:', each.epoch, each.writer) .. each.first .. each.after end
    return table.concat(words, ' ')
  end

  --[[ The epochs that either knows. One that both know begins at the lower offset, after the epoch that was known there:
       its region was forced to begin before it learned where the old home had been sealed. ]]
  function logs.merge_homes(meta, theirs)
    local known = redis.call('HGET', meta, META.HOMES) or ''
    local epochs, seen = epochs_of(known), {}
    for _, each in ipairs(epochs) do seen[each.epoch .. '.' .. each.writer] = each end
    for _, each in ipairs(epochs_of(theirs)) do
      local mine = seen[each.epoch .. '.' .. each.writer]
      if not mine then
        epochs[#epochs + 1] = each
      elseif less_number(each.first, mine.first) or (each.first == mine.first and mine.after < each.after) then
        mine.first, mine.after = each.first, each.after
      end
    end
    local text = epochs_text(epochs)
    if text ~= known and #text <= valid.FIELD then redis.call('HSET', meta, META.HOMES, text) end
  end

  local function read_version(text)
    local version, writer = string.match(text or '', '^(%d+)%.(%d+):%d+:%d+:%d+$')
    if version and #text > LONGEST_SETTINGS then version, writer = nil, nil end
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

  --[[ Whether messages that former homes accepted have not arrived here. Those that are older than `duration` do not count.
       keys: the caller names the journals of the former homes from the seventh on. ]]
  function logs.lacks_messages(homes, messages, keys, now, duration)
    local epoch, rest = string.match(messages or '', '^(%S+)(.*)$')
    if not epoch or KIND.LOG .. epoch ~= logs.home_label(homes) then return false end
    local journals = {}
    for at = 7, #keys do journals[writer_of(keys[at])] = keys[at] end
    for writer, ms, seq in string.gmatch(rest, '(%d+):(%d+)(%-%d+)') do
      local journal = journals[writer]
      if journal and math.abs(now - ms) <= duration and less(last_of(journal) or '0-0', ms .. seq) then return true end
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
      if strand.own then own = select(2, split_label(strand.label)) end
    end
    local home = logs.home_label(redis.call('HGET', meta, META.HOMES))
    for id, key in pairs(named) do
      local label = string.match(id, '^[^:]+')
      local kind, writer = split_label(label)
      if kind == KIND.LOG and writer == own and label ~= home then
        local last = last_of(key)
        if last and less(last, SEALED) then extents.set_id(key, SEALED) end
      end
    end
  end

  -- Create the strand of an epoch. It starts just before the epoch's first offset.
  function logs.open(meta, strand, label, bell)
    create_strand(meta, strand, label, true, bell)
    for _, each in ipairs(epochs_of(redis.call('HGET', meta, META.HOMES))) do
      if KIND.LOG .. each.epoch .. '.' .. each.writer == label and each.first ~= '1' then
        local before = '0-' .. predecessor(each.first)
        if less(last_of(strand), before) then extents.set_id(strand, before) end
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
    local kind, writer, epoch = split_label(label)
    if kind ~= KIND.LOG then return redis.error_reply('BSBATCH ' .. label .. ' is no strand of a log') end
    local home = logs.home_label(redis.call('HGET', meta, META.HOMES))
    if home and home ~= label then return redis.error_reply('BSSTALE the home of this log is ' .. home) end
    if redis.call('EXISTS', strand) == 1 then
      register_again(meta, label, epoch)
      if not home then redis.call('HSET', meta, META.HOMES, epoch .. '.' .. writer .. ':1') end
      return 0
    end
    local emptied = forgotten(meta, label, args[3])
    if emptied then return emptied end
    local _, not_settled = deadline.settle(meta, keys)
    if not_settled then return not_settled end
    local bell = take_bell(keys, args[2] or '')
    if keys[3] and is_taken(meta, keys[3]) then return redis.error_reply(WRONG_TYPE) end
    if not logs.is_log(meta) and exists(meta) then return redis.error_reply(WRONG_TYPE) end
    local refused = create_refused(meta, label, bell) or denied(meta, 'XSETID')
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

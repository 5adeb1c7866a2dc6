--[[ The home of a log moves: an epoch ends, and the next one begins in another region (model/registry.py).

       seal      at the old home: notes the last offset N, and the engine refuses every further 0-*
                 the registry says `<epoch + 1>.<to>:N+1:<old home>`, and the new home starts there as soon as it knows
                 the registry also says which messages (TWRITE IDMP) former homes accepted, as positions in their
                 journals. The new home accepts messages when it has applied these
       force     at the new home, if the old one is lost: N is the last offset that has arrived here
       rescue    at the new home, if the old one is back: what it wrote after N gets new offsets, once ]]
-- fills: logs
-- uses: bells, extents, ids, registry, rights, streams, valid
do
  local SEALED = '1-0'
  local RESCUED_AT_ONCE = 1000
  local OFFSET_DIGITS = 16
  local LONGEST_EPOCH = 37 -- characters
  local MOST_NOTES = 1000 -- of one strand, about what was rescued

  -- The last epoch: number, writer, first offset; and all of them as text.
  local function current(meta)
    local homes = redis.call('HGET', meta, META.HOMES) or ''
    local word = string.sub(logs.last_word(homes), 1, LONGEST_EPOCH + 1)
    local epoch, writer, first = string.match(word, '^(%d+)%.(%d+):(%d+):?%d*$')
    return { number = epoch, writer = writer, first = first, text = homes }
  end

  -- messages: positions in journals, as text.
  local function begin(meta, now, to, after, messages)
    local first, next_one = ids.successor(after), string.format('%d', now.number + 1) .. '.' .. to
    local homes = now.text .. ' ' .. next_one .. ':' .. first .. ':' .. now.writer
    redis.call('HSET', meta, META.HOMES, homes, META.MESSAGES, next_one .. messages)
    return tonumber(first)
  end

  -- Where the journals of former homes end here, or further: this home may not have applied all of them yet.
  local function journals_end(meta, keys, to)
    local ends, words = {}, {}
    for writer, id in string.gmatch(redis.call('HGET', meta, META.MESSAGES) or '', ' (%d+):(%d+%-%d+)') do
      ends[writer] = id
    end
    for at = 3, #keys do
      local writer, last = registry.writer_of(keys[at]), extents.last(keys[at])
      if last and ids.less(ends[writer] or '0-0', last) then ends[writer] = last end
    end
    for writer, id in pairs(ends) do
      if writer ~= to then words[#words + 1] = ' ' .. writer .. ':' .. id end
    end
    table.sort(words)
    return table.concat(words)
  end

  -- Where the strand of an epoch ends here: the offset, or nil if it is sealed.
  local function end_here(meta, strand, label, first)
    local _, _, cut = registry.registered(meta, label)
    local last = extents.last(strand) or cut or '0-0'
    if not ids.less(last, SEALED) then return nil end
    local offset, before = string.match(last, '%d+$'), ids.predecessor(first)
    return ids.less_number(offset, before) and before or offset
  end

  local function last_epoch_ends(meta, strand, now)
    return end_here(meta, strand, KIND.LOG .. now.number .. '.' .. now.writer, now.first)
  end

  -- The last offset here of the first of these epochs that is incomplete here; nil if all are complete.
  local function first_gap(meta, keys, args)
    for at = 4, #keys do
      local label, first, last = unpack(args, 3 * at - 7, 3 * at - 5)
      local offset = end_here(meta, keys[at], label, first)
      if offset and ids.less_number(offset, last) then return offset end
    end
  end

  --[[ log_seal: FCALL bs_log_seal n <meta> <strand of the last epoch> <journal of a home>... <its epoch> <its writer>
       <to> Returns the first offset of the next epoch. BSSTALE: the last epoch is another. You can call it again. ]]
  function logs.seal(keys, args)
    local meta, strand, now = keys[1], keys[2], current(keys[1])
    valid.counted(args[3], WRITERS, 'writer')
    if now.writer == args[3] then return tonumber(now.first) end -- it is the home already
    if now.number ~= args[1] or now.writer ~= args[2] then return redis.error_reply('BSSTALE the home has moved') end
    local after = last_epoch_ends(meta, strand, now)
    if not after then return redis.error_reply('BSSTALE the log is sealed') end
    local refused = rights.denied(meta, 'HSET', 'XSETID')
    if refused then return refused end
    if redis.call('EXISTS', strand) == 1 then extents.set_id(strand, SEALED) end
    return begin(meta, now, args[3], after, journals_end(meta, keys, args[3]))
  end

  --[[ log_force: the same at the new home, whose copy may lack the end. The strand is not sealed here: its writer does
       that when it learns of the next epoch. If the copy of an earlier epoch lacks its end, the next one begins there.
       The new strand is created at once: if nothing is ever written to it, it can still be sealed. Without that,
       readers would wait for its offsets if another epoch follows that begins later.
       If <to> is the home already, and an earlier epoch lacks its end here (the old home was lost after it was sealed,
       before its last entries arrived), the next epoch begins there, too. What the home wrote since is rescued then.
       It waits for no messages of former homes any more.
       FCALL bs_log_force n <meta> <strand> <new strand> <earlier strand>... [<bell>]
             <epoch> <writer> <to> <stamp> (<label> <first> <last>)... ]]
  function logs.force(keys, args)
    local meta, strand, now, bell = keys[1], keys[2], current(keys[1]), bells.take(keys, args[4])
    valid.counted(args[3], WRITERS, 'writer')
    for at = 5, 4 + 3 * (#keys - 3) do
      valid.need(args[at], 'epoch')
    end
    local gap, is_home = first_gap(meta, keys, args), now.writer == args[3]
    if is_home and (not gap or now.number ~= args[1]) then
      redis.call('HSET', meta, META.MESSAGES, now.number .. '.' .. now.writer)
      return tonumber(now.first)
    end
    if now.number ~= args[1] or now.writer ~= args[2] then return redis.error_reply('BSSTALE the home has moved') end
    local after = gap or last_epoch_ends(meta, strand, now)
    if not after then return redis.error_reply('BSSTALE the log is sealed') end
    local label = KIND.LOG .. string.format('%d', now.number + 1) .. '.' .. args[3]
    local refused = streams.create_refused(meta, label, bell) or rights.denied(meta, 'XSETID')
    if refused then return refused end
    if is_home and redis.call('EXISTS', strand) == 1 then extents.set_id(strand, SEALED) end
    local first = begin(meta, now, args[3], after, '')
    logs.open(meta, keys[3], label, bell)
    return first
  end

  --[[ The note `r:<name>` -> <upto>: whose offsets, after which one. Before version 21 they began at 1. nil if it is
       malformed: it counts nowhere, also not in operations/log_upkeep.py. ]]
  function logs.read_note(name, upto)
    if #name > 64 then return nil end
    local whose, after = string.match(name, '^([^:]+):?(%d*)$')
    if not whose or #after > OFFSET_DIGITS or #upto > OFFSET_DIGITS then return nil end
    if not string.match(upto, '^[1-9]%d*$') then return nil end
    return whose, after == '' and '0' or after
  end

  -- The offsets of an old strand that were appended again: lists of {after, upto}.
  local function rescued(meta, label)
    local fields, spans = redis.call('HGETALL', meta), {}
    for at = 1, #fields, 2 do
      local prefix, name = registry.split_field(fields[at])
      if prefix == META.RESCUED then
        local whose, after = logs.read_note(name, fields[at + 1])
        if whose == label then spans[#spans + 1] = { after, fields[at + 1] } end
      end
    end
    return spans
  end

  local function is_within(spans, offset)
    for _, range in ipairs(spans) do
      if ids.less_number(range[1], offset) and not ids.less_number(range[2], offset) then return true end
    end
    return false
  end

  --[[ log_rescue: FCALL bs_log_rescue 2 <meta> <home strand> <home label> <label of the old strand> <end of its epoch>
       (<offset> <tag> <entry>)... Appends entries of an old home that are beyond its epoch. `r:<label>:<end>` notes the
       last one, so each is appended once. If two regions were forced to be the home, the epoch may end earlier later:
       then the entries between are new. Returns how many were new. BSSTALE: the home is another, or its strand does not
       exist. ]]
  function logs.rescue(keys, args)
    local meta, home, field = keys[1], keys[2], META.RESCUED .. args[2] .. ':' .. args[3]
    if logs.home_label(redis.call('HGET', meta, META.HOMES)) ~= args[1] or redis.call('EXISTS', home) == 0 then
      return redis.error_reply('BSSTALE the home is another')
    end
    if #args > 3 + 3 * RESCUED_AT_ONCE or #args % 3 ~= 0 then return redis.error_reply('BSBATCH malformed entries') end
    valid.need(logs.read_note(args[2] .. ':' .. args[3], '1'), 'label')
    for at = 4, #args, 3 do
      valid.need(valid.number(args[at]), 'offset')
    end
    local spans, upto, done = rescued(meta, args[2]), nil, 0
    if #spans > MOST_NOTES then return redis.error_reply('BSDAMAGED too many fields ' .. META.RESCUED .. args[2]) end
    for at = 4, #args, 3 do
      if not is_within(spans, args[at]) then
        redis.call('XADD', home, 'NOMKSTREAM', '0-*', 't', args[at + 1], 'e', args[at + 2])
        upto, done = args[at], done + 1
      end
    end
    if upto then redis.call('HSET', meta, field, upto) end
    return done
  end
end

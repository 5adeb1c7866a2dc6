--[[ The journal of a writer: its deletions of single entries, for the peers. Everything else is replicated as
     state. The journal is bounded: a peer that is further behind compares the strands instead. ]]
-- fills: journals
-- uses: extents, ids, registry, streams, valid
do
  local JOURNAL_LENGTH = 10000
  local DELETED_BYTES = 1048576 -- of the IDs in one entry

  function journals.write(key, ...) redis.call('XADD', key, 'MAXLEN', '~', JOURNAL_LENGTH, '*', ...) end

  -- Its links trim it (replication/daemon/carrier.py).
  function journals.could_be_shorter(facts, now)
    if facts.length < 2 or not facts.first then return false end
    return facts.length > journals.KEPT or tonumber(string.match(facts.first, '^%d+')) < now - journals.KEPT_MS
  end

  -- by_trim: a trim removed them, entry by entry. Lakes keep them then.
  function journals.add_deletions(key, strand, entry_ids, by_trim)
    local words = { JOURNAL.DELETED, strand .. ' ' .. table.concat(entry_ids, ' ') }
    if by_trim then words = { words[1], words[2], JOURNAL.BY, JOURNAL.TRIM } end
    journals.write(key, unpack(words))
  end

  -- `d:` of a strand: a trim removes these entries one by one. An archive must not take them for deleted.
  function journals.note_trimmed(meta, strand, entry_ids)
    local label, life = string.match(strand, '^(%a[%d.]+):(%d+)$')
    if not label then return end
    local had_life, upto = string.match(redis.call('HGET', meta, META.TRIMMED .. label) or '', '^(%d+) (%d+-%d+)$')
    if had_life ~= life then upto = '0-0' end
    local last = upto
    for _, id in ipairs(entry_ids) do
      if ids.less(last, id) then last = id end
    end
    if last ~= upto then redis.call('HSET', meta, META.TRIMMED .. label, life .. ' ' .. last) end
  end

  function journals.add_messages(key, settings, producer, ...)
    journals.write(key, JOURNAL.MESSAGES, settings, JOURNAL.BY, producer, ...)
  end

  -- The strand and the IDs; nil if the words are no deletion.
  function journals.read_deletions(words)
    local strand, rest = string.match(words[1] == JOURNAL.DELETED and words[2] or '', '^(%S+) (.+)$')
    if not strand or #rest > DELETED_BYTES then return nil end
    local entry_ids = {}
    for id in string.gmatch(rest, '%S+') do
      entry_ids[#entry_ids + 1] = id
    end
    return strand, entry_ids
  end

  -- The settings, the producer and the messages: iid, `ms-n:w`, iid, ...; nil if the words are malformed.
  function journals.read_messages(words)
    if #words < 6 or #words % 2 == 1 then return nil end
    return words[2], words[4], { unpack(words, 5) }
  end

  --[[ journal_apply: apply entries of a peer's journal, and append them to our copy of it.
       FCALL bs_journal_apply n <meta> <journal> <strand>... <strands> (<label:life>)... <after> (<id> <n> <word> *
       n)... Returns how many entries are applied here; fewer than were sent if one has to wait.

         del  <label:life> <id> <id> ...     these entries were deleted; with `by trim` a trim did it
         idmp ...                            these messages were accepted, see idempotence.lua

       A journal entry about stream entries that have not arrived here waits, and so do all after it: if the
       deletion came first, the stream entry would come back. <after> guards against gaps, as in strand_apply.
       Why a function: the effect and the position in the journal must be one step. ]]
  function journals.strand_named(meta, named, id)
    local label, life = string.match(id, '^(%a[%d.]+):(%d+)$')
    if not label or not registry.split_label(label) then return nil end
    local has_life, state, cut = registry.registered(meta, label)
    if not has_life or ids.less_number(has_life, life) then return { ends = '0-0' } end
    if has_life ~= life then return { ends = ids.MAX .. '-' .. ids.MAX } end -- that life is over
    if state == '-' then return { ends = cut } end
    return { key = named[id], ends = named[id] and extents.last(named[id]) or '0-0' }
  end

  local function apply_deletion(meta, named, words)
    local which, entry_ids = journals.read_deletions(words)
    local strand = which and journals.strand_named(meta, named, which)
    if not strand then return false end
    for _, id in ipairs(entry_ids) do
      if not streams.is_id(id) or ids.less(strand.ends, id) then return false end
    end
    if strand.key then
      if words[4] == JOURNAL.TRIM then journals.note_trimmed(meta, which, entry_ids) end
      for _, id in ipairs(entry_ids) do
        extents.delete(strand.key, id)
      end
    end
    return true
  end

  journals.VERBS = { [JOURNAL.DELETED] = apply_deletion }

  function journals.apply(keys, args)
    local meta, copy, named, count =
      keys[1], keys[2], {}, valid.counted(args[1], math.min(#keys, #args), 'number of strands')
    for at = 1, count do
      named[args[1 + at]] = keys[2 + at]
    end
    local after, first = args[2 + count], 3 + count
    local starts, wrong = streams.batch_of(args, first)
    if not starts or not streams.is_id(after) then
      return redis.error_reply('BSBATCH malformed journal at argument ' .. (wrong or first))
    end
    local last = extents.last(copy) or '0-0'
    if ids.less(last, after) then
      return redis.error_reply('BSGAP our copy ends at ' .. last .. ', the batch follows ' .. after)
    end
    local done = 0
    for _, start in ipairs(starts) do
      if ids.less(last, args[start]) then
        local words = { unpack(args, start + 2, start + 1 + tonumber(args[start + 1])) }
        local verb = journals.VERBS[words[1]]
        if not verb then return redis.error_reply('BSJOURNAL ' .. words[1] .. ' is unknown: run braid init here') end
        if not verb(meta, named, words) then return done end
        local reply = redis.pcall('XADD', copy, args[start], unpack(words))
        if type(reply) == 'table' and reply.err then return reply end
        last = args[start]
      end
      done = done + 1
    end
    return done
  end

  --[[ journal_skip: the link compared whole strands instead: the writer's journal up to <id> counts as applied.
       FCALL bs_journal_skip 1 <journal> <id>
       The copy shows one entry added and deleted, so that its readers detect the gap. ]]
  function journals.skip(keys, args)
    local copy, id = keys[1], valid.need(streams.is_id(args[1]), 'ID')
    if redis.call('EXISTS', copy) == 0 then streams.create_empty(copy) end
    if not ids.less(extents.last(copy), id) then return 0 end -- another link was faster, keep it
    redis.call('XTRIM', copy, 'MAXLEN', '0')
    extents.set_id(copy, id, 'ENTRIESADDED', '1', 'MAXDELETEDID', id)
    return 1
  end
end

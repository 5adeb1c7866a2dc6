--[[ Trims leave a record. Without one, a strand that lost its oldest entries would look like one that was trimmed,
     and the peers would delete theirs.

     XTRIM and XADD with MAXLEN are native commands and record nothing. But while one server process runs, entries
     disappear only by commands, and the engine counts how many (entries added, less the length). So the registry
     notes where a strand begins and which process serves it, and each time a link reads the stream, the
     difference to the note is what was trimmed:

       s:<label>   <life> <process> <first> <removed> <known> <resumed>    the note; local to this region
       t:<label>   <life> <from>~<upto>,...                                what was trimmed, without `upto`;
                                                                           replicated, as a union

                 noted     5 6 7 8 9 |          removed 4
                 now           7 8 9 10 |       removed 6, the same process: `t:` gets 5~7

     If another process serves the strand, nothing is concluded: a link compares it with a peer
     (replication/heal/holes.py), and then notes the new process (bs_strand_note). It knows nothing of IDs between
     <known>, the last entry that was compared, and <resumed>, the first that it wrote since: a third region may have
     lost entries with such IDs. So they are in no range until all peers were compared. `?9-1` as <resumed>: nothing was
     written after 9-1 yet. ]]
-- fills: trims
-- uses: extents, ids, journals, ranges, registry, streams
do
  local JOURNAL_PAGE = 200 -- how many entries of a journal are read
  local MOST = 64 -- ranges of a strand; what is beyond them counts as not trimmed

  local run -- stays the same while the process runs, as this variable does

  -- The process that serves this data. A promoted replica has another replication ID.
  function trims.process()
    if not redis.acl_check_cmd('INFO', 'server') then return nil end
    run = run or string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    local replication = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
    return run and replication and string.sub(run, 1, 12) .. string.sub(replication, 1, 12)
  end

  local function read_note(meta, label)
    local pattern = '^(%d+) (%x+) (%d+%-%d+) (%d+) (%d+%-%d+) (%??%d+%-%d+)$'
    local life, process, first, removed, known, resumed =
      string.match(redis.call('HGET', meta, META.HEAD .. label) or '', pattern)
    return { life = life, process = process, first = first, removed = removed, known = known, resumed = resumed }
  end

  local function write_note(meta, label, note)
    local words = { note.life, note.process, note.first, note.removed, note.known, note.resumed }
    redis.call('HSET', meta, META.HEAD .. label, table.concat(words, ' '))
  end

  local function removed_of(facts) return string.format('%.0f', facts.added - facts.length) end

  local function first_of(facts) return facts.first or ids.following(facts.last) end

  function trims.read(value)
    local life, text = string.match(value or '', '^(%d+) (%S+)$')
    local list = life and ranges.lists.read(text)
    if list and #list <= MOST then return life, list end
  end

  function trims.add(meta, label, life, list)
    local known_life, known = trims.read(redis.call('HGET', meta, META.TRIMS .. label))
    if known_life and ids.less_number(life, known_life) then return end
    local all = ranges.lists.union(known_life == life and known or {}, list)
    for at = #all, MOST + 1, -1 do
      all[at] = nil
    end
    local text = life .. ' ' .. ranges.lists.text(all)
    if text ~= redis.call('HGET', meta, META.TRIMS .. label) then
      redis.call('HSET', meta, META.TRIMS .. label, text)
    end
  end

  -- This process has created the strand, and has all of it from `first` on. facts: if it has had entries.
  function trims.begin(meta, label, life, first, facts)
    local process, removed = trims.process(), facts and removed_of(facts) or '0'
    local note = { life = life, process = process, first = first, removed = removed, known = first, resumed = first }
    if process then write_note(meta, label, note) end
  end

  -- Whether this process did not note the strand: another one did, or the registry has lost the note. So this one may
  -- lack some of it. process: empty if the caller may not see which it is.
  function trims.is_doubtful(meta, label, life, process)
    local note = read_note(meta, label)
    return process ~= '' and not (note.life == life and note.process == process)
  end

  -- The ranges between two first entries that this process had.
  local function had(note, first)
    local upto, from = ids.following(note.known), note.first
    if ids.less(first, upto) then upto = first end
    local list = ids.less(from, upto) and { { from, upto } } or {}
    if ids.less(from, note.resumed) then from = note.resumed end
    if ids.less(from, first) then list = ranges.lists.union(list, { { from, first } }) end
    return list
  end

  --[[ Whether the journals say that XDEL removed the former first entry, `from`, and at least `count` entries before
       the present one, `upto`. Then there was no trim, and the deletions travel by the journals. A copy may never have
       had other IDs in between: its owner lost them. A trim removes the first entry itself. ]]
  local function were_deleted(journal_keys, strand, from, upto, count)
    local found, seen = 0, {} -- two regions may have deleted one entry
    for _, key in ipairs(journal_keys) do
      for _, entry in ipairs(redis.call('XREVRANGE', key, '+', '-', 'COUNT', JOURNAL_PAGE)) do
        local which, entry_ids = journals.read_deletions(entry[2])
        for _, id in ipairs(which == strand and entry_ids or {}) do
          if not seen[id] and streams.is_id(id) and not ids.less(id, from) and ids.less(id, upto) then
            found, seen[id] = found + 1, true
          end
        end
      end
    end
    return seen[from] and found >= count
  end

  -- A link reads the strand. journal_keys: of journals that may have deleted entries of it.
  function trims.note(meta, label, life, strand, facts, journal_keys)
    local note, first, last = read_note(meta, label), first_of(facts), facts.last
    local waits = note.life and string.match(note.resumed, '^%?(.*)$')
    local is_resumed = waits and ids.less(waits, last)
    if note.life ~= life or (note.first == first and not is_resumed) or note.process ~= trims.process() then return end
    local gone = removed_of(facts)
    if ids.less_number(gone, note.removed) then -- not the same key: somebody wrote it again
      redis.call('HDEL', meta, META.HEAD .. label)
      return
    end
    if is_resumed then
      local entry = redis.call('XRANGE', strand, '(' .. waits, '+', 'COUNT', 1)[1]
      note.resumed, waits = entry and entry[1] or ids.following(last), nil
    end
    if waits then note.resumed = ids.following(waits) end
    if ids.less(note.first, first) and ids.less_number(note.removed, gone) then
      local list, id = had(note, first), label .. ':' .. life
      local is_trim = ids.less(facts.deleted, note.first)
        or not were_deleted(journal_keys, id, note.first, first, gone - note.removed)
      if is_trim and list[1] then trims.add(meta, label, life, list) end
    end
    if waits then note.resumed = '?' .. waits end
    note.first, note.removed = first, gone
    write_note(meta, label, note)
  end

  -- A function has removed entries for which there is a record: the note follows, and no range is added.
  function trims.moved(meta, label, life, strand)
    local note = read_note(meta, label)
    if note.life ~= life or note.process ~= trims.process() then return end
    extents.forget(strand)
    local facts = extents.of(strand)
    note.first, note.removed = first_of(facts), removed_of(facts)
    write_note(meta, label, note)
  end

  --[[ strand_trim: trim what a record names. FCALL bs_strand_trim 2 <meta> <strand> <label> <life> <upto>
       Returns how many entries were removed. ]]
  function trims.strand_trim(keys, args)
    local meta, strand, label, life, upto = keys[1], keys[2], args[1], args[2], args[3]
    local has_life, state = registry.registered(meta, label)
    if has_life ~= life or state ~= '+' or redis.call('EXISTS', strand) == 0 then return 0 end
    if not streams.is_id(upto) then return redis.error_reply('BSBATCH malformed ID') end
    trims.note(meta, label, life, strand, extents.of(strand), {})
    local removed = redis.call('XTRIM', strand, 'MINID', '=', upto)
    trims.moved(meta, label, life, strand)
    return removed
  end

  --[[ strand_note: a link has compared a strand with a peer, and it lacks nothing up to <known> and from <resumed> on.
       FCALL bs_strand_note 2 <meta> <strand> <label> <life> <process> <first> <last> <removed> <known> <resumed>
             [<from> <upto>]
       With a range: this was trimmed. Nothing is noted, and 0 returned, unless this process serves the strand, and
       it has this first entry and number of removed entries, and reaches <last>. ]]
  function trims.strand_note(keys, args)
    local meta, strand, label = keys[1], keys[2], args[1]
    local has_life, state = registry.registered(meta, label)
    if has_life ~= args[2] or state ~= '+' or redis.call('EXISTS', strand) == 0 then return 0 end
    local facts, known, resumed, from, upto = extents.of(strand, true), args[7], args[8], args[9], args[10]
    if not streams.is_id(known) or not streams.is_id(string.gsub(resumed, '^%?', '')) then
      return redis.error_reply('BSBATCH malformed ID')
    end
    local note = { life = args[2], process = trims.process(), first = first_of(facts), removed = removed_of(facts) }
    if note.process ~= args[3] or note.first ~= args[4] or note.removed ~= args[6] then return 0 end
    if not streams.is_id(args[5]) or ids.less(facts.last, args[5]) then return 0 end
    if from then
      if not (streams.is_id(from) and streams.is_id(upto) and ids.less(from, upto)) then
        return redis.error_reply('BSBATCH malformed range')
      end
      trims.add(meta, label, note.life, { { from, upto } })
    end
    note.known, note.resumed = known, resumed
    write_note(meta, label, note)
    return 1
  end
end

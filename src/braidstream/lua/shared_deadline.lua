--[[ The replicated deadline of a stream with peers: its fields in the registry, and which of two wins. deadline.lua says what
     they mean, and carries it out.

        until   <version> <ms, 0 for none>      the later version wins, then the later time; none is the latest
        ended   <version> <0|1|2>               the step that was done here; local to this region. 0: the deadline was known
                                                here before it was over
        again   <version> <ms>                  after this deadline a region has entries with chosen IDs, which do not show
                                                that they are later: the stream was started again. The later one wins ]]
do
  local shared = {}
  deadline.shared = shared

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
    if at > now_ms() then redis.call('HSET', meta, META.ENDED, string.format('%.0f 0', version)) end
  end

  -- The step of a deadline that was done here: 0, 1 or 2.
  function shared.step_of(meta, known)
    local version, step = string.match(redis.call('HGET', meta, META.ENDED) or '', '^(%d+) (%d)$')
    if not version or tonumber(version) < known.version then return 0 end
    return tonumber(step)
  end

  function shared.note_step(meta, known, step) redis.call('HSET', meta, META.ENDED, string.format('%.0f %d', known.version, step)) end

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

  --[[ If two regions set a deadline at once, the later one may be over when it arrives: what was added after the earlier one may
       be later than both. ]]
  function deadline.merge(meta, text)
    local ours, theirs = shared.of(meta), shared.read(text)
    if not is_later(theirs, ours) then return end
    local is_used = theirs.version == ours.version and theirs.at > 0 and theirs.at <= now_ms() and shared.is_used_again(meta, ours)
    shared.write(meta, theirs.version, theirs.at)
    if is_used then shared.note_again(meta, theirs) end
  end

  -- Each region carries a deadline out, and all count it alike: its version and its time, under numbers that no writer has.
  local function counted_as(known) return { [0] = known.version, [WRITERS] = known.at } end

  function deadline.is_counted(meta, known)
    return covers(vector_of(redis.call('HGET', meta, META.DELETIONS)), counted_as(known))
  end

  function deadline.count(meta, known)
    local counts = joined(vector_of(redis.call('HGET', meta, META.DELETIONS)), counted_as(known))
    redis.call('HSET', meta, META.DELETIONS, vector_text(counts))
  end
end

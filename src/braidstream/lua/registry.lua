--[[ The registry of a stream: how its fields are read. META names them (model/fields.py); beside those there is one
     field for each strand, by its label: `s2` or `c2`, of a log `t<epoch>.2` -> `<life>:<state>:<cut>`
       +   the key exists; if its last ID is still the cut, nothing was appended since it was created again
       -   deleted; the cut is its last ID before the deletion ]]
-- fills: registry, vectors
-- uses: valid
do
  -- Splits a field into its prefix and the rest; nil without a prefix.
  function registry.split_field(field) return string.match(field, '^(%a:)(.*)$') end

  -- Splits a strand's label into kind and writer; nil for any other field.
  function registry.split_label(field)
    local kind, writer = string.match(field, '^(%a)(%d+)$')
    if kind == KIND.GENERATED or kind == KIND.CHOSEN then return kind, writer end
    local epoch
    kind, epoch, writer = string.match(field, '^(%a)(%d+)%.(%d+)$')
    if kind == KIND.LOG then return kind, writer, epoch end
  end

  function registry.is_chosen(label) return registry.split_label(label) == KIND.CHOSEN end

  function registry.read_strand(value)
    if #value <= 64 then return string.match(value, '^(%d+):([+-]):(%d+%-%d+)$') end
  end

  -- Life and cut of a strand that exists; nil for a deleted strand and for any other field.
  function registry.there(field, value)
    if not registry.split_label(field) then return nil end
    local life, state, cut = registry.read_strand(value)
    if state == '+' then return life, cut end
  end

  function registry.registered(meta, label)
    local value = redis.call('HGET', meta, label)
    if value then return registry.read_strand(value) end
  end

  --[[ The error if a caller knows a strand (its `word` says so) that the registry has never had. Deleted strands stay
       registered, so the server was emptied: the caller must read first which region it is now. Else nil. ]]
  function registry.forgotten(meta, label, word)
    if not string.find(word or '', 'known', 1, true) or registry.registered(meta, label) then return nil end
    return redis.error_reply('BSSTALE this server does not know the strand ' .. label)
  end

  function registry.register(meta, label, life, state, cut)
    redis.call('HSET', meta, label, life .. ':' .. state .. ':' .. cut)
  end

  -- Called when the key exists: if the registry lacks it, the registry lost the field. Clients that cached the stream
  -- without it look again, because the stamp of the bell is another one (strand.lua).
  function registry.register_again(meta, label, life, cut)
    if redis.call('HSETNX', meta, label, life .. ':+:' .. (cut or '0-0')) == 0 then return end
    local bell = redis.call('HGET', meta, META.BELL)
    if bell then redis.call('HSET', meta, META.BELL, string.format('%.0f', bell + 1)) end
  end

  -- The writer of a strand's or a journal's key.
  function registry.writer_of(key) return string.match(key, '^' .. KEY_PREFIX .. '(%d+):') end
end

--[[ Version vectors: deletions counted by writer. `1.2,3.1` means two by writer 1, one by writer 3. A group
     exists only while its creator's vector covers every deletion known here. Vectors merge by maximum.
     0 and WRITERS are no writers: they count deadlines (deadline.lua). ]]
do
  function vectors.of(text)
    local counts = {}
    for word in string.gmatch(text or '', '[^,]+') do
      local writer, count = string.match(word, '^(%d+)%.(%d+)$')
      if writer and #count <= 16 and valid.count(writer, WRITERS) then counts[tonumber(writer)] = tonumber(count) end
    end
    return counts
  end

  function vectors.text(counts)
    local writers, words = {}, {}
    for writer in pairs(counts) do
      writers[#writers + 1] = writer
    end
    table.sort(writers)
    for _, writer in ipairs(writers) do
      words[#words + 1] = string.format('%d.%.0f', writer, counts[writer])
    end
    return table.concat(words, ',')
  end

  function vectors.covers(seen, counts)
    for writer, count in pairs(counts) do
      if (seen[writer] or 0) < count then return false end
    end
    return true
  end

  function vectors.joined(a, b)
    local counts = {}
    for writer, count in pairs(a) do
      counts[writer] = count
    end
    for writer, count in pairs(b) do
      counts[writer] = math.max(counts[writer] or 0, count)
    end
    return counts
  end

  -- Count one more deletion by a writer. Writer 0 is a region without peers: no count is needed.
  function vectors.count(meta, field, writer)
    if writer == '0' then return end
    local counts, number = vectors.of(redis.call('HGET', meta, field)), tonumber(writer)
    counts[number] = (counts[number] or 0) + 1
    redis.call('HSET', meta, field, vectors.text(counts))
  end
end

--[[ What XINFO STREAM says of a strand, without the entries at its two ends: it copies them, and an entry may have 100
     MB. No command shows their IDs alone. So if they are large, the links' functions keep the facts in memory. Commands
     that copy nothing show whether the facts still hold, and only entries that were added since are read:

         XRANGE - (first      empty: nothing was put before the first entry
         XRANGE (tail +       what was added since; its last entry is the tail now, and the last ID
         XLEN                 as before, plus what was added: so nothing was removed

     A last ID that was raised (XSETID), or is that of an entry which was added and deleted since, they do not show.
     Functions that do that use extents.set_id and extents.delete, which forget the facts. What other commands did is
     seen after KEPT_MS.

     A function does not see in which database it runs, and several may have the same key. So facts are kept only while
     one database has keys. ]]
-- fills: extents
-- uses: clock, ids, rights
do
  local LARGE, KEPT_MS, MOST = 65536, 60000, 1000
  local MOST_WORDS = 4096 -- of the added entries: they may have one hash (entry.lua)
  local STEP = 32 -- how many of the added entries are read at once
  local kept, count = {}, 0

  -- nil if several have keys, or if the user may not ask.
  local function only_database()
    if not redis.acl_check_cmd('INFO', 'keyspace') then return nil end
    local text = redis.call('INFO', 'keyspace')
    local first, last = string.match(text, '\n(db%d+):'), string.match(text, '.*\n(db%d+):')
    return first == last and first or nil
  end

  local function width_of(entry)
    local width = 0
    for _, word in ipairs(entry and entry[2] or {}) do
      width = width + #word
    end
    return width
  end

  local function read(key)
    local info, found = redis.call('XINFO', 'STREAM', key), {}
    for at = 1, #info, 2 do
      found[info[at]] = info[at + 1]
    end
    local first, tail = found['first-entry'], found['last-entry']
    local facts = {
      last = found['last-generated-id'],
      first = first and first[1],
      tail = tail and tail[1],
      length = found.length,
      added = found['entries-added'] or 0,
      deleted = found['max-deleted-entry-id'] or '0-0',
      width = width_of(tail), -- of the tail, in bytes
      nodes = found['radix-tree-keys'],
      groups = found.groups,
    }
    return facts, width_of(first) + facts.width > LARGE
  end

  -- Add what was appended since to the facts. Returns whether they hold.
  local function follow(key, facts)
    if facts.tail == ids.MAX .. '-' .. ids.MAX then return false end
    if #redis.call('XRANGE', key, '-', '(' .. facts.first, 'COUNT', 1) > 0 then return false end
    local added, words, step = 0, 0, 1
    while added < MOST do
      local part = redis.call('XRANGE', key, '(' .. facts.tail, '+', 'COUNT', step)
      for _, entry in ipairs(part) do
        facts.tail, facts.width, words = entry[1], width_of(entry), words + #entry[2]
      end
      added = added + #part
      if #part < step then break end
      if words > MOST_WORDS then return false end
      local room = math.floor((MOST_WORDS - words) * added / (words + 1))
      step = facts.width > LARGE and 1 or math.max(1, math.min(2 * step, STEP, room))
    end
    if added > 0 then facts.last = facts.tail end
    facts.length, facts.added = facts.length + added, facts.added + added
    return added < MOST and facts.length == redis.call('XLEN', key)
  end

  function extents.forget(key)
    if kept[key] then
      kept[key], count = nil, count - 1
    end
  end

  -- The facts of an existing strand. keep: for a link, which asks often, and can wait if the last ID is an old one.
  function extents.of(key, keep)
    local facts = keep and kept[key]
    if facts and rights.denied(key, 'XLEN') then facts = nil end -- daemons before version 27 needed no such right
    local is_fresh = facts and math.abs(clock.now_ms() - facts.since) <= KEPT_MS
    if is_fresh and facts.database == only_database() and follow(key, facts) then return facts end
    extents.forget(key)
    local is_large
    facts, is_large = read(key)
    facts.database = keep and is_large and only_database() or nil
    if facts.database then
      if count >= MOST then
        kept, count = {}, 0
      end
      facts.since, kept[key], count = clock.now_ms(), facts, count + 1
      facts.nodes, facts.groups = nil, nil -- they change with any entry and any group
    end
    return facts
  end

  -- The number of radix-tree nodes.
  function extents.nodes_of(key) return read(key).nodes end

  function extents.set_id(key, ...)
    extents.forget(key)
    return redis.call('XSETID', key, ...)
  end

  function extents.delete(key, ...)
    extents.forget(key)
    return redis.call('XDEL', key, ...)
  end

  function extents.last(key, keep)
    if redis.call('EXISTS', key) == 0 then return nil end
    return extents.of(key, keep).last
  end
end

--[[ A strand of a log is written anew, to free memory: the engine keeps deleted entries until all of a radix-tree node are
     deleted (braid log compact).

       bs_log_copy    page by page: what is left is copied under its IDs, while the log is used
       bs_log_swap    the rest is copied, and the copy takes the place of the strand, with its groups and pending entries

     Only deletions make a copy differ from its strand, and restored entries (mend.lua). So a copy of the same length,
     with the same first and last entry, is the same, if nothing was restored. ]]
do
  local COPIED_AT_ONCE, READ_AT_ONCE = 1000, 10
  local MOST_BYTES = 4000000
  local COPY_KEPT_MS = 600000

  -- The next 1,000 entries, or 4 MB. Returns whether there may be more. The copy expires if it is left.
  local function copy_page(strand, copy)
    local copied, size, last, page = 0, 0, last_of(copy), nil
    repeat
      page = redis.call('XRANGE', strand, last and '(' .. last or '-', '+', 'COUNT', READ_AT_ONCE)
      for _, entry in ipairs(page) do
        redis.call('XADD', copy, entry[1], unpack(entry[2]))
        last, copied = entry[1], copied + 1
        for _, word in ipairs(entry[2]) do size = size + #word end
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
        if was_given_back(row) then return redis.error_reply('BSBUSY group ' .. group.name .. ' has entries that were given back by XNACK') end
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
    local needs = { 'UNLINK', 'RENAME', 'PERSIST', 'XSETID', 'XGROUP CREATE', 'XGROUP CREATECONSUMER', 'XCLAIM', 'XTRIM' }
    local refused = denied(strand, unpack(needs)) or denied(copy, 'XADD', 'PEXPIRE', 'XTRIM', 'XGROUP CREATE', 'XGROUP DESTROY')
    if refused then return refused end
    if redis.call('EXISTS', copy) == 0 then create_empty(copy) end
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

--[[ A hybrid logical clock. `XADD *` generates an ID above the engine's clock and above the last ID of the
     strand. It must also be above every entry that this region has received, so the functions raise the last
     ID of the home strand to received entries that are ahead of the clock:

        clock here       10:00:00.000
        entry of s1      10:00:07.123-4       from a region whose clock is 7 s ahead
        home strand s2   10:00:07.123-3       its next ID is 10:00:07.123-4 of writer 2: above that entry

     Entries that are ahead by more than CLOCK_BOUND_MS are ignored: a broken clock must not move all regions
     into the far future. ]]
-- fills: clock
-- uses: ids, registry
do
  function clock.now_ms()
    local now = redis.call('TIME')
    return now[1] * 1000 + math.floor(now[2] / 1000)
  end

  local function end_of_millisecond_before(ms) return ids.predecessor(ms) .. '-' .. ids.MAX end

  -- Ahead of the clock, within the bound: without a raised home strand the engine would generate a smaller ID.
  function clock.is_ahead(id, now)
    local ms = tonumber(string.match(id, '^%d+'))
    return ms >= now and ms <= now + CLOCK_BOUND_MS
  end

  --[[ The last ID that the home strand needs so that its next ID sorts after entry `id` of strand `label`;
       itself not above that entry. ]]
  function clock.floor_of(home, label, id)
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    local kind, writer = registry.split_label(string.match(label, '^[^:]+'))
    local own = tonumber(registry.writer_of(home))
    if #seq > 15 then return ms .. '-' .. ids.MAX end
    if kind == KIND.GENERATED then
      if tonumber(writer) >= own then return id end
      return seq == '0' and end_of_millisecond_before(ms) or ms .. '-' .. ids.predecessor(seq)
    end
    if tonumber(seq) < own then return ms == '0' and '0-0' or end_of_millisecond_before(ms) end
    return ms .. '-' .. string.format('%.0f', math.floor((seq - own) / WRITERS))
  end

  -- The same; nil if the clock is already past it, or if the entry is too far ahead.
  function clock.floor_after(home, label, id, now)
    if clock.is_ahead(id, now) then return clock.floor_of(home, label, id) end
  end
end

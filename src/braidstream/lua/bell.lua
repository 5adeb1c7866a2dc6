--[[ The bell of a stream invalidates what clients have cached about its groups. It rings when a strand joins
     the groups, and when a group is created, moved or destroyed. `bell` in the registry is a stamp, new at
     each ring. Blocked consumers also wait on a key named after the stamp (group_wait creates it): deleting
     the key wakes them, and a consumer that arrives with an old stamp finds no key.

     A function may touch only the keys in its KEYS. So the caller passes the bell that it has cached: the
     stamp as an argument (empty for none), the key as the last one. Check `is_stale` before a ring. ]]
-- fills: bells
do
  bells.STALE = 'BSSTALE the groups of this stream have changed'

  function bells.take(keys, stamp) return { stamp = stamp, key = stamp ~= '' and table.remove(keys) or nil } end

  function bells.is_stale(meta, bell) return (redis.call('HGET', meta, META.BELL) or '') ~= bell.stamp end

  function bells.ring(meta, bell)
    local now = redis.call('TIME')
    if bell.key then redis.call('UNLINK', bell.key) end
    redis.call('HSET', meta, META.BELL, now[1] .. string.format('%06d', now[2]))
  end
end

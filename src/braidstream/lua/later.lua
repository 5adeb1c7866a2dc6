--[[ Entries for later: a waiting entry stands in the companion of its stream, `{orders}.later` (model/later.py).

     later_promote: append a waiting entry to its stream, and delete it.
       FCALL bs_later_promote 6|8 <waiting strand> <meta> <strand> <map> <queue> <about>
             [<journal> <journal of the waiting>] <label:life> <id> <settings> <writer> <producer>
       Returns the answer of idempotence_one, without peers the native ID; nil if the entry is not there any more:
       somebody cancelled or promoted it. BSNOKEY if the strand does not exist. After an error nothing was done.

     With peers it is a message, and its ID names the waiting entry: if two regions that are apart append it, one of
     the two stays.
     Why a function: of a promotion and a cancellation at once exactly one happens, and a crash leaves no half. ]]
-- fills: promotions
-- uses: extents, idempotence, journals, rights
do
  -- What the function needs after the append. Without it the entry would be appended again and again.
  local MAP, QUEUE = { 'HDEL', 'HMGET', 'HSET', 'PEXPIREAT' }, { 'LINDEX', 'LLEN', 'LPOP', 'LRANGE', 'RPUSH' }

  local function denied(waiting, target, journal)
    local refused = rights.denied(waiting, 'XRANGE', 'XDEL')
    if refused or not journal then return refused end
    return rights.denied(target[3], unpack(MAP))
      or rights.denied(target[4], unpack(QUEUE))
      or rights.denied(target[5], 'HDEL', 'HINCRBY', 'HRANDFIELD', 'HSET', 'TIME', 'UNLINK')
      or rights.denied(journal, 'XADD')
  end

  function promotions.promote(keys, args)
    local waiting, journal, label, id = keys[1], keys[8], args[1], args[2]
    local target = { unpack(keys, 2, 7) }
    local refused = denied(waiting, target, journal)
    if refused then return refused end
    local entry = redis.call('XRANGE', waiting, id, id)[1]
    if not entry then return nil end
    local words = { args[3], args[4], args[5], label .. ' ' .. id, '*' }
    for at = 1, #entry[2], 2 do
      if string.sub(entry[2][at], 1, 6) ~= 'later.' then
        words[#words + 1], words[#words + 2] = entry[2][at], entry[2][at + 1]
      end
    end
    local answer
    if journal then
      answer = idempotence.one(target, words)
    else
      answer = redis.pcall('XADD', keys[3], 'NOMKSTREAM', unpack(words, 5))
    end
    if not answer then return redis.error_reply('BSNOKEY the stream does not exist') end
    if type(answer) ~= 'string' then return answer end
    extents.delete(waiting, id)
    if journal then journals.add_deletions(journal, label, { id }) end
    return answer
  end
end

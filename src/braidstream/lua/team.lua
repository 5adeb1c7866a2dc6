--[[ A team: the members of a group share the partitions of a topic (model/topic.py). All keys are in the topic's slot.

       team    hash    parts, epoch, mark (ID of the last call), due (ms: when to share anew)
                       t:<member>     the partitions that it should have, as `3 17 20`
                       h:<member>     those that are given to it, also if it has to return some
                       o:<partition>  the member to which it is given. Nobody else gets it before it is given back, or
                                      the session of that member is over
       alive   zset    member -> until when its session lasts, by the engine's clock, ms
       call    stream  one entry: members wait for the next one, which says that something has changed

     team_beat: go on being a member, or become one.
       FCALL bs_team_beat 3 <team> <alive> <call> <member> <session ms> <partitions> <mark> <given_back: 3 17>
       mark: of the last reply; empty if the member has nothing. Session 0: leave.
       Returns { mark, epoch, again, is new, list }. again: beat again after so many ms, 0: as usual. is new: what the
       member had is not its own any more. list: the partitions that it may work on; it finishes and returns what is
       not in it. No list: nothing has changed.

     Partitions are shared evenly, and each stays where it is if it can: a member with too many returns the last ones.
     Changes within SETTLE_MS are taken together, by whoever beats next. Then the epoch grows.

     team_hold: hold a partition, or give it up. Its keys are in the slot of the partition.
       FCALL bs_team_hold n <holder> <hold> [<former hold>] <group> <epoch> <token> <former token>
       Every read of the partition names the member's hold, an empty stream with the group. When another member takes
       the partition, the former hold is deleted, and the engine refuses the reads of the former member, as it refuses
       those that name a bell that has rung. Token of the hold: empty to give it up, the former one to keep it.
       Returns an empty text, or if another hold is there than the former one: its token; nothing is done. FENCED: a
       member with a later epoch has it. ]]
-- fills: teams
-- uses: clock, rights, valid
do
  local MOST_PARTITIONS, MOST_MEMBERS, MOST_SESSION = 10000, 2000, 3600000
  local SETTLE_MS, KEEP_MS = 20, 86400000
  local LONGEST_TOKEN = 32
  local DEAD_AT_ONCE, WORDS_AT_ONCE = 100, 2000

  local function numbers(text, parts)
    local found = {}
    if text and #text <= valid.FIELD then
      for word in string.gmatch(text, '%S+') do
        found[#found + 1] = valid.count(word, parts - 1)
      end
    end
    return found
  end

  local function set_of(list)
    local found = {}
    for _, each in ipairs(list) do
      found[each] = true
    end
    return found
  end

  local function prefixed(prefix, list)
    local found = {}
    for at, each in ipairs(list) do
      found[at] = prefix .. each
    end
    return found
  end

  local function read(team, fields)
    local found = {}
    for first = 1, #fields, WORDS_AT_ONCE do
      local last = math.min(first + WORDS_AT_ONCE - 1, #fields)
      for _, value in ipairs(redis.call('HMGET', team, unpack(fields, first, last))) do
        found[#found + 1] = value
      end
    end
    return found
  end

  local function write(command, team, words)
    for first = 1, #words, WORDS_AT_ONCE do
      redis.call(command, team, unpack(words, first, math.min(first + WORDS_AT_ONCE - 1, #words)))
    end
  end

  -- Takes partitions back from a member. Returns how many were its own.
  local function free(team, member, list)
    local fields, own = prefixed('o:', list), {}
    for at, owner in ipairs(read(team, fields)) do
      if owner == member then own[#own + 1] = fields[at] end
    end
    write('HDEL', team, own)
    return #own
  end

  -- Takes everything from a member. Returns how many partitions were its own.
  local function strip(team, member, parts)
    local given = redis.call('HGET', team, 'h:' .. member)
    redis.call('HDEL', team, 't:' .. member, 'h:' .. member)
    return free(team, member, numbers(given, parts))
  end

  -- Who should have which partitions. Returns whether that has changed.
  local function share(team, members, parts)
    local texts, has, by_size, want = read(team, prefixed('t:', members)), {}, {}, {}
    for at, member in ipairs(members) do
      has[member], by_size[at] = numbers(texts[at], parts), member
    end
    table.sort(by_size, function(a, b)
      if #has[a] ~= #has[b] then return #has[a] > #has[b] end
      return a < b
    end)
    for at, member in ipairs(by_size) do
      want[member] = math.floor(parts / #members) + (at <= parts % #members and 1 or 0)
    end
    local taken, left, changed = {}, {}, {}
    for _, member in ipairs(members) do
      local kept = {}
      for _, partition in ipairs(has[member]) do
        if not taken[partition] and #kept < want[member] then
          kept[#kept + 1], taken[partition] = partition, true
        end
      end
      has[member] = kept
    end
    for partition = 0, parts - 1 do
      if not taken[partition] then left[#left + 1] = partition end
    end
    local next_left = 1
    for at, member in ipairs(members) do
      while #has[member] < want[member] do
        has[member][#has[member] + 1] = left[next_left]
        next_left = next_left + 1
      end
      local text = table.concat(has[member], ' ')
      if text ~= texts[at] then
        changed[#changed + 1], changed[#changed + 2] = 't:' .. member, text
      end
    end
    write('HSET', team, changed)
    return #changed > 0
  end

  -- Gives a member what it should have and nobody else has. Returns what it may work on, and how many were freed.
  local function give(team, member, has_nothing, given_back, parts)
    local texts = redis.call('HMGET', team, 't:' .. member, 'h:' .. member)
    local target, given = numbers(texts[1], parts), set_of(numbers(texts[2], parts))
    local wanted, back, missing = set_of(target), {}, {}
    for _, partition in ipairs(given_back) do
      if given[partition] then
        given[partition], back[#back + 1] = nil, partition
      end
    end
    for partition in pairs(has_nothing and given or {}) do
      if not wanted[partition] then back[#back + 1] = partition end
    end
    for _, partition in ipairs(back) do
      given[partition] = nil
    end
    local freed = free(team, member, back)
    for _, partition in ipairs(target) do
      if not given[partition] then missing[#missing + 1] = partition end
    end
    local taken = {}
    for at, owner in ipairs(read(team, prefixed('o:', missing))) do
      if not owner or owner == member then
        taken[#taken + 1], taken[#taken + 2] = 'o:' .. missing[at], member
        given[missing[at]] = true
      end
    end
    write('HSET', team, taken)
    local list, all = {}, {}
    for _, partition in ipairs(target) do
      if given[partition] then list[#list + 1] = partition end
    end
    for partition in pairs(given) do
      all[#all + 1] = partition
    end
    table.sort(all)
    redis.call('HSET', team, 'h:' .. member, table.concat(all, ' '))
    return table.concat(list, ' '), freed
  end

  local function denied(team, alive, call)
    return rights.denied(team, 'HDEL', 'HGET', 'HMGET', 'HSET', 'PEXPIRE', 'UNLINK')
      or rights.denied(alive, 'PEXPIRE', 'UNLINK', 'ZADD', 'ZRANGE', 'ZREM')
      or rights.denied(call, 'PEXPIRE', 'UNLINK', 'XADD')
  end

  function teams.beat(keys, args)
    local team, alive, call = keys[1], keys[2], keys[3]
    local member, seen = args[1], args[4]
    valid.need(call and member and #member > 0 and #member <= valid.FIELD and seen and #seen <= 64, 'member')
    local session = valid.counted(args[2], MOST_SESSION, 'session')
    local parts = valid.counted(args[3], MOST_PARTITIONS, 'partitions')
    valid.need(parts > 0 and args[5] and #args[5] <= valid.FIELD, 'partitions')
    local now = clock.now_ms()
    local facts = redis.call('HMGET', team, 'parts', 'epoch', 'mark', 'due')
    parts = math.max(parts, valid.count(facts[1], MOST_PARTITIONS) or 0)
    local epoch, due = valid.count(facts[2], 2 ^ 53) or 0, valid.count(facts[4], 2 ^ 53)
    local mark = facts[3] and #facts[3] <= 64 and facts[3] or ''
    local given_back = numbers(args[5], parts)
    local dead = redis.call('ZRANGE', alive, '-inf', now, 'BYSCORE', 'LIMIT', 0, DEAD_AT_ONCE)
    local lasts = tonumber(redis.call('ZSCORE', alive, member) or '')
    local is_new, is_leaving = not lasts or lasts <= now, session == 0
    local is_same = facts[1] == tostring(parts) and mark == seen and not is_new and not is_leaving
    if is_same and #dead == 0 and #given_back == 0 and not (due and due <= now) then
      redis.call('ZADD', alive, now + session, member)
      for _, key in ipairs(keys) do
        redis.call('PEXPIRE', key, KEEP_MS)
      end
      return { mark, epoch, due and due - now or 0, 0 }
    end

    if is_new and not is_leaving and redis.call('ZCARD', alive) >= MOST_MEMBERS then
      return redis.error_reply('ERR a team has at most ' .. MOST_MEMBERS .. ' members')
    end
    local refused = denied(team, alive, call)
    if refused then return refused end
    local two = redis.call('ZRANGE', alive, '(' .. now, '+inf', 'BYSCORE', 'LIMIT', 0, 2)
    if is_leaving and #two == (is_new and 0 or 1) then
      redis.call('UNLINK', team, alive, call)
      return { '', epoch, 0, 1, '' }
    end
    local freed = 0
    if is_new or is_leaving then freed = strip(team, member, parts) end
    if is_leaving then
      redis.call('ZREM', alive, member)
      due = now
    else
      -- Before the dead are removed: while a slot moves, a key that is empty for a moment counts as moved.
      redis.call('ZADD', alive, now + session, member)
    end
    for _, each in ipairs(dead) do
      if each ~= member then
        redis.call('ZREM', alive, each)
        freed = freed + strip(team, each, parts)
      end
    end
    if not is_leaving and (is_new or #dead > 0 or facts[1] ~= tostring(parts)) then due = due or now + SETTLE_MS end

    local has_changed = false
    if due and due <= now then
      local members = redis.call('ZRANGE', alive, '(' .. now, '+inf', 'BYSCORE')
      table.sort(members)
      has_changed, due = share(team, members, parts), nil
      epoch = math.max(epoch + 1, now)
    end
    local list = ''
    if not is_leaving then
      local back
      list, back = give(team, member, is_new or seen == '', given_back, parts)
      freed = freed + back
    end
    if has_changed or freed > 0 or mark == '' then
      mark = redis.call('XADD', call, 'MAXLEN', '1', '*', 'e', string.format('%.0f', epoch))
    end
    redis.call('HSET', team, 'parts', parts, 'epoch', string.format('%.0f', epoch), 'mark', mark)
    if due then
      redis.call('HSET', team, 'due', due)
    else
      redis.call('HDEL', team, 'due')
    end
    for _, key in ipairs(keys) do
      redis.call('PEXPIRE', key, KEEP_MS)
    end
    return { mark, epoch, due and due - now or 0, is_new and 1 or 0, list }
  end

  function teams.hold(keys, args)
    local holder, hold, former_hold = keys[1], keys[2], keys[3]
    local group, token, former = args[1], args[3], args[4]
    valid.need(hold and group and former and #token <= LONGEST_TOKEN and #former <= LONGEST_TOKEN, 'token')
    local epoch = valid.counted(args[2], 2 ^ 53, 'epoch')
    local facts = redis.call('HMGET', holder, 'epoch', 'token')
    if (facts[2] or '') ~= former then return facts[2] or '' end
    if epoch < (valid.count(facts[1], 2 ^ 53) or 0) then
      return redis.error_reply('FENCED another member has this partition')
    end
    local refused = rights.denied(holder, 'HSET', 'PEXPIRE', 'UNLINK')
      or rights.denied(hold, 'PEXPIRE', 'UNLINK', 'XGROUP CREATE')
    if refused then return refused end
    if token == '' then
      redis.call('UNLINK', holder, hold)
      return ''
    end
    if token ~= former then
      redis.call('XGROUP', 'CREATE', hold, group, '$', 'MKSTREAM')
      redis.call('HSET', holder, 'epoch', string.format('%.0f', epoch), 'token', token)
      if former_hold then redis.call('UNLINK', former_hold) end
    end
    redis.call('PEXPIRE', holder, KEEP_MS)
    redis.call('PEXPIRE', hold, KEEP_MS)
    return ''
  end
end

--[[ ACL checks. A function runs with the rights of its caller, and its writes stay when a later command is
     refused. So a function that deletes, or that creates a strand or a group, first checks every command it
     will run.

     denied(key, 'UNLINK', 'XGROUP DESTROY', ...) returns the error to reply with, or nil. ]]
-- fills: rights
do
  function rights.no_permission(words)
    return redis.error_reply("NOPERM this user has no permissions to run the '" .. words .. "' command")
  end

  -- Arguments after the key. Since 8.6.2 Redis checks complete commands only.
  local AFTER_KEY = {
    EXPIRE = { '1' },
    HDEL = { 'f' },
    HGET = { 'f' },
    HINCRBY = { 'f', '1' },
    HMGET = { 'f' },
    HSET = { 'f', 'v' },
    HSETNX = { 'f', 'v' },
    LINDEX = { '0' },
    LRANGE = { '0', '0' },
    PEXPIRE = { '1' },
    PEXPIREAT = { '1' },
    RPUSH = { 'v' },
    SET = { 'v' },
    XACK = { 'g', '1-1' },
    XCLAIM = { 'g', 'c', '0', '1-1' },
    XTRIM = { 'MAXLEN', '0' },
    XADD = { '*', 'f', 'v' },
    XCFGSET = { 'IDMP-MAXSIZE', '1' },
    XDEL = { '1-1' },
    XIDMPRECORD = { 'p', 'i', '1-1' },
    XNACK = { 'g', 'FAIL', 'IDS', '1', '1-1' },
    XPENDING = { 'g' },
    XRANGE = { '-', '+' },
    XSETID = { '1-1' },
    ZADD = { '1', 'm' },
    ZRANGE = { '0', '-1' },
    ZREM = { 'm' },
    ZREMRANGEBYSCORE = { '0', '1' },
    ['XGROUP CREATE'] = { 'g', '0' },
    ['XGROUP CREATECONSUMER'] = { 'g', 'c' },
    ['XGROUP DESTROY'] = { 'g' },
    ['XGROUP SETID'] = { 'g', '0' },
  }

  local calls = {} -- the words of each command that was asked about; the key goes from `first` to `last`

  local function call_of(command)
    local words = {}
    for word in string.gmatch(command, '%S+') do
      words[#words + 1] = word
    end
    local keys = command == 'TIME' and 0 or command == 'RENAME' and 2 or 1
    words.first, words.last = #words + 1, #words + keys
    for at, word in ipairs(AFTER_KEY[command] or {}) do
      words[words.last + at] = word
    end
    return words
  end

  local function may_run(command, key)
    local words = calls[command] or call_of(command)
    calls[command] = words
    for at = words.first, words.last do
      words[at] = key
    end
    return redis.acl_check_cmd(unpack(words))
  end

  function rights.denied(key, ...)
    for _, command in ipairs({ ... }) do
      if not may_run(command, key) then return rights.no_permission(string.lower(string.gsub(command, ' ', '|'))) end
    end
  end
end

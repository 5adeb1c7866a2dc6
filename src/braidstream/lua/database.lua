--[[ database_flush: FLUSHALL in the other databases. FCALL bs_database_flush 1 bs:config <number>...
     A region's bs:config is kept. BSREGION if a region has other keys; nothing is done: its streams must be
     deleted there, so that their last IDs are saved. Returns OK.
     Why a function: a shared connection cannot SELECT. ]]
local function database_flush(keys, args)
  local plain = {}
  for _, number in ipairs(args) do
    redis.call('SELECT', number)
    if redis.call('HEXISTS', keys[1], CONFIG.REGION) == 0 then
      plain[#plain + 1] = number
    elseif redis.call('DBSIZE') > 1 then
      return redis.error_reply('BSREGION ' .. number)
    end
  end
  for _, number in ipairs(plain) do
    redis.call('SELECT', number)
    redis.call('FLUSHDB')
  end
  return redis.status_reply('OK')
end

--[[ Other databases of the server. ]]

--[[ database_flush: FLUSHALL's share of the others. FCALL bs_database_flush 1 bs:config <number>...
     A database that is a region keeps who it is; if it holds more than that, nothing is done (BSREGION): its
     streams must be deleted there, their last IDs noted. Returns OK.
     Why a function: a connection that others share cannot SELECT. ]]
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

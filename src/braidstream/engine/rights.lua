--[[ Rights. A function acts with those of its caller, and what it has written stays when a later command
     is refused. So whoever takes something away, or makes a strand or a group, asks first for every command
     it will need.

     denied(key, 'UNLINK', 'XGROUP DESTROY', ...) returns the error to reply with, or nil. ]]
local function no_permission(words)
  return redis.error_reply("NOPERM this user has no permissions to run the '" .. words .. "' command")
end

local function denied(key, ...)
  for _, command in ipairs({ ... }) do
    local name, about = string.match(command, '^(%S+) ?(.*)$')
    local may
    if about == '' then may = redis.acl_check_cmd(name, key) else may = redis.acl_check_cmd(name, about, key) end
    if not may then return no_permission(string.lower(string.gsub(command, ' ', '|'))) end
  end
end

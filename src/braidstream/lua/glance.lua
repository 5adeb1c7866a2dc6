--[[ A digest of a stream, for sweeps over many streams: if it is equal in two regions, there is nothing to
     replicate between them. ]]

-- Whether a group has unread or pending entries, or acknowledgements that the registry does not have yet.
local function has_news(key, id, last, fields)
  for _, info in ipairs(groups_of(key, {})) do
    local delivered = info['last-delivered-id']
    if info.pending > 0 or less(delivered, last) then return true end
    if acked_of(fields[META.GROUP_ACKED .. info.name])[id] ~= delivered then return true end
  end
  return false
end

--[[ braid_glance: FCALL_RO bs_braid_glance n <meta> <stream key>... <local prefix> <label:life, empty for a journal>...
     Returns a digest of the replicated state: the registry (without fields that start with a local prefix; the
     prefixes are one argument, separated by blanks), each strand's last ID, first entry and length, and each
     journal's last ID. Appends `!` if groups have news, or if a strand is ahead of the clock here. Returns '' if
     the stream has a strand that the caller did not name. ]]
local function braid_glance(keys, args)
  local MOST_PREFIXES = 64
  local prefixes, named, fields, words = {}, {}, {}, {}
  for prefix in string.gmatch(args[1], '%S+') do prefixes[#prefixes + 1] = prefix end
  valid.need(#prefixes <= MOST_PREFIXES, 'list of prefixes')
  local reply = redis.call('HGETALL', keys[1])
  for at = 2, #args do named[args[at]] = true end
  for at = 1, #reply, 2 do
    local field, value = reply[at], reply[at + 1]
    fields[field] = value
    local is_local = false
    for _, prefix in ipairs(prefixes) do
      if string.sub(field, 1, #prefix) == prefix then is_local = true end
    end
    if not is_local then words[#words + 1] = field .. '=' .. value end
    local life = strand_there(field, value)
    if life and not named[field .. ':' .. life] then return '' end
  end
  table.sort(words)
  local news, now = deadline.is_over(keys[1]), now_ms()
  for at = 2, #keys do
    local key, id = keys[at], args[at]
    if redis.call('EXISTS', key) == 1 then
      local facts = extents.of(key, true)
      words[#words + 1] = at .. ' ' .. facts.last
      if id ~= '' then
        words[#words + 1] = (facts.first or '') .. ' ' .. facts.length
        news = news or is_ahead(facts.last, now)
        news = news or (facts.groups ~= 0 and has_news(key, id, facts.last, fields))
      else
        news = news or facts.length > 1 -- a journal that could be shorter
      end
    end
  end
  return redis.sha1hex(table.concat(words, '\n')) .. (news and '!' or '')
end

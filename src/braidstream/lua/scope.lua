--[[ The scope of a group: which regions deliver which strands (decision 0019).

       e:<group>  2.1 once                  version 2, set in region 1; without the field: everywhere
       w:<group>  1:3.2:0:0 2:4.2:3:0       who delivers the strands of a region, if that is not the region itself:
                                            <region>:<epoch>.<owner>:<next owner>:<until>
                                            `:0:1` at the end: taken by a daemon, which gives it back

     In scope `once` the strands of a region have one owner, and only the owner delivers them. Both fields merge by
     maximum: the later version, and for each region the greatest (epoch, owner, next owner, until). A next owner
     means that the owner delivers nothing new; it hands over once nothing is pending (acks.lua), or at `until`: a
     time (ms) of the owner's clock. Until the owner has seen it, `until` is a number of milliseconds below LONGEST,
     because the clock of another region may differ.

     Only the owner raises the epoch, or a region that takes. GIVE in another region names a next owner in the epoch
     that it knows: the owner carries that out, or has gone on to a later epoch, which wins. ]]
-- fills: scopes
-- uses: bells, clock, ids, registry, rights, valid
do
  local LONGEST = '1099511627776' -- 2^40: 34 years, and less than every time since 2004
  local LONGEST_CLAIM = 60 -- characters

  function scopes.read(value)
    local version, writer, word = string.match(value or '', '^(%d+)%.(%d+) (%l+)$')
    if version and #value > 64 then return nil end
    if word == 'once' or word == 'everywhere' then return { version, writer, word } end
  end

  local function read_owners(value)
    local owners = {}
    for word in string.gmatch(value or '', '%S+') do
      local region, epoch, owner, to, latest = string.match(word, '^(%d+):(%d+)%.(%d+):(%d+):(%d+)$')
      if region and #word <= LONGEST_CLAIM and valid.number(region) and valid.count(region, WRITERS) then
        owners[region] = { epoch, owner, to, latest }
      end
    end
    return owners
  end

  local function owners_text(owners)
    local regions, words = {}, {}
    for region in pairs(owners) do
      regions[#regions + 1] = region
    end
    table.sort(regions, ids.less_number)
    for _, region in ipairs(regions) do
      local claim = owners[region]
      words[#words + 1] = region .. ':' .. claim[1] .. '.' .. claim[2] .. ':' .. claim[3] .. ':' .. claim[4]
    end
    return table.concat(words, ' ')
  end

  -- Whether the first `parts` numbers of a come after those of b.
  local function is_later(a, b, parts)
    for at = 1, parts do
      if a[at] ~= b[at] then return ids.less_number(b[at], a[at]) end
    end
    return false
  end

  -- Merge a peer's scope and owners of a group.
  function scopes.merge(meta, group, theirs, bell)
    local changed, scope = false, scopes.read(theirs.scope)
    local known = scopes.read(redis.call('HGET', meta, META.GROUP_SCOPE .. group)) or { '0', '0' }
    if scope and is_later(scope, known, 2) then
      redis.call('HSET', meta, META.GROUP_SCOPE .. group, theirs.scope)
      changed = true
    end
    local text = redis.call('HGET', meta, META.GROUP_OWNERS .. group) or ''
    local owners = read_owners(text)
    for region, claim in pairs(read_owners(theirs.owners)) do
      if not owners[region] or is_later(claim, owners[region], 4) then owners[region] = claim end
    end
    if owners_text(owners) ~= text then
      redis.call('HSET', meta, META.GROUP_OWNERS .. group, owners_text(owners))
      changed = true
    end
    if changed then bells.ring(meta, bell) end
  end

  -- Whether a region is among these, separated by blanks.
  local function is_among(regions, region)
    return string.find(' ' .. regions .. ' ', ' ' .. region .. ' ', 1, true) ~= nil
  end

  -- Regions with a strand that is not among these (`<label>:<life>` ...).
  function scopes.unnamed_regions(meta, named)
    local known, found, fields = {}, {}, redis.call('HGETALL', meta)
    for _, id in ipairs(named) do
      known[id] = true
    end
    for at = 1, #fields, 2 do
      local life = registry.there(fields[at], fields[at + 1])
      if life and not known[fields[at] .. ':' .. life] then
        found[select(2, registry.split_label(fields[at]))] = true
      end
    end
    return found
  end

  --[[ Called by the daemon of region `own`, which has just read the named strands: hand over what this region gives
       away and has nothing pending of, or whose time is up. pending: how many entries are, by region. left: regions
       that have left for good, separated by blanks; what was to be given to one of them stays. unnamed: returns
       `unnamed_regions`. ]]
  function scopes.hand_over(meta, group, own, pending, unnamed, left)
    local text = redis.call('HGET', meta, META.GROUP_OWNERS .. group)
    if not text then return end
    local owners, now = read_owners(text), string.format('%.0f', clock.now_ms())
    for region, claim in pairs(owners) do
      if claim[2] == own and claim[3] ~= '0' and claim[4] ~= '0' and ids.less_number(claim[4], LONGEST) then
        claim[4] = string.format('%.0f', now + claim[4])
      end
      local is_over = claim[4] ~= '0' and not ids.less_number(now, claim[4])
      local is_done = not unnamed()[region] and (pending[region] or 0) == 0
      if claim[2] == own and is_among(left, claim[3]) then
        owners[region] = { ids.successor(claim[1]), own, '0', '0' }
      elseif claim[3] ~= '0' and claim[2] == own and (is_over or is_done) then
        owners[region] = { ids.successor(claim[1]), claim[3], '0', '0' }
      end
    end
    if owners_text(owners) ~= text then redis.call('HSET', meta, META.GROUP_OWNERS .. group, owners_text(owners)) end
  end

  -- The field of a new group, created in region `writer`.
  function scopes.note(meta, group, writer)
    redis.call('HSET', meta, META.GROUP_SCOPE .. group, '1.' .. writer .. ' once')
  end

  --[[ group_scope: FCALL bs_group_scope n <meta> [<bell>] <group> <stamp> <own writer> <verb> ...
             scope once|everywhere
             give <region> <next owner> <ms> [<left regions> <heir>]
                                                    as soon as nothing is pending, or after ms (0: without a limit).
                                                    heir: owns what regions owned that have left for good
             take <region> [automatic]              this region delivers the strands of that one from now on
       Returns OK. BSSTALE if the bell is stale, BSNOGROUP without the group; nothing is done. ]]
  function scopes.change(keys, args)
    local meta, group, bell = keys[1], args[1], bells.take(keys, args[2])
    local own, verb, what = args[3], args[4], args[5]
    valid.counted(own, WRITERS, 'writer')
    if verb == 'scope' then
      valid.need(what == 'once' or what == 'everywhere', 'scope')
    else
      valid.need(verb == 'give' or verb == 'take', 'verb')
      valid.counted(what, WRITERS, 'region')
    end
    if verb == 'give' then
      valid.counted(args[6], WRITERS, 'region')
      valid.need(args[7] and valid.number(args[7]), 'time')
      if args[9] then valid.counted(args[9], WRITERS, 'region') end
    end
    if bells.is_stale(meta, bell) then return redis.error_reply(bells.STALE) end
    if redis.call('HEXISTS', meta, META.GROUP .. group) == 0 then
      return redis.error_reply('BSNOGROUP there is no such group')
    end
    local refused = rights.denied(meta, 'HGET', 'HSET', 'TIME', 'UNLINK')
    if refused then return refused end
    local scope = scopes.read(redis.call('HGET', meta, META.GROUP_SCOPE .. group)) or { '0', '0', 'everywhere' }
    if verb == 'scope' then
      if scope[3] == what then return redis.status_reply('OK') end
      redis.call('HSET', meta, META.GROUP_SCOPE .. group, ids.successor(scope[1]) .. '.' .. own .. ' ' .. what)
      bells.ring(meta, bell)
      return redis.status_reply('OK')
    end
    if scope[3] ~= 'once' then
      return redis.error_reply(
        'ERR the group has the scope EVERYWHERE, every region delivers all strands. See XGROUP SCOPE.'
      )
    end
    local owners = read_owners(redis.call('HGET', meta, META.GROUP_OWNERS .. group))
    local claim = owners[what] or { '0', what, '0', '0' }
    local to, mark = verb == 'take' and own or args[6], '0'
    if verb == 'take' and args[6] == 'automatic' then mark = '1' end
    if claim[2] == to and claim[3] == '0' and (claim[4] == '0' or mark == '1') then return redis.status_reply('OK') end
    local owner, has_left = claim[2], verb == 'give' and is_among(args[8] or '', claim[2])
    if has_left then owner = args[9] end
    if verb == 'take' or (owner == own and owner == to) then
      owners[what] = { ids.successor(claim[1]), to, '0', mark }
    elseif owner == own then
      owners[what] = { ids.successor(claim[1]), own, to, args[7] }
    elseif claim[3] == to and not has_left then
      return redis.status_reply('OK')
    else
      local asked = { claim[1], claim[2], to, args[7] }
      if has_left or owner == to or not is_later(asked, claim, 4) then
        local under_way = claim[3] ~= '0' and not has_left and ', and hands them over to region ' .. claim[3] or ''
        local who = 'ERR region ' .. owner .. ' delivers the entries of region ' .. what .. under_way
        return redis.error_reply(who .. '. Run this XGROUP GIVE in region ' .. owner .. '.')
      end
      owners[what] = asked
    end
    redis.call('HSET', meta, META.GROUP_OWNERS .. group, owners_text(owners))
    bells.ring(meta, bell)
    return redis.status_reply('OK')
  end
end

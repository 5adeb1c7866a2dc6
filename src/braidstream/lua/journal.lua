--[[ The journal of a writer: its deletions of single entries, for the peers. Everything else is replicated as
     state. The journal is bounded: a peer that is further behind compares the strands instead. ]]
local JOURNAL_LENGTH = 10000
local DELETED_BYTES = 1048576 -- of the IDs in one entry

local function write_journal(key, ...)
  redis.call('XADD', key, 'MAXLEN', '~', JOURNAL_LENGTH, '*', ...)
end

-- by_trim: a trim removed them, entry by entry. Lakes keep them then. Functions before 24 ignore the words.
local function journal_deletions(key, strand, ids, by_trim)
  local words = { JOURNAL.DELETED, strand .. ' ' .. table.concat(ids, ' ') }
  if by_trim then words = { words[1], words[2], JOURNAL.BY, JOURNAL.TRIM } end
  write_journal(key, unpack(words))
end

-- `d:` of a strand: a trim removes these entries one by one. An archive must not take them for deleted.
local function note_trimmed(meta, strand, ids)
  local label, life = string.match(strand, '^(%a[%d.]+):(%d+)$')
  if not label then return end
  local had_life, upto = string.match(redis.call('HGET', meta, META.TRIMMED .. label) or '', '^(%d+) (%d+-%d+)$')
  if had_life ~= life then upto = '0-0' end
  local last = upto
  for _, id in ipairs(ids) do
    if less(last, id) then last = id end
  end
  if last ~= upto then redis.call('HSET', meta, META.TRIMMED .. label, life .. ' ' .. last) end
end

local function journal_messages(key, settings, producer, ...)
  write_journal(key, JOURNAL.MESSAGES, settings, JOURNAL.BY, producer, ...)
end

-- The strand and the IDs; nil if the words are no deletion.
local function read_deletions(words)
  local strand, rest = string.match(words[1] == JOURNAL.DELETED and words[2] or '', '^(%S+) (.+)$')
  if not strand or #rest > DELETED_BYTES then return nil end
  local ids = {}
  for id in string.gmatch(rest, '%S+') do ids[#ids + 1] = id end
  return strand, ids
end

-- The settings, the producer and the messages: iid, `ms-n:w`, iid, ...; nil if the words are malformed.
local function read_messages(words)
  if #words < 6 or #words % 2 == 1 then return nil end
  return words[2], words[4], { unpack(words, 5) }
end

--[[ journal_apply: apply entries of a peer's journal, and append them to our copy of it.
     FCALL bs_journal_apply n <meta> <journal> <strand>... <strands> (<label:life>)... <after> (<id> <n> <word> * n)...
     Returns how many entries are applied here; fewer than were sent if one has to wait.

       del  <label:life> <id> <id> ...     these entries were deleted; with `by trim` a trim did it
       idmp ...                            these messages were accepted, see idempotence.lua

     A journal entry about stream entries that have not arrived here waits, and so do all after it: if the
     deletion came first, the stream entry would come back. <after> guards against gaps, as in strand_apply.
     Why a function: the effect and the position in the journal must be one step. ]]
local function strand_named(meta, named, id)
  local label, life = string.match(id, '^(%a[%d.]+):(%d+)$')
  if not label or not split_label(label) then return nil end
  local has_life, state, cut = registered(meta, label)
  if not has_life or less_number(has_life, life) then return { ends = '0-0' } end
  if has_life ~= life then return { ends = MAX_SEQ .. '-' .. MAX_SEQ } end -- that life is over
  if state == '-' then return { ends = cut } end
  return { key = named[id], ends = named[id] and last_of(named[id]) or '0-0' }
end

local function apply_deletion(meta, named, words)
  local which, ids = read_deletions(words)
  local strand = which and strand_named(meta, named, which)
  if not strand then return false end
  for _, id in ipairs(ids) do
    if not is_id(id) or less(strand.ends, id) then return false end
  end
  if strand.key then
    if words[4] == JOURNAL.TRIM then note_trimmed(meta, which, ids) end
    for _, id in ipairs(ids) do extents.delete(strand.key, id) end
  end
  return true
end

local JOURNAL_VERBS = { [JOURNAL.DELETED] = apply_deletion }

local function journal_apply(keys, args)
  local meta, copy, named, count = keys[1], keys[2], {}, valid.counted(args[1], math.min(#keys, #args), 'number of strands')
  for at = 1, count do named[args[1 + at]] = keys[2 + at] end
  local after, first = args[2 + count], 3 + count
  local starts, wrong = batch_of(args, first)
  if not starts or not is_id(after) then
    return redis.error_reply('BSBATCH malformed journal at argument ' .. (wrong or first))
  end
  local last = last_of(copy) or '0-0'
  if less(last, after) then
    return redis.error_reply('BSGAP our copy ends at ' .. last .. ', the batch follows ' .. after)
  end
  local done = 0
  for _, start in ipairs(starts) do
    if less(last, args[start]) then
      local words = { unpack(args, start + 2, start + 1 + tonumber(args[start + 1])) }
      local verb = JOURNAL_VERBS[words[1]]
      if not verb then return redis.error_reply('BSJOURNAL ' .. words[1] .. ' is unknown: run braid init here') end
      if not verb(meta, named, words) then return done end
      local reply = redis.pcall('XADD', copy, args[start], unpack(words))
      if type(reply) == 'table' and reply.err then return reply end
      last = args[start]
    end
    done = done + 1
  end
  return done
end

--[[ journal_skip: the link compared whole strands instead: the writer's journal up to <id> counts as applied.
     FCALL bs_journal_skip 1 <journal> <id>
     The copy shows one entry added and deleted, so that its readers detect the gap. ]]
local function journal_skip(keys, args)
  local copy, id = keys[1], valid.need(is_id(args[1]), 'ID')
  if redis.call('EXISTS', copy) == 0 then create_empty(copy) end
  if not less(last_of(copy), id) then return 0 end -- another link was faster: keep what it applied, for others
  redis.call('XTRIM', copy, 'MAXLEN', '0')
  extents.set_id(copy, id, 'ENTRIESADDED', '1', 'MAXDELETEDID', id)
  return 1
end

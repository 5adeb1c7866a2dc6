--[[ Version vectors: deletions counted by writer. `1.2,3.1` means two by writer 1, one by writer 3. A group
     exists only while its creator's vector covers every deletion known here. Vectors merge by maximum.
     0 and WRITERS are no writers: they count deadlines (shared_deadline.lua). ]]

local function vector_of(text)
  local counts = {}
  for word in string.gmatch(text or '', '[^,]+') do
    local writer, count = string.match(word, '^(%d+)%.(%d+)$')
    if writer and #count <= 16 and valid.count(writer, WRITERS) then counts[tonumber(writer)] = tonumber(count) end
  end
  return counts
end

local function vector_text(counts)
  local writers, words = {}, {}
  for writer in pairs(counts) do writers[#writers + 1] = writer end
  table.sort(writers)
  for _, writer in ipairs(writers) do words[#words + 1] = string.format('%d.%.0f', writer, counts[writer]) end
  return table.concat(words, ',')
end

local function covers(seen, counts)
  for writer, count in pairs(counts) do
    if (seen[writer] or 0) < count then return false end
  end
  return true
end

local function joined(a, b)
  local counts = {}
  for writer, count in pairs(a) do counts[writer] = count end
  for writer, count in pairs(b) do counts[writer] = math.max(counts[writer] or 0, count) end
  return counts
end

-- Count one more deletion by a writer. Writer 0 is a region without peers: no count is needed.
local function count_deletion(meta, field, writer)
  if writer == '0' then return end
  local counts, number = vector_of(redis.call('HGET', meta, field)), tonumber(writer)
  counts[number] = (counts[number] or 0) + 1
  redis.call('HSET', meta, field, vector_text(counts))
end

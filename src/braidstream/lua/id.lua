--[[ Native IDs are compared as text: Lua's numbers are doubles and would round them. ]]
-- fills: ids, valid
do
  ids.MAX = '18446744073709551615'

  function ids.less_number(a, b)
    if #a ~= #b then return #a < #b end
    return a < b
  end

  --[[ What callers, peers and the registry may say. Any of them may be hostile: a user of one stream may also write its
       registry and call these functions, and a pattern that looks at a long text again and again would stop the engine
       for hours, without FUNCTION KILL. So lengths and counts are checked first, texts are split into words, and
       patterns are anchored: each takes time in proportion to its text. model/fields.py has the limits of the registry:
       FIELD, LISTS, CREATORS. ]]

  -- A whole number from 0 to `most`; nil for any other text.
  function valid.count(text, most)
    local number = text and #text <= 16 and string.match(text, '^%d+$') and tonumber(text)
    if number and number <= most then return number end
  end

  -- A number as functions write it: one of 64 bits.
  function valid.number(text)
    if #text > #ids.MAX then return false end
    return text == '0' or (string.match(text, '^[1-9]%d*$') ~= nil and not ids.less_number(ids.MAX, text))
  end

  -- An ID as the engine writes it.
  function valid.id(text)
    local ms, seq = string.match(text, '^(%d+)-(%d+)$')
    return ms ~= nil and valid.number(ms) and valid.number(seq)
  end

  -- For pairs of words: calls take(first, second).
  function valid.each_pair(text, take)
    local first
    for word in string.gmatch(text or '', '%S+') do
      if first then
        take(first, word)
        first = nil
      else
        first = word
      end
    end
  end

  -- Where the run of this digit at the end of a number begins.
  function valid.run_at_end(number, digit)
    local at = #number + 1
    while at > 1 and string.byte(number, at - 1) == digit do
      at = at - 1
    end
    return at
  end

  -- Ends the function if an argument is malformed. Only before the first write.
  function valid.need(condition, what)
    if not condition then error(redis.error_reply('BSBATCH malformed ' .. what)) end
    return condition
  end

  function valid.counted(text, most, what) return valid.need(valid.count(text, most), what) end

  function ids.successor(number)
    local nines = valid.run_at_end(number, 57)
    local zeros = string.rep('0', #number + 1 - nines)
    if nines == 1 then return '1' .. zeros end
    return string.sub(number, 1, nines - 2) .. string.char(string.byte(number, nines - 1) + 1) .. zeros
  end

  function ids.predecessor(number) -- of one above 0
    local zeros = valid.run_at_end(number, 48)
    local nines = string.rep('9', #number + 1 - zeros)
    local digits = string.sub(number, 1, zeros - 2) .. string.char(string.byte(number, zeros - 1) - 1) .. nines
    return (string.gsub(digits, '^0+(%d)', '%1'))
  end

  function ids.less(a, b)
    local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
    local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
    if a_ms ~= b_ms then return ids.less_number(a_ms, b_ms) end
    return ids.less_number(a_seq, b_seq)
  end

  -- The smallest ID above `id`.
  function ids.following(id)
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    if seq == ids.MAX then return ids.successor(ms) .. '-0' end
    return ms .. '-' .. ids.successor(seq)
  end

  -- The largest ID below `id`, which is not 0-0.
  function ids.preceding(id)
    local ms, seq = string.match(id, '^(%d+)-(%d+)$')
    if seq == '0' then return ids.predecessor(ms) .. '-' .. ids.MAX end
    return ms .. '-' .. ids.predecessor(seq)
  end
end

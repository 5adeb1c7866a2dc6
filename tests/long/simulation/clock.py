"""The engine's clock, chosen by the dice: TIME and `XADD *`, in functions and by users, use this one.

It stands in the year 2100, later than any clock of a machine: what ends by its time to live does not end in
a run. Microseconds go on with every question, because a stamp of the time must be a new one.
"""

import re
from functools import cache
from typing import Final

from braidstream import lua as functions
from braidstream.model.strand import Command

START_MS: Final = 4_102_444_800_000
SET: Final = ("FCALL", "sim_clock", 0)
REPLICATE: Final = ("FCALL", "sim_replicate", 0)
PROMOTE: Final = ("SWAPDB", 0, 1)

_BEFORE: Final = """
local clock_ms, ticks = 0, 0

local function generated(stream)
  local ms, info = clock_ms, redis.pcall('XINFO', 'STREAM', stream)
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then
      local last, seq = string.match(info[at + 1], '^(%d+)%-(%d+)$')
      ms = math.max(ms, last + (seq == '18446744073709551615' and 1 or 0))
    end
  end
  return string.format('%.0f-*', ms)
end

local function timed(call, verb, ...)
  if verb == 'TIME' then
    ticks = (ticks + 1) % 1000
    return { string.format('%.0f', math.floor(clock_ms / 1000)), tostring(clock_ms % 1000 * 1000 + ticks) }
  end
  if verb ~= 'XADD' then return call(verb, ...) end
  local words = { ... }
  for at, word in ipairs(words) do
    if word == '*' then
      words[at] = generated(words[1])
      break
    end
  end
  return call(verb, unpack(words))
end
"""
_AFTER: Final = """
redis.register_function('sim_clock', function(keys, args) clock_ms = tonumber(args[1]) end)

-- The replica is database 1: it gets everything that the region has now.
redis.register_function('sim_replicate', function()
  redis.call('SELECT', '1')
  redis.call('FLUSHDB')
  redis.call('SELECT', '0')
  for _, key in ipairs(redis.call('KEYS', '*')) do redis.call('COPY', key, key, 'DB', '1') end
end)

redis.register_function('sim_add', function(keys, args)
  return timed(redis.pcall, 'XADD', keys[1], unpack(args))
end)
"""


def told(command: Command) -> Command:
    """A native `XADD *` of a client goes by this clock too."""
    if command[0] == "XADD" and b"*" in command:
        return ("FCALL", "sim_add", 1, *command[1:])
    return command


@cache
def library() -> str:
    """Our functions, with such a clock."""
    head, rest = functions.source().split("\n", 1)
    timed = re.sub(r"\b(redis\.p?call)\(", r"timed(\1, ", rest)
    return f"{head}{_BEFORE}{timed}{_AFTER}"

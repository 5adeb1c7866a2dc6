"""Safe trimming: removes entries from the engine that are in the lake and that every group has acknowledged.

A native XTRIM MINID of each strand, which is replicated like any trim. Only if no entries were deleted since
the lake was last compared with the engine (deletions.py): trimmed entries can no longer be compared.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from braidstream.model import ids
from braidstream.model.frontier import name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand, facts
from braidstream.protocol.plan import Batch, Plan
from braidstream.spark.lake.lake_state import State
from braidstream.spark.source.survey import Surveyor

# Trims if the number of removed entries is what the caller expects, else returns -1. Why a script: the lake
# would miss an XDEL between the check and the trim.
SCRIPT: Final = """
local facts, info = {}, redis.call('XINFO', 'STREAM', KEYS[1])
for at = 1, #info, 2 do facts[info[at]] = info[at + 1] end
if facts['entries-added'] - facts['length'] ~= tonumber(ARGV[1]) then return -1 end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[2])
"""


def acknowledged(strand: Strand) -> Plan[Id]:
    """Up to where every group of a strand has acknowledged all entries. Two round trips."""
    [replies] = yield Batch([("XINFO", "GROUPS", strand.key)], resend=True)
    groups = [facts(reply) for reply in replies]
    upto = [ids.native(group[b"last-delivered-id"]) for group in groups]
    busy = [group[b"name"] for group in groups if group[b"pending"]]
    if busy:
        pending = yield Batch([("XPENDING", strand.key, name) for name in busy], resend=True)
        upto += [ids.before(ids.native(each[1])) or ids.ZERO for each in pending if each[0]]
    return min(upto, default=ids.LAST)


def _cut(strand: Strand, upto: Id, removed: int) -> Plan[int]:
    following = ids.after(upto)
    if following is None:
        return 0
    [reply] = yield Batch([("EVAL", SCRIPT, 1, strand.key, removed, ids.text(following))])
    return int(reply)


def trim(surveyor: Surveyor, state: State, *, keep_s: float, now_s: float) -> dict[Strand, int]:
    """Trim; returns how many entries of each strand were removed. keep_s: keep younger entries."""
    oldest = int((now_s - keep_s) * 1000)
    return {strand: _trim_strand(surveyor, state, strand, oldest) for strand in _strands(surveyor, state)}


def noted(state: State, cut: Mapping[Strand, int]) -> dict[str, dict[str, int]]:
    """The counts of removed entries after the trim, so that the trim causes no comparison."""
    removed = {stream: dict(places) for stream, places in state.removed.items()}
    for strand, count in cut.items():
        if count:
            removed[name_text(strand.name)][place_text(strand)] += count
    return removed


def _strands(surveyor: Surveyor, state: State) -> Iterable[Strand]:
    return [strand for strand, each in surveyor.survey().items() if each.there and strand in state.frontier]


def _trim_strand(surveyor: Surveyor, state: State, strand: Strand, oldest_ms: int) -> int:
    removed = state.removed.get(name_text(strand.name), {}).get(place_text(strand))
    if removed is None:
        return 0

    def work(server: Any) -> int:
        upto: Id = min(server.run(acknowledged(strand), strand.key), state.frontier[strand])
        upto = min(upto, (max(0, oldest_ms), 0))
        return max(0, int(server.run(_cut(strand, upto, removed), strand.key)))

    return surveyor.try_servers(work)

"""Safe trimming: what a lake has and every group has acknowledged goes out of the engine.

It is a native XTRIM MINID of each strand, so peers follow as they follow any trim. It is done only if nobody
has deleted entries since the lake was last compared (deletions.py): what is cut can no longer be compared.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from braidstream.model import ids
from braidstream.model.frontier import name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand, facts
from braidstream.protocol.plan import Batch, Plan
from braidstream.spark.lake.log import State
from braidstream.spark.source.survey import Surveyor

# Trims if as many entries are gone as the caller knows of: -1 if not. Why a script: an XDEL between looking
# and trimming would be lost to the lake.
SCRIPT: Final = """
local facts, info = {}, redis.call('XINFO', 'STREAM', KEYS[1])
for at = 1, #info, 2 do facts[info[at]] = info[at + 1] end
if facts['entries-added'] - facts['length'] ~= tonumber(ARGV[1]) then return -1 end
return redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[2])
"""


def acknowledged(strand: Strand) -> Plan[Id]:
    """Up to where every group of a strand has been given and has acknowledged all. Two round trips."""
    [groups] = yield Batch([("XINFO", "GROUPS", strand.key)], resend=True)
    told = [facts(group) for group in groups]
    upto = [ids.native(group[b"last-delivered-id"]) for group in told]
    busy = [group[b"name"] for group in told if group[b"pending"]]
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
    """How many entries were cut of each strand. `keep_s`: the engine keeps what is younger."""
    oldest = int((now_s - keep_s) * 1000)
    return {strand: _trim_strand(surveyor, state, strand, oldest) for strand in _strands(surveyor, state)}


def noted(state: State, cut: Mapping[Strand, int]) -> dict[str, dict[str, int]]:
    """What is gone of each strand after the trim, so that nothing need be compared because of it."""
    removed = {stream: dict(places) for stream, places in state.removed.items()}
    for strand, count in cut.items():
        if count:
            removed[name_text(strand.name)][place_text(strand)] += count
    return removed


def _strands(surveyor: Surveyor, state: State) -> Iterable[Strand]:
    return [
        strand for strand, each in surveyor.sight().items() if each.there and strand in state.offset.frontier
    ]


def _trim_strand(surveyor: Surveyor, state: State, strand: Strand, oldest_ms: int) -> int:
    removed = state.removed.get(name_text(strand.name), {}).get(place_text(strand))
    if removed is None:
        return 0

    def work(server: Any) -> int:
        upto: Id = min(server.run(acknowledged(strand), strand.key), state.offset.frontier[strand])
        upto = min(upto, (max(0, oldest_ms), 0))
        return max(0, int(server.run(_cut(strand, upto, removed), strand.key)))

    return surveyor.try_servers(work)

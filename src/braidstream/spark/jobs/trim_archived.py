"""Safe trimming: removes entries from the engine that are in the lake and that every group has acknowledged.

A native XTRIM MINID of each strand, which is replicated like any trim. Only if no entries were deleted since
the lake was last compared with the engine (deletions.py): trimmed entries can no longer be compared. And only
if no entries were restored that the lake lacks (restored.py).
"""

from collections.abc import Container, Mapping
from typing import Any, Final

from braidstream.model import ids, keys
from braidstream.model.command import Command
from braidstream.model.fields import MetaField
from braidstream.model.frontier import name_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand, facts
from braidstream.protocol.plan import Batch, Plan
from braidstream.spark.jobs.restored import mends_of
from braidstream.spark.lake.lake_state import State, place_in
from braidstream.spark.source.survey import Surveyor

# Trims if the number of removed entries and what was restored (model/meta.py join_mend) are as the caller
# expects, else returns -1. Why a script: the lake would miss an XDEL or restored entries between the check
# and the trim.
SCRIPT: Final = """
local noted = {}
for at = 4, KEYS[2] and #ARGV or 0 do noted[#noted + 1] = redis.call('HGET', KEYS[2], ARGV[at]) or nil end
if table.concat(noted, ' ') ~= ARGV[3] then return -1 end
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


def _cut(strand: Strand, upto: Id, removed: int, mended: bytes) -> Plan[int]:
    following = ids.after(upto)
    if following is None:
        return 0
    where: Command = (1, strand.key) if strand.is_plain else (2, strand.key, keys.meta(strand.name))
    fields = (MetaField.MENDED + strand.label, MetaField.RESTORES + strand.label)
    [reply] = yield Batch([("EVAL", SCRIPT, *where, removed, ids.text(following), mended, *fields)])
    return int(reply)


def trim(
    surveyor: Surveyor, state: State, refused: Container[bytes] = (), *, keep_s: float, now_s: float
) -> dict[Strand, int]:
    """Trim; returns how many entries of each strand were removed. keep_s: keep younger entries.

    refused: streams to leave out. If the server is lost and another region answers, nothing more is trimmed:
    the lake's counts are those of the first region.
    """
    oldest, region = int((now_s - keep_s) * 1000), surveyor.region
    return {
        strand: _trim_strand(surveyor, state, strand, region, (oldest, mended))
        for strand, mended in _strands(surveyor, state, region).items()
        if strand.name not in refused
    }


def noted(state: State, cut: Mapping[Strand, int], region: int | None) -> dict[str, dict[str, int]]:
    """The counts of removed entries after the trim, so that the trim causes no comparison."""
    removed = {stream: dict(places) for stream, places in state.removed.items()}
    for strand, count in cut.items():
        if count:
            removed[name_text(strand.name)][place_in(strand, region)] += count
    return removed


def _strands(surveyor: Surveyor, state: State, region: int | None) -> dict[Strand, bytes]:
    """The strands to trim, and what was restored in each, which is archived."""
    infos = {
        strand: each for strand, each in surveyor.survey().items() if each.there and strand in state.frontier
    }
    return mends_of(state, infos, region)


def _trim_strand(
    surveyor: Surveyor, state: State, strand: Strand, region: int | None, limits: tuple[int, bytes]
) -> int:
    """limits: keep entries from this millisecond on; what was restored."""
    oldest_ms, mended = limits
    removed = state.removed.get(name_text(strand.name), {}).get(place_in(strand, region))
    if removed is None:
        return 0

    def work(server: Any) -> int:
        if surveyor.region != region:
            return 0
        upto: Id = min(server.run(acknowledged(strand), strand.key), state.frontier[strand])
        upto = min(upto, (max(0, oldest_ms), 0))
        return max(0, int(server.run(_cut(strand, upto, removed, mended), strand.key)))

    return surveyor.try_servers(work)

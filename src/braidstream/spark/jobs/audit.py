"""audit: compares all regions' copies of a stream. A difference is replication in progress, or an anomaly.

For every range of every strand one task reads all regions, computes digests, and compares entry by entry if
they differ. The audit reads these suspects again until `settle_s` has passed, and reports only those that are
still wrong.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from braidstream.model import ids
from braidstream.model.frontier import name_of_text, name_text, place_text, strand_of_row
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.spark import tasks
from braidstream.spark.jobs.copies import Snapshots, read_snapshot
from braidstream.spark.options import Servers
from braidstream.spark.source.read_slice import read
from braidstream.spark.source.rows import ENTRIES, LakeRows, entry_of
from braidstream.spark.source.slices import Range, Slice, split
from braidstream.spark.source.survey import StrandInfo, Surveyor, find

# ----------------------------------------------------------------------------------------------------
#
# What an audit finds, and how it judges an entry that differs between regions.
#
# For an entry that region X has and region Y has not, Y's last ID and its present entries decide:
#
#     above Y's last ID            behind        has not arrived in Y yet
#     below Y's first, or cut      removing      trimmed or deleted in Y, not yet in X
#     a journal names it           removing      until X has applied that journal; then it is RESURRECTED in
#     X
#     else                         LOST in Y     Y had it, no one deleted it, and no link sends it again
#
# Also: DIVERGED, two copies have different fields under one ID. DUPLICATED, one user ID in two strands. A
# group that the registry has and a strand has not is LOST too.


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One anomaly. id: the user ID; for a group its name. certain: a repair may rely on it."""

    kind: str
    stream: str
    place: str
    id: str
    region: int
    certain: bool = True
    healed: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An entry that differs between regions: {region: digest of its fields}, for regions that have it."""

    strand: Strand
    native: Id
    found: Mapping[int, str] = field(default_factory=dict)


def lost_groups(snapshots: Snapshots) -> list[Anomaly]:
    name = name_text(snapshots.name)
    return [
        Anomaly(
            "lost", name, place_text(strand), group.decode("utf-8", "backslashreplace"), region, note="group"
        )
        for region, strand, group in snapshots.lost_groups
    ]


def judge(before: Suspect, suspect: Suspect, snapshots: Snapshots) -> list[Anomaly]:
    """The anomalies of an entry that was read before and after the snapshots.

    A removal and its record are one step. So the snapshots explain an entry that was missing before them; and
    an entry that a region knew to be deleted by then must be missing after them.
    """
    strand, native = suspect.strand, suspect.native
    what = name_text(strand.name), place_text(strand), id_text(strand.user(native))
    found = list[Anomaly]()
    if len(set(suspect.found.values())) > 1:
        right = suspect.found.get(snapshots.home(strand))
        wrong = [region for region, digest in suspect.found.items() if digest != right]
        note = "" if right is not None else "its own region no longer has it"
        found += [Anomaly("diverged", *what, region, right is not None, note=note) for region in wrong]
    named = snapshots.deletion(strand, native)
    for region, here in snapshots.by_region.items():
        if region in suspect.found:
            if named is not None and here.journal_at(named[0]) >= named[1]:
                found.append(Anomaly("resurrected", *what, region))
        elif region not in before.found and named is None and not _is_explained(snapshots, region, suspect):
            # Daemons trim journals. But XDEL, also of a link, moves the highest deleted ID of a copy.
            sure = not snapshots.forgot_deletions or native > snapshots.copy(region, strand).deleted
            note = "" if sure else "or deleted: a journal no longer has all deletions"
            found.append(Anomaly("lost", *what, region, sure, note=note))
    return found


def _is_explained(snapshots: Snapshots, region: int, suspect: Suspect) -> bool:
    """Whether an entry is missing because it has not arrived, was trimmed, or was deleted with its stream."""
    copy, native = snapshots.copy(region, suspect.strand), suspect.native
    if native > copy.last or native <= copy.cut or snapshots.is_over(region, suspect.strand):
        return True
    return copy.there and (copy.first is None or native < copy.first)


def id_text(entry: Id) -> str:
    return ids.text(entry).decode()


# ----------------------------------------------------------------------------------------------------
# Audit

RANGE_ROWS: Final = 50_000
POLL_S: Final = 0.5
AT_ONCE: Final = 500  # entries in a round trip
NAMED: Final = 10_000  # the most anomalies that a report lists

_FACT: Final = StructType()
for _name in ("stream", "place", "low", "high", "what", "id", "found"):
    _FACT.add(_name, StringType())
_FACT.add("count", LongType())
_FACT_ARROW: Final = pa.schema(
    [(each.name, pa.int64() if each.name == "count" else pa.string()) for each in _FACT]
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of a strand to compare, from `part`.

    ends: the first and the last ID of each region's copy at the start of the audit: entries outside are
    still replicating. others: by region, strands that may have a chosen ID of this one too.
    """

    part: Range
    ends: Mapping[int, tuple[Id, Id]]
    others: Mapping[int, tuple[Strand, ...]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of a strand in all regions. behind, removing: entries still replicating, by region."""

    stream: str
    place: str
    low: str
    high: str
    rows: Mapping[int, int]
    behind: Mapping[int, int]
    removing: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Report:
    regions: Mapping[int, str]
    stretches: Sequence[Stretch]
    anomalies: Sequence[Anomaly]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(sum(each.rows.values()) for each in self.stretches)

    @property
    def behind(self) -> dict[int, int]:
        return {region: sum(each.behind.get(region, 0) for each in self.stretches) for region in self.regions}

    @property
    def removing(self) -> dict[int, int]:
        return {
            region: sum(each.removing.get(region, 0) for each in self.stretches) for region in self.regions
        }

    @property
    def wrong(self) -> int:
        return sum(not each.healed for each in self.anomalies)


class Auditor:
    """Compares regions, by their numbers and servers.

    is_local: says of a stream that matches the pattern that not all regions exchange it. It is left out.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        regions: Mapping[int, Servers],
        *,
        streams: Iterable[bytes] = (),
        pattern: bytes | None = None,
        is_local: Callable[[bytes], object] = lambda _: False,
        settle_s: float = 10.0,
    ) -> None:
        self.spark, self.settle_s = spark, settle_s
        self.names, self.pattern, self.is_local = tuple(streams), pattern, is_local
        self.servers = dict(regions)
        self.at = {region: Surveyor(servers, (), None) for region, servers in regions.items()}

    def close(self) -> None:
        for surveyor in self.at.values():
            surveyor.close()

    def run_plan(self, region: int, key: bytes, make: Callable[..., Plan[Any]], *words: Any) -> Any:
        return self.at[region].run(lambda: make(*words), key)

    def run(self) -> Report:
        began = time.monotonic()
        pieces, groups = list[Piece](), list[Anomaly]()
        for name in self._streams():
            before = self.snapshots(name)
            pieces += self._pieces(before)
            groups += lost_groups(before)
        weights = [each.part.weight * len(each.ends) for each in pieces]
        facts = tasks.run(self.spark, pieces, partial(_compare, self.servers), _FACT, weights)
        suspects = [_suspect(fact) for fact in facts if fact["what"] == "differs"]
        anomalies = [_duplicated(fact) for fact in facts if fact["what"] == "also in"]
        deadline = time.monotonic() + self.settle_s
        anomalies += self._settled(suspects, deadline) + self._settled_groups(groups, deadline)
        anomalies.sort(key=lambda each: (each.stream, each.place, len(each.id), each.id, each.region))
        regions = {region: f"region {region}" for region in self.servers}
        return Report(regions, _stretches(facts), anomalies, time.monotonic() - began)

    def snapshots(self, name: bytes) -> Snapshots:
        return Snapshots(
            name, {region: self.run_plan(region, name, read_snapshot, name) for region in self.at}
        )

    def _streams(self) -> list[bytes]:
        if self.pattern is None:
            return list(self.names)
        wanted = self.pattern
        found = set[bytes]()
        for surveyor in self.at.values():
            found |= surveyor.try_servers(lambda server: find(server, wanted))
        return sorted(name for name in found if not self.is_local(name))

    def _pieces(self, snapshots: Snapshots) -> Iterator[Piece]:
        """Ranges of about RANGE_ROWS entries, up to the last entry that any region has."""
        for strand in snapshots.strands:
            copies = snapshots.copies(strand)
            region, fullest = max(copies.items(), key=lambda each: each[1].length)
            end = max(copy.last for copy in copies.values())
            whole = Range(strand, ids.ZERO, end, size=fullest.size, weight=fullest.length)
            count = -(-fullest.length // RANGE_ROWS)
            parts = self.run_plan(region, strand.key, split, whole, count) if count > 1 else [whole]
            ends = {number: _ends(copy) for number, copy in copies.items()}
            others = _others(strand, snapshots) if strand.has_chosen_ids else {}
            yield from (Piece(part, ends, others) for part in parts if end > ids.ZERO)

    def _settled(self, suspects: list[Suspect], deadline: float) -> list[Anomaly]:
        """The anomalies that remain after the time in which replication would have repaired them."""
        left = suspects
        while True:
            left = [now for each in left if (now := self._again(each)) is not None]
            if not left or time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        snapshots = {name: self.snapshots(name) for name in {each.strand.name for each in left}}
        after = [(each, self._again(each)) for each in left]
        return [
            wrong
            for each, now in after
            if now is not None
            for wrong in judge(each, now, snapshots[each.strand.name])
        ]

    def _settled_groups(self, lost: list[Anomaly], deadline: float) -> list[Anomaly]:
        """The groups that are still lost: one may have been created or destroyed while it was read."""
        while lost:
            names = {each.stream for each in lost}
            now = [each for name in names for each in lost_groups(self.snapshots(name_of_text(name)))]
            lost = [each for each in lost if each in now]
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        return lost

    def _again(self, suspect: Suspect) -> Suspect | None:
        """The entry as it is now; None if all regions agree."""
        strand = suspect.strand
        found = dict[int, str]()
        for region in self.at:
            reply = self.run_plan(region, strand.key, read_entry, strand, suspect.native)
            if reply:
                found[region] = _digest(reply[0][1])
        now = replace(suspect, found=found)
        return None if not found or (len(found) == len(self.at) and len(set(found.values())) == 1) else now


def _others(strand: Strand, snapshots: Snapshots) -> dict[int, tuple[Strand, ...]]:
    """The other strands of the stream in each region; of two with chosen IDs only one is compared."""
    return {
        region: tuple(
            each
            for each in here.registry.strands
            if each != strand and not (each.has_chosen_ids and each.writer < strand.writer)
        )
        for region, here in snapshots.by_region.items()
        if strand in here.registry.strands
    }


def read_entry(strand: Strand, native: Id) -> Plan[list[Any]]:
    """An entry, as a list of one or none."""
    where = ids.text(native)
    return (yield from send_one(("XRANGE", strand.key, where, where), resend=True))  # type: ignore[no-any-return]


def _digest(words: Iterable[bytes]) -> str:
    framed = b"".join(b"%d:%b" % (len(word), word) for word in words)  # `ab` `c` is not `a` `bc`
    return blake2b(framed, digest_size=8).hexdigest()


def _ends(copy: StrandInfo) -> tuple[Id, Id]:
    first = copy.last if copy.first is None else ids.before(copy.first) or ids.ZERO
    return max(first, copy.cut), copy.last


def _suspect(fact: Mapping[str, Any]) -> Suspect:
    return Suspect(strand_of_row(fact["stream"], fact["place"]), ids.native(fact["id"].encode()))


def _duplicated(fact: Mapping[str, Any]) -> Anomaly:
    where = fact["stream"], fact["place"], fact["id"]
    return Anomaly("duplicated", *where, fact["count"], note=f"also in {fact['found']}")


def _stretches(facts: Iterable[Mapping[str, Any]]) -> list[Stretch]:
    counts = dict[tuple[str, str, str, str], dict[str, dict[int, int]]]()
    for fact in facts:
        where = fact["stream"], fact["place"], fact["low"], fact["high"]
        here = counts.setdefault(where, {"rows": {}, "behind": {}, "removing": {}})
        if fact["what"] in here:
            here[fact["what"]][int(fact["found"])] = fact["count"]
    return [
        Stretch(*where, here["rows"], here["behind"], here["removing"])
        for where, here in sorted(counts.items())
    ]


def _compare(servers: Mapping[int, Servers], pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
    """In a task: ranges in all regions."""
    for piece in pieces:
        strand, part = piece.part.strand, Slice([piece.part], 0)
        copies = {region: _copy(part, each) for region, each in servers.items()}
        ends = map(id_text, (piece.part.start, piece.part.end))
        where = dict(zip(("stream", "place", "low", "high"), (*_where(strand), *ends), strict=True))
        facts = chain(_facts(strand, copies, piece.ends), _duplicates(servers, piece, copies))
        yield pa.RecordBatch.from_pylist([{**where, **fact} for fact in facts], _FACT_ARROW)


def _where(strand: Strand) -> tuple[str, str]:
    return name_text(strand.name), place_text(strand)


def _duplicates(
    servers: Mapping[int, Servers], piece: Piece, copies: Mapping[int, pa.Table]
) -> Iterator[dict[str, Any]]:
    """Chosen IDs that another strand of the stream has too, in the same region."""
    for region, others in piece.others.items():
        users = [entry_of(each) for each in copies[region]["position"].to_pylist()]
        surveyor = Surveyor(servers[region], (), None)
        try:
            for other in others if users else ():
                for user in surveyor.run(partial(_also_in, other, users), other.key):
                    yield {
                        "what": "also in",
                        "id": id_text(user),
                        "found": place_text(other),
                        "count": region,
                    }
        finally:
            surveyor.close()


def _also_in(strand: Strand, users: list[Id]) -> Plan[list[Id]]:
    """Which of these user IDs a strand has."""
    found, wanted = list[Id](), [(user, native) for user in users if (native := strand.exact(user))]
    for at in range(0, len(wanted), AT_ONCE):
        some = wanted[at : at + AT_ONCE]
        texts = (ids.text(native) for _, native in some)
        replies = yield Batch([("XRANGE", strand.key, text, text) for text in texts], resend=True)
        found += [user for (user, _), reply in zip(some, replies, strict=True) if reply]
    return found


def _copy(part: Slice, servers: Servers) -> pa.Table:
    found = pa.Table.from_batches(read(part, servers, LakeRows, None), ENTRIES)
    return found.select(["position", "fields"])


def _facts(
    strand: Strand, copies: Mapping[int, pa.Table], ends: Mapping[int, tuple[Id, Id]]
) -> Iterator[dict[str, Any]]:
    for region, table in copies.items():
        yield {"what": "rows", "found": str(region), "count": table.num_rows}
    if len({table_digest(table) for table in copies.values()}) == 1:
        return
    entries = {region: _entries(table, strand) for region, table in copies.items()}
    behind, removing, listed = dict.fromkeys(copies, 0), dict.fromkeys(copies, 0), 0
    for native in sorted({native for each in entries.values() for native in each}):
        digests = {region: each[native] for region, each in entries.items() if native in each}
        differs = len(set(digests.values())) > 1
        for region in copies.keys() - digests.keys():
            first, last = ends[region]
            if native > last:
                behind[region] += 1
            elif native <= first:
                for other in digests:
                    removing[other] += 1
            else:
                differs = True
        if differs and listed < NAMED:
            listed += 1
            yield {"what": "differs", "id": id_text(native), "count": 1}
    for what, counts in (("behind", behind), ("removing", removing)):
        yield from ({"what": what, "found": str(region), "count": n} for region, n in counts.items() if n)


def table_digest(table: pa.Table) -> bytes:
    """A digest. Equal digests mean equal entries; tables with different ones are compared entry by entry."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        if table.num_rows:
            writer.write_batch(table.combine_chunks().to_batches()[0])
    return blake2b(out.getvalue(), digest_size=16).digest()


def _entries(table: pa.Table, strand: Strand) -> dict[Id, str]:
    if not table.num_rows:
        return {}
    positions, fields = table["position"].to_pylist(), table["fields"].to_pylist()
    return {
        strand.native(entry_of(where)): _digest([repr(pairs).encode()])
        for where, pairs in zip(positions, fields, strict=True)
    }

"""audit: are all regions' copies of a stream alike? What is not is on its way, or wrong.

Every range of every strand is read in all regions by one task, digested, and where the digests differ
compared entry by entry. A copy is told by two facts: how far it was seen (its last ID), and what of it is
there. So of an entry that region X has and region Y has not:

    above Y's last ID            behind        Y has not seen it yet
    below Y's first, or cut      removing      trimmed or deleted in Y, and on its way to X
    a journal names it           removing      until X has done that journal; then it is RESURRECTED in X
    else                         LOST in Y     Y had it: nobody deleted it, and no link brings it again

And: DIVERGED, two copies have different fields under one ID. DUPLICATED, one user ID in two strands. A
group that the registry has and a strand has not is LOST as well.

What looks wrong is looked at again until it has been so for `settle_s`: only what stays wrong is told.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from braidstream.model import ids
from braidstream.model.frontier import name_of_text, name_text, place_of_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.protocol.plan import Batch, Plan, send_one
from braidstream.spark.jobs.standings import Standings, stand
from braidstream.spark.lake import distribute
from braidstream.spark.lake.files import LakeRows, entry_of
from braidstream.spark.options import Servers
from braidstream.spark.source.reading import read
from braidstream.spark.source.slices import Range, Slice, split
from braidstream.spark.source.survey import Standing, Surveyor, find

RANGE_ROWS: Final = 50_000
POLL_S: Final = 0.5
NAMED: Final = 10_000  # a report names at most so many anomalies

_PIECE: Final = StructType()
_FACT: Final = StructType()
for _name in ("stream", "place", "low", "high", "ends"):
    _PIECE.add(_name, StringType())
for _name in ("stream", "place", "low", "high", "what", "id", "found"):
    _FACT.add(_name, StringType())
_FACT.add("count", LongType())
_FACT_ARROW: Final = pa.schema(
    [(each.name, pa.int64() if each.name == "count" else pa.string()) for each in _FACT]
)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What is wrong, where. id: as users see it; for a group its name. certain: a repair may rely on it."""

    kind: str
    stream: str
    place: str
    id: str
    region: int
    certain: bool = True
    healed: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of a strand as all regions have it. behind, removing: entries on their way, by region."""

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


@dataclass(frozen=True, slots=True)
class Suspect:
    """An entry that is not alike everywhere: {region: digest of its fields}, missing where it is not."""

    strand: Strand
    native: Id
    found: Mapping[int, str] = field(default_factory=dict)


class Auditor:
    """Compares regions, each by its number with how to reach it."""

    def __init__(
        self,
        spark: SparkSession | None,
        regions: Mapping[int, Servers],
        *,
        streams: Iterable[bytes] = (),
        pattern: bytes | None = None,
        settle_s: float = 10.0,
    ) -> None:
        self.spark, self.settle_s = spark, settle_s
        self.names, self.pattern = tuple(streams), pattern
        self.servers = dict(regions)
        self.at = {region: Surveyor(servers, (), None) for region, servers in regions.items()}

    def close(self) -> None:
        for surveyor in self.at.values():
            surveyor.close()

    def ask(self, region: int, plan: Plan[Any], key: bytes) -> Any:
        return self.at[region].try_servers(lambda server: server.run(plan, key))

    def run(self) -> Report:
        began = time.monotonic()
        stretches, suspects, anomalies = list[Stretch](), list[Suspect](), list[Anomaly]()
        for name in self._streams():
            before = self.stand(name)
            facts = distribute.run(
                self.spark, self._pieces(before), _PIECE, partial(_compare, self.servers), _FACT
            )
            stretches += _stretches(facts)
            suspects += [_suspect(fact) for fact in facts if fact["what"] == "differs"]
            anomalies += self._groups(name, before) + self._duplicates(before)
        anomalies += self._settled(suspects)
        anomalies.sort(key=lambda each: (each.stream, each.place, len(each.id), each.id, each.region))
        regions = {region: f"region {region}" for region in self.servers}
        return Report(regions, stretches, anomalies, time.monotonic() - began)

    def stand(self, name: bytes) -> Standings:
        return Standings(name, {region: self.ask(region, stand(name), name) for region in self.at})

    def _streams(self) -> list[bytes]:
        if self.pattern is None:
            return list(self.names)
        wanted = self.pattern
        found = set[bytes]()
        for surveyor in self.at.values():
            found |= surveyor.try_servers(lambda server: find(server, wanted))
        return sorted(found)

    def _pieces(self, standings: Standings) -> list[tuple[str, ...]]:
        """Ranges of about RANGE_ROWS entries, each strand from its first entry anywhere to its last."""
        pieces = list[tuple[str, ...]]()
        for strand in standings.strands:
            copies = standings.copies(strand)
            region, fullest = max(copies.items(), key=lambda each: each[1].length)
            end = max(copy.last for copy in copies.values())
            whole = Range(strand, ids.ZERO, end, None, fullest.size, False, fullest.length)
            count = -(-fullest.length // RANGE_ROWS)
            parts = self.ask(region, split(whole, count), strand.key) if count > 1 else [whole]
            ends = " ".join(f"{number}:{_ends(copy)}" for number, copy in copies.items())
            where = name_text(strand.name), place_text(strand)
            pieces += [(*where, _text(part.start), _text(part.end), ends) for part in parts if end > ids.ZERO]
        return pieces

    def _settled(self, suspects: list[Suspect]) -> list[Anomaly]:
        """What is still wrong after the time in which replication would have set it right."""
        deadline, left = time.monotonic() + self.settle_s, suspects
        while True:
            left = [now for each in left if (now := self._again(each)) is not None]
            if not left or time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        standings = {name: self.stand(name) for name in {each.strand.name for each in left}}
        after = [(each, self._again(each)) for each in left]
        return [
            wrong
            for each, now in after
            if now is not None
            for wrong in judge(each, now, standings[each.strand.name])
        ]

    def _again(self, suspect: Suspect) -> Suspect | None:
        """The entry as it is now; None if all is well with it."""
        strand, where = suspect.strand, ids.text(suspect.native)
        found = dict[int, str]()
        for region in self.at:
            reply = self.ask(region, send_one(("XRANGE", strand.key, where, where), resend=True), strand.key)
            if reply:
                found[region] = _digest(reply[0][1])
        now = replace(suspect, found=found)
        return None if not found or (len(found) == len(self.at) and len(set(found.values())) == 1) else now

    def _groups(self, name: bytes, standings: Standings) -> list[Anomaly]:
        """Groups that the registry of a region has and one of its strands has not."""
        lost = list[Anomaly]()
        for region, here in standings.by_region.items():
            for strand in here.registry.strands:
                for group in here.registry.groups:
                    if group not in here.groups.get(strand, frozenset()) and here.sight.get(strand):
                        shown = group.decode("utf-8", "backslashreplace")
                        text = name_text(name), place_text(strand), shown
                        lost.append(Anomaly("lost", *text, region, note="group"))
        return lost

    def _duplicates(self, standings: Standings) -> list[Anomaly]:
        """Chosen IDs that another strand of the stream has too, in the same region."""
        found = list[Anomaly]()
        for region, here in standings.by_region.items():
            chosen = [strand for strand in here.registry.strands if strand.has_chosen_ids]
            for strand in chosen:
                others = [each for each in here.registry.strands if each != strand]
                for user in self.ask(region, _users(strand), strand.key):
                    for other in others:
                        native = other.exact(user)
                        if native is None or (other.has_chosen_ids and other.writer < strand.writer):
                            continue
                        where = ids.text(native)
                        if self.ask(
                            region, send_one(("XRANGE", other.key, where, where), resend=True), other.key
                        ):
                            where_text = name_text(strand.name), place_text(strand), _text(user)
                            note = f"also in {place_text(other)}"
                            found.append(Anomaly("duplicated", *where_text, region, note=note))
        return found


def judge(before: Suspect, suspect: Suspect, standings: Standings) -> list[Anomaly]:
    """What is wrong with an entry that was seen before and after the standings were taken, or nothing.

    Who removes an entry says so in the same step: what was missing before is explained by the standings. And
    what a region knew to be deleted then, must be missing after.
    """
    strand, native = suspect.strand, suspect.native
    what = name_text(strand.name), place_text(strand), _text(strand.user(native))
    found = list[Anomaly]()
    if len(set(suspect.found.values())) > 1:
        right = suspect.found.get(standings.home(strand))
        wrong = [region for region, digest in suspect.found.items() if digest != right]
        note = "" if right is not None else "its own region has it no more"
        found += [Anomaly("diverged", *what, region, right is not None, note=note) for region in wrong]
    named = standings.deletion(strand, native)
    for region, here in standings.by_region.items():
        if region in suspect.found:
            if named is not None and here.journal_at(named[0]) >= named[1]:
                found.append(Anomaly("resurrected", *what, region))
        elif region not in before.found and named is None and not _is_explained(standings, region, suspect):
            sure = not standings.overflowed
            note = "" if sure else "or deleted: a journal has overflowed"
            found.append(Anomaly("lost", *what, region, sure, note=note))
    return found


def _is_explained(standings: Standings, region: int, suspect: Suspect) -> bool:
    """Whether an entry is missing because it was not seen yet, was trimmed, or went with its stream."""
    copy, native = standings.copy(region, suspect.strand), suspect.native
    if native > copy.last or native <= copy.cut or standings.is_over(region, suspect.strand):
        return True
    return copy.there and (copy.first is None or native < copy.first)


def _users(strand: Strand) -> Plan[list[Id]]:
    """The user IDs of a strand, page by page."""
    found, after = list[Id](), b"-"
    while True:
        [page] = yield Batch([("XRANGE", strand.key, after, "+", "COUNT", 1000)], resend=True)
        if not page:
            return found
        found += [strand.user(ids.native(entry[0])) for entry in page]
        after = b"(" + page[-1][0]


def _text(entry: Id) -> str:
    return ids.text(entry).decode()


def _digest(words: Iterable[bytes]) -> str:
    told_apart = b"".join(b"%d:%b" % (len(word), word) for word in words)  # `ab` `c` is not `a` `bc`
    return blake2b(told_apart, digest_size=8).hexdigest()


def _ends(copy: Standing) -> str:
    """first and last as of the beginning: what lies outside is on its way."""
    first = copy.last if copy.first is None else ids.before(copy.first) or ids.ZERO
    return f"{_text(max(first, copy.cut))}:{_text(copy.last)}"


def _suspect(fact: Mapping[str, Any]) -> Suspect:
    strand = place_of_text(name_of_text(fact["stream"]), fact["place"])
    assert strand is not None, fact
    return Suspect(strand, ids.native(fact["id"].encode()))


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


def _compare(servers: Mapping[int, Servers], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: one range in all regions."""
    for batch in batches:
        for piece in batch.to_pylist():
            strand = place_of_text(name_of_text(piece["stream"]), piece["place"])
            assert strand is not None, piece
            low, high = (ids.native(piece[name].encode()) for name in ("low", "high"))
            part = Slice(Range(strand, low, high, None, 64, False, 0), 0)
            copies = {region: _copy(part, each) for region, each in servers.items()}
            ends = dict[int, tuple[Id, Id]]()
            for told in piece["ends"].split(" "):
                region, first, last = told.split(":")
                ends[int(region)] = ids.native(first.encode()), ids.native(last.encode())
            told_of = {name: piece[name] for name in ("stream", "place", "low", "high")}
            rows = [{**told_of, **fact} for fact in _facts(strand, copies, ends)]
            yield pa.RecordBatch.from_pylist(rows, _FACT_ARROW)


def _copy(part: Slice, servers: Servers) -> pa.Table:
    batches = list(read(part, servers, LakeRows(part.part.strand), 30.0))
    empty = LakeRows(part.part.strand).arrow
    return pa.Table.from_batches(batches).select(["position", "fields"]) if batches else empty.empty_table()


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
            yield {"what": "differs", "id": _text(native), "count": 1}
    for what, counts in (("behind", behind), ("removing", removing)):
        yield from ({"what": what, "found": str(region), "count": n} for region, n in counts.items() if n)


def table_digest(table: pa.Table) -> bytes:
    """Equal digests: equal entries. Unequal ones are looked at entry by entry."""
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

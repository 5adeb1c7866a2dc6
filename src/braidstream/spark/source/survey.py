"""Finds the streams, their strands, and where each strand begins and ends. Driver only.

A stream of braidstream has the strands of its registry. A plain stream, on a server that is no region, is one
strand of kind `p`. Of the strands of a log counts what log_extent.py says.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from braidstream.commands.glob import matcher
from braidstream.errors import (
    DataLossError,
    LibraryError,
    NotARegionError,
    OptionError,
    ReplyError,
    UnreachableError,
)
from braidstream.lua.cluster_facts import read_facts
from braidstream.model import ids, keys
from braidstream.model.fields import ConfigField
from braidstream.model.ids import Id
from braidstream.model.meta import Registry, trimmed_upto
from braidstream.model.region_config import Region
from braidstream.model.strand import Strand, facts
from braidstream.net.bulk import RedisError, Server, shown
from braidstream.protocol.identify import read_any_region
from braidstream.protocol.lookup import checked_now, registry_of
from braidstream.protocol.plan import Batch, Plan, send_one
from braidstream.protocol.retries import Retries
from braidstream.spark.options import Servers
from braidstream.spark.source.log_extent import dense
from braidstream.spark.source.strand_info import StrandInfo, StrandInfos, info_of

T = TypeVar("T")

# How many streams share a round trip: at first, at most, and by their size.
FIRST_LOOK, LOOK, LOOK_BYTES = 16, 256, 4 << 20
SCAN_COUNT = 1000
# The result of a pattern's SCAN is cached for ten times the duration of the SCAN.
SCAN_REST = 10


def look(*names: bytes) -> Plan[StrandInfos]:
    """The strands of streams. Two round trips for some hundred streams; a snapshot of each strand.

    XINFO returns two entries of each strand, so there are fewer streams in a round trip if those are large.
    """
    found, left, count = StrandInfos(), list(dict.fromkeys(names)), FIRST_LOOK
    while left:
        infos = yield from _look(left[:count])
        looked = min(count, len(left))
        del left[:count]
        found |= infos
        size = 2 * sum(info.size for info in infos.values()) // looked
        count = max(1, min(LOOK, 2 * count, LOOK_BYTES // max(1, size)))
    return found


def _look(names: Sequence[bytes]) -> Plan[StrandInfos]:
    reads = [registry_of(name) for name in names]
    replies = yield Batch([*reads, *(("TYPE", name) for name in names)], resend=True)
    read = {name: Registry.parse(name, reply) for name, reply in zip(names, replies, strict=False)}
    registries = yield from checked_now(reads, read)
    strands = list[Strand]()
    for name, kind in zip(names, replies[len(names) :], strict=True):
        strands += _strands(name, registries[name], kind)
    replies = (yield Batch([each.xinfo() for each in strands], resend=True, attempt=True)) if strands else []
    known = dict[bytes, dict[Strand, dict[bytes, Any]]]()
    for strand, reply in zip(strands, replies, strict=True):
        if not isinstance(reply, ReplyError):
            known.setdefault(strand.name, {})[strand] = facts(reply)
        elif not reply.text.startswith("ERR no such key"):
            raise reply
    found = StrandInfos()
    for name in names:
        found |= _infos(name, registries[name], known.get(name, {}))
    return found


def _strands(name: bytes, registry: Registry, kind: bytes) -> Sequence[Strand]:
    """The strands to look at. kind: the type of the plain key of that name.

    A plain key may have the name of a deleted stream: the fence of an adopted one, or a key of a user.
    """
    if not registry.exists and kind == b"stream":
        return [Strand(name, keys.PLAIN, 0)]
    if not registry.cuts and kind != b"none":
        raise ReplyError(f"WRONGTYPE {name.decode('utf-8', 'replace')} is no stream but a {kind.decode()}")
    return registry.strands


def _infos(name: bytes, registry: Registry, known: Mapping[Strand, dict[bytes, Any]]) -> StrandInfos:
    """The strands of one stream. known: what XINFO says of those that are there."""
    # What was deleted. A strand whose key was lost has a higher cut in the registry: the server began there.
    cuts = {strand: registry.lost.get(strand.label, cut) for strand, cut in registry.cuts.items()}
    infos = {strand: StrandInfo(ids.ZERO, 0, 0, None, cut, 0, there=False) for strand, cut in cuts.items()}
    for strand, each in known.items():
        infos[strand] = replace(
            info_of(each, cuts.get(strand, ids.ZERO)),
            mended=registry.mends.get(strand.label, b""),
            lost=_began_again(registry, strand),
            trimmed=trimmed_upto(registry.trims.get(strand.label, b""), strand.life),
        )
    if not (registry.is_log or (registry.epochs and not registry.exists)):
        return infos
    lasts = {strand: each[b"last-entry"] for strand, each in known.items()}
    ends = {strand: ids.native(last[0]) for strand, last in lasts.items() if last}
    return dense(name, registry, infos, ends)


def _began_again(registry: Registry, strand: Strand) -> Id:
    """After which ID a strand was created again whose key was lost; 0-0 if it was not lost."""
    began = registry.cuts.get(strand, ids.ZERO)
    return began if began > registry.lost.get(strand.label, began) else ids.ZERO


def _scan(match: bytes, kind: str) -> Plan[list[bytes]]:
    cursor, found = b"0", list[bytes]()
    while True:
        command = ("SCAN", cursor, "MATCH", match, "COUNT", SCAN_COUNT, "TYPE", kind)
        [[cursor, page]] = yield Batch([command], resend=True)
        found += page
        if cursor == b"0":
            return found


class Surveyor:
    """Surveys the streams of a source, on the first server of a list that answers."""

    def __init__(self, servers: Servers, names: Iterable[bytes], pattern: bytes | None) -> None:
        self.servers, self.names, self.pattern = servers, tuple(names), pattern
        self.url = 0
        self.region: int | None = None
        self._server: Server | None = None
        self._moves = 0  # from one region to another
        self._found: tuple[bytes, ...] = ()
        self._scan_again_at = 0.0

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def try_servers(self, work: Callable[[Server], T]) -> T:
        """Run a function on the current server; if that is lost, on the next of the list that answers."""
        trouble = list[str]()
        count = len(self.servers.urls)
        for turn in range(count):
            at = (self.url + turn) % count
            try:
                if self._server is None:
                    self._server = open_server(self.servers, at)
                    region = region_of(self._server)
                    if region != self.region:
                        self._moves += 1
                    self.region, self.url = region, at
                return work(self._server)
            except (RedisError, OSError) as error:
                self.close()
                trouble.append(f"{shown(self.servers.urls[at])}: {error}")
        raise UnreachableError.of(trouble)

    def in_one_region(self, work: Callable[[], T]) -> T:
        """Run work that calls the servers several times, and counts entries. If another region has answered
        in between, run it again: what one region has counted is wrong in another."""
        retries = Retries(
            "the servers are lost again and again", error=lambda why: UnreachableError.of([why])
        )
        while True:
            retries.count()
            self.try_servers(lambda server: None)
            before = self._moves
            try:
                made = work()
            except DataLossError:
                if self._moves == before:
                    raise
                continue
            if self._moves == before:
                return made

    def survey(self) -> StrandInfos:
        """Every strand of every stream, now."""
        return self.try_servers(lambda server: look_at(server, self._streams(server)))

    def missing(self) -> list[bytes]:
        """The streams that are named but do not exist now; none if there is a pattern."""
        if self.pattern is not None:
            self.try_servers(region_of)
            return []
        infos = self.try_servers(lambda server: look_at(server, self.names))
        there = {strand.name for strand, info in infos.items() if info.there}
        return [name for name in self.names if name not in there]

    def look(self, strands: Iterable[Strand]) -> StrandInfos:
        """The streams of these strands, now."""
        names = sorted({strand.name for strand in strands})
        return self.try_servers(lambda server: look_at(server, names))

    def _streams(self, server: Server) -> tuple[bytes, ...]:
        if self.pattern is None:
            return self.names
        began = time.monotonic()
        if began >= self._scan_again_at:
            self._found = tuple(sorted(find(server, self.pattern)))
            now = time.monotonic()
            self._scan_again_at = now + SCAN_REST * (now - began)
        return self._found


def look_at(server: Server, names: Iterable[bytes]) -> StrandInfos:
    """The strands of streams, node by node."""
    found = StrandInfos()
    for some in server.by_node(names, keys.meta):
        found |= server.run(look(*some), keys.meta(some[0]))
    return found


def find(server: Server, pattern: bytes) -> set[bytes]:
    """The names of all streams that match a glob, plain and braided. Walks the keyspace."""
    matches = matcher(pattern)
    plain = {
        name
        for page in server.run_everywhere(lambda: _scan(pattern, "stream"))
        for name in page
        if not keys.is_ours(name)
    }
    metas = (key for page in server.run_everywhere(lambda: _scan(keys.META + b"*", "hash")) for key in page)
    braided = {name for key in metas if (name := keys.name_of_meta(key)) is not None and matches(name)}
    return plain | braided


def region_of(server: Server) -> int | None:
    """The number of the server's region; None if it is none."""
    if server.is_cluster:
        region = region_at(server)
        return None if region is None else region.id
    command = ("HGET", keys.CONFIG, ConfigField.REGION)
    reply = server.run(send_one(command, resend=True), keys.CONFIG)
    return None if reply is None else int(reply)


def region_at(server: Server, key: bytes | None = None) -> Region | None:
    """The region that a server or a cluster is; None if it is none. key: ask the node that holds it.

    A node of a cluster that lacks the functions is an error if others have them: what it wrote would be
    outside of the region.
    """
    try:
        return server.run(read_any_region(), key)
    except NotARegionError:
        if not server.is_cluster:
            return None
    if all(facts is None for facts in server.run_everywhere(read_facts)):
        return None
    raise LibraryError(
        "a node of this cluster lacks the braidstream functions. Load them with: "
        "braid init --url URL --region N --name NAME"
    )


def open_server(servers: Servers, at: int) -> Server:
    """A server of the list. If redis-py refuses an option, the error names it."""
    url, options = servers.urls[at], dict(servers.redis)
    try:
        return Server(url, options)
    except (TypeError, ValueError) as error:
        if not _can_be_read(url):  # redis-py's text may contain a part of the password
            raise OptionError("url", "cannot be read. Write redis://user:password@host:port/db") from None
        raise OptionError("redis." + "|redis.".join(sorted(options)), str(error)) from None


def _can_be_read(url: str) -> bool:
    try:
        Server(url).close()
    except (TypeError, ValueError):
        return False
    return True

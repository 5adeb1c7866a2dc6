"""Finds the streams, their strands, and where each strand begins and ends. Driver only.

A stream of braidstream has the strands of its registry. A plain stream, on a server that is no region, is one
strand of kind `p`. Of the strands of a log counts what log_extent.py says.
"""

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from braidstream.commands.glob import matcher
from braidstream.errors import OptionError, ReplyError, UnreachableError
from braidstream.model import ids, keys
from braidstream.model.fields import ConfigField
from braidstream.model.ids import Id
from braidstream.model.meta import Registry
from braidstream.model.strand import Strand, facts
from braidstream.net.bulk import RedisError, Server, shown
from braidstream.protocol.lookup import checked_now, registry_of
from braidstream.protocol.plan import Batch, Plan, send_one
from braidstream.spark.options import Servers
from braidstream.spark.source.log_extent import dense
from braidstream.spark.source.strand_info import StrandInfo, StrandInfos, info_of

T = TypeVar("T")

SCAN_COUNT = 1000
# The result of a pattern's SCAN is cached for ten times the duration of the SCAN.
SCAN_REST = 10


def look(name: bytes) -> Plan[StrandInfos]:
    """The strands of one stream. Two round trips; a snapshot of each strand.

    A plain key may have the name of a deleted stream: the fence of an adopted one, or a key of a user.
    """
    registry_reply, kind = yield Batch([registry_of(name), ("TYPE", name)], resend=True)
    read = {name: Registry.parse(name, registry_reply)}
    registry = (yield from checked_now([registry_of(name)], read))[name]
    cuts = {strand: cut for strand, cut in registry.cuts.items()}
    strands = list(registry.strands)
    if not registry.exists and kind == b"stream":
        strands = [Strand(name, keys.PLAIN, 0)]
    elif not registry.cuts and kind != b"none":
        raise ReplyError(f"WRONGTYPE {name.decode('utf-8', 'replace')} is no stream but a {kind.decode()}")
    replies = (yield Batch([each.xinfo() for each in strands], resend=True, attempt=True)) if strands else []
    infos = {strand: StrandInfo(ids.ZERO, 0, 0, None, cut, 0, there=False) for strand, cut in cuts.items()}
    ends = dict[Strand, Id]()
    for strand, reply in zip(strands, replies, strict=True):
        if isinstance(reply, ReplyError):
            if not reply.text.startswith("ERR no such key"):
                raise reply
        else:
            info = facts(reply)
            infos[strand] = info_of(info, cuts.get(strand, ids.ZERO))
            if info[b"last-entry"]:
                ends[strand] = ids.native(info[b"last-entry"][0])
    is_log = registry.is_log or (registry.epochs and not registry.exists)
    return dense(name, registry, infos, ends) if is_log else infos


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
                    self.region = region_of(self._server)
                    self.url = at
                return work(self._server)
            except (RedisError, OSError) as error:
                self.close()
                trouble.append(f"{shown(self.servers.urls[at])}: {error}")
        raise UnreachableError.of(trouble)

    def survey(self) -> StrandInfos:
        """Every strand of every stream, now."""
        return self.try_servers(self._look_at_all)

    def missing(self) -> list[bytes]:
        """The streams that are named but do not exist now; none if there is a pattern."""
        if self.pattern is not None:
            self.try_servers(region_of)
            return []
        return self.try_servers(lambda server: [name for name in self.names if not _exists(server, name)])

    def look(self, strands: Iterable[Strand]) -> StrandInfos:
        """The streams of these strands, now."""
        names = sorted({strand.name for strand in strands})
        return self.try_servers(lambda server: _merged(server.run(look(name), name) for name in names))

    def _look_at_all(self, server: Server) -> StrandInfos:
        return _merged(server.run(look(name), keys.meta(name)) for name in self._streams(server))

    def _streams(self, server: Server) -> tuple[bytes, ...]:
        if self.pattern is None:
            return self.names
        began = time.monotonic()
        if began >= self._scan_again_at:
            self._found = tuple(sorted(find(server, self.pattern)))
            now = time.monotonic()
            self._scan_again_at = now + SCAN_REST * (now - began)
        return self._found


def _exists(server: Server, name: bytes) -> bool:
    return any(info.there for info in server.run(look(name), keys.meta(name)).values())


def _merged(surveys: Iterable[StrandInfos]) -> StrandInfos:
    whole = StrandInfos()
    for infos in surveys:
        whole.update(infos)
    return whole


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
    """The server's region; None if it is none."""
    command = ("HGET", keys.CONFIG, ConfigField.REGION)
    reply = server.run(send_one(command, resend=True), keys.CONFIG)
    return None if reply is None else int(reply)


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

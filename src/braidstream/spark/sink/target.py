"""Where the rows of a sink go: the strand of a stream, or of a log, that this server appends to.

A native stream of a region stays native, as for clients, until `braid adopt`. A step of a publisher watches
the plain key, which an adoption replaces by a fence.

A log takes rows at its home only. The home may move at any time, so a step of a publisher watches the
registry: whatever ends an epoch changes it, and then the step does nothing.
"""

from dataclasses import dataclass

from braidstream import lua
from braidstream.clusters.bulk import Server, Wire
from braidstream.errors import NotARegionError, ReplyError, SinkError
from braidstream.model import ids, keys
from braidstream.model.registry import SEALED, Epoch, Registry
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.append import ensure_command
from braidstream.plan.lookup import FENCE_TYPE, current, is_stale, registry_of
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import Retries
from braidstream.spark.source.survey import region_at


def target(server: Server, name: bytes, *, is_log: bool | None = None) -> Strand:
    """The strand that this server appends to; the plain stream if this is not a region, or it is native.

    is_log: what the sink's options say; None if the registry decides. A log is created if it is missing.
    """
    region = region_at(server, keys.meta(name))
    if region is None:
        if is_log:
            raise SinkError(f"log {_shown(name)}: this server is not a region. Run `braid init` first.")
        if not server.is_cluster and server.run(_was_region()):
            raise SinkError(
                f"{NotARegionError()}. To make it a plain server: redis-cli FUNCTION DELETE {lua.NAME}"
            )
        return Strand(name, keys.PLAIN, 0)
    writer = region.writer
    retries = Retries(f"the home of log {_shown(name)} kept moving", error=SinkError)
    while True:
        retries.count()
        try:
            return _target(server, name, writer, is_log)
        except ReplyError as error:
            if not is_stale(error):  # the home has just moved
                raise SinkError(f"the server refused {_shown(name)}: {error.text}") from None


def _was_region() -> Plan[bool]:
    """Whether a server without a region was emptied: it has the functions, and no other database with keys,
    which may be the region."""
    version, size, listed = yield Batch(
        [("FCALL_RO", "bs_version", 0), ("DBSIZE",), ("INFO", "keyspace")], resend=True, attempt=True
    )
    if any(isinstance(reply, ReplyError) for reply in (version, size, listed)):
        return False
    databases = [line for line in bytes(listed).splitlines() if line.startswith(b"db")]
    return len(databases) == (1 if size else 0)


def _target(server: Server, name: bytes, writer: int, is_log: bool | None) -> Strand:
    registry = server.run(current(name), keys.meta(name))
    known = registry.is_log or (registry.home is not None and not registry.exists)
    if known and is_log is False:
        raise SinkError(f"{_shown(name)} is a log: name it in the option log, not in stream.")
    if not (known or is_log):
        kind = None if registry.exists else server.run(send_one(("TYPE", name), resend=True), name)
        is_native = kind == b"stream"
        return Strand(name, keys.PLAIN, 0) if is_native else Strand(name, keys.GENERATED, writer)
    if registry.exists and not registry.is_log:
        raise SinkError(f"{_shown(name)} is a stream: name it in the option stream, not in log.")
    home = registry.home
    if home is not None and home.writer != writer:
        if is_log is None:
            raise SinkError(_has_moved(name, home, writer))
        raise SinkError(
            f"log {_shown(name)} is written in region {home.writer}, and this is region {writer}. "
            "Name the server of its home in url."
        )
    strand = Strand(name, keys.LOG, writer, 0 if home is None else home.number)
    ensure = ensure_command(strand, registry.bell, known=strand in registry.cuts)
    server.run(send_one(ensure, resend=True), strand.key)
    return strand


@dataclass(frozen=True, slots=True)
class Watched:
    """What a step found: the mark of the sink, why nothing can be appended, and what a step does besides."""

    mark: bytes | None
    refusal: str = ""
    besides: tuple[Command, ...] = ()


def watch(wire: Wire, strand: Strand, mark_key: bytes) -> Watched:
    """WATCH what the next step depends on, and look at it."""
    return _watch_log(wire, strand, mark_key) if strand.is_of_log else _watch_stream(wire, strand, mark_key)


def _watch_stream(wire: Wire, strand: Strand, mark_key: bytes) -> Watched:
    watched: tuple[bytes, ...] = (mark_key, strand.name)
    commands: list[Command] = [("GET", mark_key), ("TYPE", strand.name)]
    if not strand.is_plain:
        watched = (*watched, keys.meta(strand.name))
        commands.append(registry_of(strand.name))
    replies = wire.call(("WATCH", *watched), *commands)
    for reply in replies:
        if isinstance(reply, Exception):
            raise SinkError(f"the server refused {_shown(strand.name)}: {reply}")
    _, mark, kind, *rest = replies
    registry = Registry.parse(strand.name, *rest) if rest else None
    if not _takes_rows(kind, registry):
        return Watched(
            mark, f"{strand.name!r} is not a stream but another kind of key. Nothing was appended."
        )
    return Watched(mark)


def _takes_rows(kind: bytes, registry: Registry | None) -> bool:
    """Whether rows can be appended although the name has a key of this type. registry: None if plain."""
    if registry is None:
        return kind in (b"none", b"stream")
    if kind == b"stream":  # strays (`braid adopt --strays`): clients append to our stream too
        return registry.exists
    return kind == b"none" or (kind == FENCE_TYPE and registry.fenced)


def _watch_log(wire: Wire, strand: Strand, mark_key: bytes) -> Watched:
    commands: list[Command] = [("GET", mark_key), registry_of(strand.name), strand.xinfo()]
    _, mark, reply, info = wire.call(("WATCH", mark_key, keys.meta(strand.name)), *commands)
    registry = Registry.parse(strand.name, reply)
    home = registry.home
    if home is None or (home.number, home.writer) != (strand.life, strand.writer):
        return Watched(mark, _has_moved(strand.name, home, strand.writer))
    if strand not in registry.strands or isinstance(info, Exception):
        return Watched(mark, f"log {_shown(strand.name)} was deleted while rows were published. Start again.")
    if ids.native(facts(info)[b"last-generated-id"]) >= SEALED:
        return Watched(mark, f"log {_shown(strand.name)} is moving to another region. Start again.")
    backlog = registry.log.backlog
    return Watched(mark, besides=(("XTRIM", strand.key, "MAXLEN", "~", backlog),) if backlog else ())


def _has_moved(name: bytes, home: Epoch | None, writer: int) -> str:
    where = "gone" if home is None else f"region {home.writer} now"
    return (
        f"the home of log {_shown(name)} is {where}, and a batch was begun in region {writer}. Move the home "
        "back (braid log move) until the batch is published. Or set takeOver to true for one run in the new "
        "home: rows of the batch may then be doubled."
    )


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))

"""Exactly once: a sink's staged, decided and published batches, all stored in the engine.

    tasks    stage   RPUSH bs:stage:<token>:{orders}   chunks of rows, one key for each attempt
    driver   decide  HSET  bs:sink:{<sink>}            "batch 7 is these stages", or it was decided before
             keep    PERSIST bs:stage:<token>:{orders} before, it would have expired
             publish MULTI  XADD ... XADD ...  SET bs:sink:<sink>:{orders} 7:3:9  EXEC     chunk by chunk
             finish  HSET  bs:sink:{<sink>} done 7     and delete the stages

A replayed batch stages again, maybe with other rows in another order, depending on the shuffle. Until a batch
is decided nothing of it is visible; afterwards only the decided stages are published, by this driver or the
next one. So each row is written once, however often Spark runs a task, a batch or a driver. A chunk and the
mark that counts it are in one MULTI.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from braidstream.clusters.bulk import Server, Wire
from braidstream.errors import NotARegionError, SinkError
from braidstream.model import keys
from braidstream.model.fields import ConfigField, MetaField
from braidstream.model.frontier import name_of_text, name_text
from braidstream.model.strand import Command, Strand, facts, strand_of
from braidstream.plan.append import LOG_ROW_WORDS, ROW_WORDS, ensure_command, log_row_start, row_start
from braidstream.plan.cache import HELD_S
from braidstream.plan.lookup import ABOUT_OFFSETS, held_offsets
from braidstream.plan.plan import Batch, Plan, send_one
from braidstream.plan.retries import Retries
from braidstream.spark.sink.target import target, watch

# How long a change of the ledger is tried while its slot moves.
_MOVES_WITHIN_S: Final = 15.0
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Stage:
    """Chunks that one task has staged for one stream."""

    stream: bytes
    token: str
    chunks: int
    rows: int

    @property
    def key(self) -> bytes:
        return keys.stage(self.stream, self.token.encode())


@dataclass(frozen=True, slots=True)
class Ledger:
    """A sink's progress on one server. moved: another server has the ledger now. run: the last writer.

    streams: those of the last batch that is done; empty if not known.
    """

    batch: int = -1
    done: int = -1
    stages: tuple[Stage, ...] = ()
    moved: bool = False
    run: str = ""
    streams: frozenset[bytes] = field(default=frozenset(), compare=False)

    @property
    def is_undone(self) -> bool:
        return self.batch > self.done


def _parse(reply: list[Any]) -> Ledger | None:
    fields = facts(reply)
    if not fields:
        return None
    stages = json.loads(fields.get(b"stages", b"[]"))
    return Ledger(
        int(fields.get(b"batch", b"-1")),
        int(fields.get(b"done", b"-1")),
        tuple(Stage(name_of_text(name), token, chunks, rows) for name, token, chunks, rows in stages),
        b"moved" in fields,
        fields.get(b"run", b"").decode(),
        frozenset(map(name_of_text, json.loads(fields.get(b"streams", b"[]")))),
    )


def _listed(streams: Iterable[bytes]) -> str:
    return json.dumps(sorted(map(name_text, streams)))


class Book:
    """A sink's ledger on one server. forgets: it is deleted after its batch, which cannot be repeated."""

    def __init__(self, server: Server, sink: str, *, forgets: bool = False) -> None:
        self.server, self.sink, self.forgets = server, sink.encode(), forgets
        self.key = keys.sink_ledger(self.sink)

    def read(self) -> Ledger | None:
        return _parse(self.server.run(send_one(("HGETALL", self.key), resend=True), self.key))

    def _change(self, seen: Ledger | None, *commands: Command) -> bool:
        """Change the ledger if it is still equal to `seen`."""

        def changing() -> Plan[bool]:
            _, reply = yield Batch([("WATCH", self.key), ("HGETALL", self.key)])
            if _parse(reply) != seen:
                yield Batch([("UNWATCH",)])
                return False
            done: Any = yield Batch(commands, atomic=True)
            return done is not None

        until_s = time.monotonic() + _MOVES_WITHIN_S
        while not self.server.run(changing(), self.key):
            if self.read() != seen or time.monotonic() > until_s:
                return False
            time.sleep(_PAUSE_S)  # on a cluster, a WATCH fails while its slot moves
        return True

    def decide(self, seen: Ledger | None, batch: int, stages: Iterable[Stage], run: str) -> bool:
        """Decide that a batch is these stages. False if another driver has changed the ledger."""
        listed = [[name_text(each.stream), each.token, each.chunks, each.rows] for each in stages]
        fields = ("batch", batch, "stages", json.dumps(listed), "run", run)
        return self._change(seen, ("HSET", self.key, *fields), ("HDEL", self.key, "moved"))

    def adopt(self, seen: Ledger | None, done: int, streams: Iterable[bytes]) -> bool:
        """Take over the ledger: everything up to a batch was done on another server."""
        fields = ("batch", done, "done", done, "stages", "[]", "streams", _listed(streams))
        change = ("HSET", self.key, *fields)
        return self._change(seen, change, ("HDEL", self.key, "moved"))

    def fence(self, seen: Ledger) -> bool:
        return self._change(seen, ("HSET", self.key, "moved", 1))

    def finish(self, ledger: Ledger) -> None:
        """Mark a published batch as done, then delete its stages."""
        streams = {stage.stream for stage in ledger.stages}
        fields = ("done", ledger.batch, "stages", "[]", "streams", _listed(streams))
        if self.forgets:
            self._change(ledger, ("UNLINK", self.key))
            for name in streams:
                self.server.run(_unlink(keys.sink(self.sink, name)), keys.sink(self.sink, name))
        elif not self._change(ledger, ("HSET", self.key, *fields)):
            now = self.read()
            if now is None or now.done < ledger.batch:
                raise SinkError(
                    f"the ledger of sink {self.sink!r} was changed while batch {ledger.batch} was published"
                )
        self.discard(ledger.stages)

    def discard(self, stages: Iterable[Stage]) -> None:
        for stage in stages:
            self.server.run(_unlink(stage.key), stage.key)

    def abandon(self, stages: Iterable[Stage]) -> None:
        """A batch failed. Delete its stages, unless it was decided: the next driver will publish it."""
        ledger = self.read()
        decided = set(ledger.stages) if ledger is not None else set()
        self.discard(stage for stage in stages if stage not in decided)

    def are_complete(self, stages: Iterable[Stage], *, for_s: int | None = None) -> bool:
        """Whether every chunk still exists. Also extends their time to live, or removes it.

        Without limit only for decided stages: a driver will publish and delete those.
        """

        def kept(stage: Stage) -> Plan[bool]:
            keep: Command = ("PERSIST", stage.key) if for_s is None else ("EXPIRE", stage.key, for_s)
            _, length = yield Batch([keep, ("LLEN", stage.key)], resend=True)
            return int(length) == stage.chunks

        return all([self.server.run(kept(stage), stage.key) for stage in stages])

    def progress(self, stream: bytes) -> tuple[int, int, int]:
        """(batch, chunks published, all chunks) of a stream; batch -1 if there was none."""
        mark = keys.sink(self.sink, stream)
        return marked(self.server.run(send_one(("GET", mark), resend=True), mark))

    def publish(self, ledger: Ledger) -> None:
        """Append the decided chunks, from where the last publisher stopped."""
        by_stream = dict[bytes, list[Stage]]()
        for stage in ledger.stages:
            by_stream.setdefault(stage.stream, []).append(stage)
        for stream, stages in by_stream.items():
            Publisher(self, stream, ledger.batch, stages).run()


def _unlink(key: bytes) -> Plan[None]:
    yield Batch([("UNLINK", key)], resend=True)


def marked(reply: bytes | None) -> tuple[int, int, int]:
    if reply is None:
        return -1, 0, 0
    batch, published, chunks = reply.split(b":")
    return int(batch), int(published), int(chunks)


def append(wire: Wire, strand: Strand, chunk: bytes, marks: Iterable[Command] = ()) -> bool:
    """A chunk of XADDs and its marks, in one MULTI. False, and nothing done, if a WATCHed key changed."""
    reply = wire.exchange([("MULTI",), *_ensured(wire, strand)], chunk, [*marks, ("EXEC",)])
    if reply.endswith(b"*-1\r\n"):
        return False
    refusal = (b"\r\n" + reply).find(b"\r\n-")
    if refusal >= 0:
        text = bytes(reply[refusal + 1 :]).split(b"\r\n", 1)[0].decode("utf-8", "replace")
        raise SinkError(f"the server refused rows for {strand.name!r}: {text}")
    if strand.is_of_log and b"\r\n$-1\r\n" in reply:
        raise SinkError(f"log {strand.name!r} was deleted while rows were appended")
    return True


def _ensured(wire: Wire, strand: Strand) -> list[Command]:
    """Create the strand, and return what does so again in the MULTI if it is deleted before.

    In the MULTI alone, a refusal would stop neither the rows nor the mark.
    """
    if strand.is_of_log:
        _await_offsets(wire)
    if not strand.has_generated_ids:
        return []
    retries = Retries(f"the groups of {strand.name!r} kept changing", error=SinkError)
    while True:
        retries.count()
        meta = keys.meta(strand.name)
        reads = ("HGET", meta, MetaField.BELL), ("HGET", meta, strand.label)
        stamp, seen, made = wire.call(*reads, ensure_command(strand, known=True))
        bell = stamp if isinstance(stamp, bytes) else b""
        if _is_stale(made):  # it has groups, or it is new
            if seen is None and not wire.is_cluster:  # a cluster keeps its facts elsewhere, also when emptied
                _require_region(wire)
            [made] = wire.call(ensure_command(strand, bell, known=seen is not None))
        if isinstance(made, Exception) and not _is_stale(made):
            raise SinkError(f"the server refused rows for {strand.name!r}: {made}")
        if not _is_stale(made):
            return [ensure_command(strand, bell, known=True)]


def _await_offsets(wire: Wire) -> None:
    """Before a log is written: its server may have lost offsets that it has given (lookup.held_offsets)."""
    until = time.monotonic() + HELD_S
    while not wire.is_cluster and held_offsets(*wire.call(*ABOUT_OFFSETS)) and time.monotonic() < until:
        time.sleep(0.05)


def _require_region(wire: Wire) -> None:
    """Before a strand is created that the server has not had: it may have been emptied."""
    [region] = wire.call(("HGET", keys.CONFIG, ConfigField.REGION))
    if region is None:
        raise SinkError(str(NotARegionError()))


def _is_stale(reply: Any) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("BSSTALE")


class Publisher:
    """Appends the chunks of one stream, in order, each in a MULTI with the mark that counts it."""

    def __init__(self, book: Book, stream: bytes, batch: int, stages: list[Stage]) -> None:
        self.book, self.stream, self.batch = book, stream, batch
        self.mark_key = keys.sink(book.sink, stream)
        self.places = [(stage.key, at) for stage in stages for at in range(stage.chunks)]
        self.strand = target(book.server, stream)

    def run(self) -> None:
        self.book.server.in_slot(self.strand.key, self._publish)

    def _publish(self, wire: Wire) -> None:
        others = f"another query keeps publishing to {self.mark_key!r}. Run one query per sink."
        retries, published = Retries(others, error=SinkError), 0
        while published < len(self.places):
            retries.count()
            at = self._step(wire)
            if at != published:
                retries.reset()
            published = at

    def _step(self, wire: Wire) -> int:
        """Publish the next chunk. Returns how many are published then, by this or another driver."""
        seen = watch(wire, self.strand, self.mark_key)
        batch, published, _ = marked(seen.mark)
        if batch > self.batch:
            published = len(self.places)
        elif batch < self.batch:
            published = 0
        if published >= len(self.places):
            wire.call(("UNWATCH",))
            return len(self.places)
        if seen.refusal:
            wire.call(("UNWATCH",))
            known, self.strand = self.strand, target(self.book.server, self.stream)
            if self.strand == known:
                raise SinkError(seen.refusal)
            return published  # it was adopted, or made native again
        key, at = self.places[published]
        [chunk] = wire.call(("LINDEX", key, at))
        if chunk is None:
            raise SinkError(f"the stage {key!r} is gone in the middle of publishing batch {self.batch}")
        done = self._append(wire, bytes(chunk), published + 1, seen.besides)
        return published + 1 if done else published

    def _append(self, wire: Wire, chunk: bytes, published: int, besides: Iterable[Command]) -> bool:
        mark = b"%d:%d:%d" % (self.batch, published, len(self.places))
        marks: list[Command] = [*besides, ("SET", self.mark_key, mark)]
        if not self.strand.is_plain and published == len(self.places) and not self.book.forgets:
            # The registry is replicated (lua/merge.lua), so other regions get the mark.
            marks.append(("HSET", keys.meta(self.strand.name), MetaField.SINK + self.book.sink, mark))
        return append(wire, self.strand, self._readdressed(chunk), marks)

    def _readdressed(self, chunk: bytes) -> bytes:
        """The staged rows, with the key of the strand that this region writes to now."""
        *_, length, rest = chunk.split(b"\r\n", 4)
        old, new = rest[: int(length[1:])], self.strand.key
        if old == new:
            return chunk
        if strand_of(old).is_of_log != self.strand.is_of_log:
            raise SinkError(f"{self.strand.name!r} was a log or is one now. Nothing was appended.")
        if self.strand.is_of_log:
            return b"".join(_replaced(chunk, log_row_start(old), log_row_start(new), LOG_ROW_WORDS))
        return b"".join(_replaced(chunk, row_start(old), row_start(new), ROW_WORDS))


def _replaced(chunk: bytes, old: bytes, new: bytes, head: int) -> Iterator[bytes]:
    """Replace the start of each command. Parses lengths, because a value may contain the same bytes."""
    at = 0
    while at < len(chunk):
        stop = chunk.index(b"\r\n", at) + 2
        words = int(chunk[at + 1 : stop - 2])
        yield chunk[at:stop] + new
        at = start = stop + len(old)
        for _ in range(words - head):
            stop = chunk.index(b"\r\n", at) + 2
            at = stop + int(chunk[at + 1 : stop - 2]) + 2
        yield chunk[start:at]

"""The sink: tasks stage rows, the driver publishes them. ledger.py explains why that is exactly once."""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from braidstream.clusters.bulk import RedisError, Server
from braidstream.engine.address import shown
from braidstream.errors import OptionError, ReplyError, SinkError, UnreachableError
from braidstream.model.strand import Strand
from braidstream.plan.plan import Batch, Plan
from braidstream.spark.compat import DataSourceStreamArrowWriter
from braidstream.spark.options import SinkOptions, sink_options
from braidstream.spark.sink import encode
from braidstream.spark.sink.commit import Committer
from braidstream.spark.sink.encode import Layout
from braidstream.spark.sink.ledger import Book, Stage, append
from braidstream.spark.sink.target import target
from braidstream.spark.source.survey import open_server, region_of

CHUNK_BYTES = 1 << 20
# Local properties of a task: the query's ID, the same over restarts; and its run, new with each start.
_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"


@dataclass
class Staged(WriterCommitMessage):
    """A task's message to the driver: what it has staged, for which sink, on which server."""

    sink: str
    run: str
    url: int
    stages: tuple[Stage, ...]


class _Writer:
    """What batch and stream writers share."""

    def __init__(self, options: SinkOptions, layout: Layout, sink: str | None) -> None:
        self.options, self.layout, self.sink = options, layout, sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Write the rows of one task to a stage, invisible to readers."""
        url, server = _first_that_answers(self.options)
        task = _Task(server, self.options, self.layout)
        try:
            for batch in iterator:
                task.take(batch)
            return Staged(self.sink or _query(), _property(_RUN), url, task.finish())
        except BaseException:
            task.drop()
            raise
        finally:
            server.close()

    def publish(
        self,
        messages: list[WriterCommitMessage | None],
        batch: int,
        *,
        in_sequence: bool,
        forgets: bool = False,
    ) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged or not self.options.exactly_once:
            return
        urls = {message.url for message in staged}
        if len(urls) > 1:
            raise SinkError("the tasks of one batch reached different servers. Start the query again.")
        [url] = urls
        server = open_server(self.options.servers, url)
        others = [
            open_server(self.options.servers, at) for at in range(len(self.options.servers.urls)) if at != url
        ]
        try:
            book = Book(server, staged[0].sink, forgets=forgets)
            committer = Committer(book, others, run=staged[0].run, options=self.options)
            stages = tuple(stage for message in staged for stage in message.stages)
            committer.commit(batch, stages, in_sequence=in_sequence)
        finally:
            for each in (server, *others):
                each.close()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:
        for message in messages:
            if isinstance(message, Staged):
                server = open_server(self.options.servers, message.url)
                Book(server, message.sink).abandon(message.stages)
                server.close()


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.publish(messages, batchId, in_sequence=True)


class BatchWriter(_Writer, DataSourceArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        # Without txnAppId this write cannot be repeated, so its ledger is deleted at the end.
        version = self.options.version
        self.publish(messages, version or 0, in_sequence=False, forgets=version is None)


def stream_writer(texts: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    options = sink_options(texts)
    if overwrite:
        why = "complete is not supported: streams are append-only. Write in foreachBatch, with txnAppId"
        raise OptionError("outputMode", why)
    if options.version is not None:
        raise OptionError("txnVersion", "is for batch writes: a streaming query has its batch numbers")
    return StreamWriter(options, Layout.of(schema, options), options.transaction)


def batch_writer(texts: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    options = sink_options(texts)
    if overwrite:
        raise OptionError("mode", "overwrite is not supported: streams are append-only. Use mode append.")
    if (options.transaction is None) != (options.version is None):
        raise OptionError("txnAppId", "give both txnAppId and txnVersion, or neither")
    sink = options.transaction or "job-" + secrets.token_hex(16)
    return BatchWriter(options, Layout.of(schema, options), sink)


def _query() -> str:
    query = _property(_QUERY)
    if not query:
        raise OptionError("txnAppId", "this Spark does not pass the query ID to tasks: name the sink")
    return query


def _property(name: str) -> str:
    context = TaskContext.get()
    return (context.getLocalProperty(name) or "") if context is not None else ""


def _first_that_answers(options: SinkOptions) -> tuple[int, Server]:
    trouble = list[str]()
    for at, url in enumerate(options.servers.urls):
        server = open_server(options.servers, at)
        try:
            region_of(server)
            return at, server
        except (RedisError, OSError) as error:
            server.close()
            trouble.append(f"{shown(url)}: {error}")
    raise UnreachableError.of(trouble)


def _staged(key: bytes, chunk: bytes, ttl_s: int) -> Plan[None]:
    yield Batch([("RPUSH", key, chunk), ("EXPIRE", key, ttl_s)])


class _Task:
    """The stages of one task attempt. A random token keeps the keys of attempts apart."""

    def __init__(self, server: Server, options: SinkOptions, layout: Layout) -> None:
        self.server, self.options, self.layout = server, options, layout
        self.token = secrets.token_hex(16)
        self.stages = dict[bytes, Stage]()
        self.strands = dict[bytes, Strand]()

    def take(self, batch: pa.RecordBatch) -> None:
        for stream, rows in encode.by_stream(self.layout, batch):
            if stream not in self.strands:
                self.strands[stream] = target(self.server, stream, is_log=self.options.is_log)
            commands = encode.commands(self.layout, self.strands[stream].key, rows)
            for chunk, count in encode.chunks(commands, self.options.step_rows, CHUNK_BYTES):
                self._put(stream, chunk, count)

    def _put(self, stream: bytes, chunk: bytes, rows: int) -> None:
        known = self.stages.get(stream, Stage(stream, self.token, 0, 0))
        if not self.options.exactly_once:
            self.server.in_slot(known.key, lambda wire: append(wire, self.strands[stream], chunk))
            return
        try:
            self.server.run(_staged(known.key, chunk, self.options.stage_ttl_s), known.key)
        except ReplyError as error:
            raise SinkError(f"the server refused rows for {stream!r}: {error.text}") from None
        self.stages[stream] = Stage(stream, self.token, known.chunks + 1, known.rows + rows)

    def finish(self) -> tuple[Stage, ...]:
        return tuple(self.stages.values())

    def drop(self) -> None:
        """Delete the stages, best effort: what remains expires."""
        with suppress(RedisError, OSError):
            Book(self.server, "").discard(self.stages.values())

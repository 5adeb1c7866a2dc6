"""Every option of source and sink: name, default and meaning. docs/reference/spark-options.md shows it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from braidstream.spark import option_values as values

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option. Its default is text, like what is given; `kafka`: what Spark's Kafka connector calls it."""

    name: str
    where: Literal["source", "sink", "both"]
    parse: Callable[[str, str], T]
    default: str
    what: str
    kafka: str = ""

    @property
    def fallback(self) -> T:
        return self.parse(self.name, self.default)


URL = Option(
    "url", "both", values.text, "",
    "The server: `redis://`, `rediss://` (TLS), `unix://`, `redis+sentinel://`. Needed, except with `lake`.",
    "kafka.bootstrap.servers",
)  # fmt: skip
FALLBACK_URLS = Option(
    "fallbackUrls", "both", values.urls, "",
    "Other regions, by comma, to go on in when the first does not answer.", "kafka.bootstrap.servers",
)  # fmt: skip
REPLICATION_WAIT = Option(
    "replicationWait", "both", values.seconds, "30s",
    "How long to wait for a region that is behind, or a server that must be asked, before failing.",
)  # fmt: skip

STREAMS = Option(
    "streams", "source", values.stream_names, "",
    "The streams, by comma; a JSON list if a name has a comma. Either this or `streamPattern`.", "subscribe",
)  # fmt: skip
STREAM_PATTERN = Option(
    "streamPattern", "source", values.stream_name, "",
    "All streams whose name matches this glob, as in KEYS, also those that come later. Walks the keyspace.",
    "subscribePattern",
)  # fmt: skip
REGIONS = Option(
    "regions", "source", values.numbers, "",
    "Only entries of these regions, by number: `1,3`.", "assign",
)  # fmt: skip
STARTING_OFFSETS = Option(
    "startingOffsets", "source", values.offsets, "earliest",
    "`earliest`, `latest`, or JSON: an ID for a stream, or for each of its strands. What it does not name "
    "begins at its start. A streaming query uses it once; then its checkpoint counts.",
    "startingOffsets",
)  # fmt: skip
STARTING_TIMESTAMP = Option(
    "startingTimestamp", "source", values.time_ms, "",
    "Begin at this time: milliseconds since 1970, or ISO (UTC unless it says otherwise).",
    "startingTimestamp",
)  # fmt: skip
ENDING_OFFSETS = Option(
    "endingOffsets", "source", values.offsets, "latest",
    "Where a batch read ends, inclusive: `latest` (when it is planned) or JSON.", "endingOffsets",
)  # fmt: skip
ENDING_TIMESTAMP = Option(
    "endingTimestamp", "source", values.time_ms, "",
    "A batch read ends before this time.", "endingTimestamp",
)  # fmt: skip
MAX_ENTRIES = Option(
    "maxEntriesPerTrigger", "source", values.positive, "",
    "At most so many entries a micro-batch, shared over the strands by their backlog.",
    "maxOffsetsPerTrigger",
)  # fmt: skip
MAX_BYTES = Option(
    "maxBytesPerTrigger", "source", values.positive, "",
    "At most about so many bytes of fields and values a micro-batch; one entry passes however large it is.",
)  # fmt: skip
MIN_ENTRIES = Option(
    "minEntriesPerTrigger", "source", values.positive, "",
    "Wait for so many entries before a micro-batch, but no longer than `maxTriggerDelay`.",
    "minOffsetsPerTrigger",
)  # fmt: skip
MAX_DELAY = Option(
    "maxTriggerDelay", "source", values.seconds, "15m",
    "How long `minEntriesPerTrigger` may keep entries waiting.", "maxTriggerDelay",
)  # fmt: skip
MIN_PARTITIONS = Option(
    "minPartitions", "source", values.positive, "1",
    "At least about so many partitions: strands are split by ID range into about equal parts.",
    "minPartitions",
)  # fmt: skip
FAIL_ON_DATA_LOSS = Option(
    "failOnDataLoss", "source", values.flag, "true",
    "Fail when unread entries are gone, and say how; `false`: warn and go on without them.", "failOnDataLoss",
)  # fmt: skip
GROUP = Option(
    "group", "source", values.stream_name, "",
    "Show the query's position as this consumer group's after each batch, for tools that watch lag.",
    "kafka.group.id",
)  # fmt: skip
MODE = Option(
    "mode", "source", values.mode, "PERMISSIVE",
    "With a schema of your own, an entry that does not fit: PERMISSIVE (nulls, and the entry in the column "
    "for corrupt records), DROPMALFORMED, FAILFAST.",
)  # fmt: skip
CORRUPT_COLUMN = Option(
    "columnNameOfCorruptRecord", "source", values.text, "_corrupt_record",
    "The column, if the schema has it, that gets an entry which does not fit, as JSON.",
)  # fmt: skip
PUSH_FILTERS = Option(
    "pushFilters", "source", values.flag, "false",
    "A batch read takes filters on timestamp, id, stream and region; needs "
    "`spark.sql.python.filterPushdown.enabled`.",
)  # fmt: skip
LAKE = Option(
    "lake", "source", values.text, "",
    "A batch read: history from the lake in this folder, the rest live. Without `url` the lake alone.",
)  # fmt: skip

STREAM = Option(
    "stream", "sink", values.stream_name, "",
    "The stream to append to. Without it a column names the stream of each row.", "topic",
)  # fmt: skip
STREAM_COLUMN = Option(
    "streamColumn", "sink", values.text, "stream",
    "The column that names the stream, where `stream` does not.", "column topic",
)  # fmt: skip
FIELDS_COLUMN = Option(
    "fieldsColumn", "sink", values.text, "fields",
    "A map column of this name is the entry's fields; without one every column is a field.",
    "columns key, value, headers",
)  # fmt: skip
IDEMPOTENCE = Option(
    "idempotence", "sink", values.is_exactly_once, "exactly-once",
    "`exactly-once`, or `none`: straight XADDs, a retried task doubles its rows.", "at least once",
)  # fmt: skip
TXN_APP_ID = Option(
    "txnAppId", "sink", values.identity, "",
    "The name of a sink; a streaming query has its own. For batch writes and `foreachBatch`, with "
    "`txnVersion`: written once.",
)  # fmt: skip
TXN_VERSION = Option(
    "txnVersion", "sink", values.count, "",
    "The number of a batch write; one that is not above the last that was done is not done again.",
)  # fmt: skip
ROWS_PER_STEP = Option(
    "rowsPerStep", "sink", values.positive, "2000",
    "Rows that become visible in one step, at most, and block the engine for so long. A step is of one "
    "partition and one stream, and about 1 MB.",
)  # fmt: skip
STAGING_TTL = Option(
    "stagingTtl", "sink", values.whole_seconds, "1d",
    "After which rows of an abandoned attempt expire; 1s or more, and longer than a batch takes.",
)  # fmt: skip
TAKE_OVER = Option(
    "takeOver", "sink", values.flag, "false",
    "For one run: go on although the server that held the sink's ledger is lost. A batch that it was "
    "publishing may be there twice.",
)  # fmt: skip

OPTIONS: tuple[Option[Any], ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Option)
)

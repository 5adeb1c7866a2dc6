"""Every option of source and sink: name, default and meaning. docs/reference/spark-options.md shows it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from braidstream.spark import option_values as values

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One option. The default is text, as users write it. kafka: the name in Spark's Kafka connector."""

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
    "Other regions, comma-separated, to use if the first does not answer.", "kafka.bootstrap.servers",
)  # fmt: skip
REPLICATION_WAIT = Option(
    "replicationWait", "both", values.seconds, "30s",
    "How long to wait for a lagging region, or for a server whose state is needed, before failing.",
)  # fmt: skip

STREAMS = Option(
    "streams", "source", values.stream_names, "",
    "The streams, comma-separated; or a JSON list. Alternative: `streamPattern`.", "subscribe",
)  # fmt: skip
LOGS = Option(
    "logs", "source", values.stream_names, "",
    "Logs instead of streams, comma-separated; or a JSON list. The columns are `stream`, `offset`, `tag`, "
    "`entry`.",
    "subscribe",
)  # fmt: skip
STREAM_PATTERN = Option(
    "streamPattern", "source", values.stream_name, "",
    "All streams whose names match this glob, as in KEYS, also new ones. Scans the keyspace.",
    "subscribePattern",
)  # fmt: skip
REGIONS = Option(
    "regions", "source", values.numbers, "",
    "Only entries of these regions, by number: `1,3`.", "assign",
)  # fmt: skip
STARTING_OFFSETS = Option(
    "startingOffsets", "source", values.offsets, "earliest",
    "`earliest`, `latest`, or JSON: an ID for a stream, or for each of its strands; the first offset of a "
    "log, as a number. Others start at their "
    "beginning. A streaming query uses this option once; then it uses its checkpoint.",
    "startingOffsets",
)  # fmt: skip
STARTING_TIMESTAMP = Option(
    "startingTimestamp", "source", values.times, "",
    "Start time: milliseconds since 1970, or ISO format (default time zone: UTC); or JSON with a time for "
    "each stream, others start at their beginning.",
    "startingTimestamp",
)  # fmt: skip
ENDING_OFFSETS = Option(
    "endingOffsets", "source", values.offsets, "latest",
    "Where a batch read ends, inclusive: `latest` (when it is planned) or JSON.", "endingOffsets",
)  # fmt: skip
ENDING_TIMESTAMP = Option(
    "endingTimestamp", "source", values.times, "",
    "End time of a batch read (exclusive), or JSON with a time for each stream.", "endingTimestamp",
)  # fmt: skip
MAX_ENTRIES = Option(
    "maxEntriesPerTrigger", "source", values.positive, "",
    "Maximum number of entries in a micro-batch, divided among the strands by their backlog.",
    "maxOffsetsPerTrigger",
)  # fmt: skip
MAX_BYTES = Option(
    "maxBytesPerTrigger", "source", values.positive, "",
    "Approximate maximum size of a micro-batch: bytes of fields and values. A single entry may be larger.",
)  # fmt: skip
MIN_ENTRIES = Option(
    "minEntriesPerTrigger", "source", values.positive, "",
    "Minimum number of entries in a micro-batch. The query waits for them at most `maxTriggerDelay`.",
    "minOffsetsPerTrigger",
)  # fmt: skip
MAX_DELAY = Option(
    "maxTriggerDelay", "source", values.seconds, "15m",
    "Maximum time that entries wait because of `minEntriesPerTrigger`.", "maxTriggerDelay",
)  # fmt: skip
MIN_PARTITIONS = Option(
    "minPartitions", "source", values.positive, "",
    "Approximate minimum number of partitions. Fewer strands are split by ID range; of more strands, small "
    "ones share a partition. Default: nothing is split, and small strands share as many partitions as the "
    "driver's machine has cores.",
    "minPartitions",
)  # fmt: skip
MAX_PER_PARTITION = Option(
    "maxEntriesPerPartition", "source", values.positive, "",
    "Approximate maximum number of entries in a partition. Larger strands are split by ID range. Default: "
    "500,000 for strands that share a partition.",
    "maxRecordsPerPartition",
)  # fmt: skip
FAIL_ON_DATA_LOSS = Option(
    "failOnDataLoss", "source", values.flag, "true",
    "Fail if unread entries were removed, and say how. `false`: warn and continue.", "failOnDataLoss",
)  # fmt: skip
FAIL_ON_MISSING = Option(
    "failOnMissing", "source", values.flag, "true",
    "Fail if a stream of `streams` does not exist when the query starts. `false`: read it once it exists.",
)  # fmt: skip
VALUE_TYPE = Option(
    "valueType", "source", values.value_type, "binary",
    "Type of the values in `fields`: `binary`, or `string` (bytes that are not UTF-8 appear as `\\xNN`).",
)  # fmt: skip
GROUP = Option(
    "group", "source", values.stream_name, "",
    "After each batch, store the query's position in this consumer group, for tools that monitor lag.",
    "kafka.group.id",
)  # fmt: skip
MODE = Option(
    "mode", "source", values.mode, "PERMISSIVE",
    "What happens to an entry that does not match your schema: PERMISSIVE (nulls, and the entry in the "
    "column for corrupt records), DROPMALFORMED, FAILFAST.",
)  # fmt: skip
CORRUPT_COLUMN = Option(
    "columnNameOfCorruptRecord", "source", values.text, "_corrupt_record",
    "Column for entries that do not match the schema, as JSON, if the schema has this column.",
)  # fmt: skip
PUSH_FILTERS = Option(
    "pushFilters", "source", values.flag, "false",
    "Apply filters on timestamp, id, stream and region while reading (batch reads). Needs "
    "`spark.sql.python.filterPushdown.enabled`.",
)  # fmt: skip
LAKE = Option(
    "lake", "source", values.text, "",
    "A lake (folder or s3://...): history from it, the rest live. A batch read without `url`: it alone.",
)  # fmt: skip

STREAM = Option(
    "stream", "sink", values.stream_name, "",
    "The stream to append to. Without it, a column names the stream of each row.", "topic",
)  # fmt: skip
LOG = Option(
    "log", "sink", values.stream_name, "",
    "The log to append to, instead of a stream. `url` must be its home. Rows have the columns `tag` and "
    "`entry`.", "topic",
)  # fmt: skip
STREAM_COLUMN = Option(
    "streamColumn", "sink", values.text, "stream",
    "The column that names the stream, if `stream` is not set.", "column topic",
)  # fmt: skip
FIELDS_COLUMN = Option(
    "fieldsColumn", "sink", values.text, "fields",
    "Name of a map column with the entry's fields. Without such a column, every column is a field.",
    "columns key, value, headers",
)  # fmt: skip
IDEMPOTENCE = Option(
    "idempotence", "sink", values.is_exactly_once, "exactly-once",
    "`exactly-once`, or `none`: plain XADD; a retried task writes its rows twice.", "at least once",
)  # fmt: skip
TXN_APP_ID = Option(
    "txnAppId", "sink", values.identity, "",
    "Name of the sink, for batch writes and `foreachBatch`. With `txnVersion`, a batch is written once. "
    "A streaming query has its own name.",
)  # fmt: skip
TXN_VERSION = Option(
    "txnVersion", "sink", values.count, "",
    "Number of a batch write. A number that is not above that of the last completed write is skipped.",
)  # fmt: skip
ROWS_PER_STEP = Option(
    "rowsPerStep", "sink", values.positive, "2000",
    "Maximum number of rows that become visible in one step, which blocks the engine. A step contains rows "
    "of one partition for one stream, about 1 MB.",
)  # fmt: skip
STAGING_TTL = Option(
    "stagingTtl", "sink", values.whole_seconds, "1d",
    "When rows of an abandoned attempt expire: at least 1s, and longer than a batch takes.",
)  # fmt: skip
TAKE_OVER = Option(
    "takeOver", "sink", values.flag, "false",
    "For one run: continue although the server with the sink's state is lost. A batch that it was "
    "publishing may be duplicated.",
)  # fmt: skip

OPTIONS: tuple[Option[Any], ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Option)
)

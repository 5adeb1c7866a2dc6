"""The options of source and sink: parsed once, refused by name.

Spark passes a case-insensitive dict of strings. An unknown option is an error, because a misspelt limit or
offset would otherwise be ignored silently.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, Generic, Literal, TypeVar

from braidstream.errors import OptionError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text, place_of_text
from braidstream.model.ids import Id
from braidstream.model.registry import LAST_OFFSET

# ----------------------------------------------------------------------------------------------------
# What the text of an option means: parsed, or refused by the option's name.

ValueType = Literal["binary", "string"]
VALUE_TYPES: Final[tuple[ValueType, ...]] = ("binary", "string")
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
MODES: Final[tuple[Mode, ...]] = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin or end: everything, nothing, a time, or a position for each stream.

    at: stream -> "earliest", "latest", one user ID, the last offset of a log before the position, or
    {place: native ID, "earliest" or "latest"}. `rest` is for the others. option: the one that says so.
    times: a time for a stream.
    """

    rest: str = "earliest"
    at: Mapping[bytes, Any] = field(default_factory=dict)
    time_ms: int | None = None
    option: str = "startingOffsets"
    times: Mapping[bytes, int] = field(default_factory=dict)


def offsets(name: str, value: str) -> Start:
    if value in ("earliest", "latest"):
        return Start(value, option=name)
    try:
        given = json.loads(value)
    except ValueError as error:
        raise OptionError(name, f"neither earliest nor latest nor JSON ({error})") from None
    if not isinstance(given, dict):
        raise OptionError(name, 'JSON must be {"stream": position, ...}')
    # What a progress report or a checkpoint shows may be pasted as it is.
    given = given.get("frontier", given) if set(given) <= {"frontier", "counted", "began"} else given
    rest = "earliest" if name.startswith("start") else "latest"
    return Start(rest, dict(_positions(name, given)), option=name)


def _positions(name: str, given: dict[str, Any]) -> Iterator[tuple[bytes, Any]]:
    for stream, position in given.items():
        key = name_of_text(stream)
        if isinstance(position, str):
            yield key, _place(name, stream, position)
        elif isinstance(position, int) and not isinstance(position, bool):
            yield key, _number(name, stream, position)
        elif isinstance(position, dict):
            for place in position:
                if place_of_text(key, place) is None:
                    raise OptionError(
                        name, f"{stream}: {place} is not a strand; one is like s1, c1.2, t0.1 or p"
                    )
            yield key, {place: _place(name, stream, text) for place, text in position.items()}
        else:
            raise OptionError(
                name,
                f"{stream}: a position is an ID, earliest, latest, an ID for each strand, or the offset of "
                "a log",
            )


def _number(name: str, stream: str, offset: int) -> int:
    """A log is read from this offset on, or up to it: the last offset before."""
    if not 0 <= offset <= LAST_OFFSET:
        raise OptionError(name, f"{stream}: {offset} is not an offset; they are 1, 2, 3, ...")
    return max(0, offset - 1) if name.startswith("start") else offset


def _place(name: str, stream: str, text: Any) -> Id | str:
    return str(text) if text in ("earliest", "latest") else _id(name, stream, text)


def _id(name: str, stream: str, text: Any) -> Id:
    found = ids.parse(str(text).encode())
    if found is None:
        raise OptionError(name, f"{stream}: {text!r} is no ID; one is like 1589929244828-0")
    return found


def time_ms(name: str, value: str) -> int:
    """Milliseconds since 1970, from their number or an ISO time (UTC unless it says otherwise)."""
    if value.strip().isdecimal():
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise OptionError(name, f"{value!r} is neither milliseconds since 1970 nor an ISO time") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def times(name: str, value: str) -> Start:
    """A time, or a time for each stream."""
    rest = "earliest" if name.startswith("start") else "latest"
    if not value.lstrip().startswith("{"):
        return Start(rest, time_ms=time_ms(name, value), option=name)
    try:
        given = json.loads(value)
    except ValueError as error:
        raise OptionError(name, f"neither a time nor JSON ({error})") from None
    found = {name_of_text(stream): time_ms(name, str(moment)) for stream, moment in given.items()}
    return Start(rest, times=found, option=name)


def text(name: str, value: str) -> str:
    return value.strip()


def texts(name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def urls(name: str, value: str) -> tuple[str, ...]:
    """By comma. The hosts of one sentinel URL are separated by commas too: no scheme follows those."""
    return tuple(part.strip() for part in re.split(r",(?=\s*[a-z+]+://)", value) if part.strip())


def stream_name(name: str, value: str) -> bytes:
    return name_of_text(value)


def stream_names(name: str, value: str) -> tuple[bytes, ...]:
    """`a,b,c`; a JSON list where a name has a comma."""
    if value.lstrip().startswith("["):
        try:
            return tuple(name_of_text(str(each)) for each in json.loads(value))
        except ValueError as error:
            raise OptionError(name, f"not a JSON list of names ({error})") from None
    return tuple(dict.fromkeys(name_of_text(each) for each in texts(name, value)))


def count(name: str, value: str) -> int:
    if not value.strip().isdecimal():
        raise OptionError(name, f"{value!r} is not a whole number")
    return int(value)


def positive(name: str, value: str) -> int:
    number = count(name, value)
    if number < 1:
        raise OptionError(name, "must be 1 or more")
    return number


def numbers(name: str, value: str) -> frozenset[int]:
    return frozenset(count(name, each) for each in texts(name, value))


def flag(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(name, f"{value!r} is neither true nor false")
    return value.strip().lower() == "true"


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def duration_s(text: str) -> float:
    """500ms, 30s, 15m, 1h, 7d as seconds. Else ValueError."""
    given = text.strip().lower()
    number = given.rstrip("mshd")
    unit = given[len(number) :] or "s"
    if unit not in _UNITS:
        raise ValueError(text)
    return float(number) * _UNITS[unit]


def seconds(name: str, value: str) -> float:
    try:
        return duration_s(value)
    except ValueError:
        raise OptionError(name, f"{value!r} is not a duration; one is like 500ms, 30s, 15m, 1d") from None


def whole_seconds(name: str, value: str) -> int:
    """What EXPIRE takes."""
    found = seconds(name, value)
    if not 1 <= found < 10**9:
        raise OptionError(name, f"{value!r} is below 1s, or above 30 years")
    return int(found)


def mode(name: str, value: str) -> Mode:
    for known in MODES:
        if value.strip().upper() == known:
            return known
    raise OptionError(name, f"{value!r} is none of {', '.join(MODES)}")


def option_value_type(name: str, value: str) -> ValueType:
    for each in VALUE_TYPES:
        if value.lower() == each:
            return each
    raise OptionError(name, f"{value!r} is neither binary nor string")


def is_exactly_once(name: str, value: str) -> bool:
    if value not in ("exactly-once", "none"):
        raise OptionError(name, f"{value!r} is neither exactly-once nor none")
    return value == "exactly-once"


def identity(name: str, value: str) -> str:
    if not value or len(value) > 200 or any(sign in value for sign in "{} \r\n"):
        raise OptionError(name, "must be 1 to 200 characters without spaces and braces")
    return value


# ----------------------------------------------------------------------------------------------------
# Every option of source and sink: name, default and meaning. docs/reference/spark-options.md shows it.

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
    "url", "both", text, "",
    "The server: `redis://`, `rediss://` (TLS), `unix://`, `redis+sentinel://`. Needed, except with `lake`.",
    "kafka.bootstrap.servers",
)  # fmt: skip
FALLBACK_URLS = Option(
    "fallbackUrls", "both", urls, "",
    "Other regions, comma-separated, to use if the first does not answer.", "kafka.bootstrap.servers",
)  # fmt: skip
REPLICATION_WAIT = Option(
    "replicationWait", "both", seconds, "30s",
    "How long to wait for a lagging region, or for a server whose state is needed, before failing.",
)  # fmt: skip

STREAMS = Option(
    "streams", "source", stream_names, "",
    "The streams, comma-separated; or a JSON list. Alternative: `streamPattern`.", "subscribe",
)  # fmt: skip
LOGS = Option(
    "logs", "source", stream_names, "",
    "Logs instead of streams, comma-separated; or a JSON list. The columns are `stream`, `offset`, `tag`, "
    "`entry`.",
    "subscribe",
)  # fmt: skip
STREAM_PATTERN = Option(
    "streamPattern", "source", stream_name, "",
    "All streams whose names match this glob, as in KEYS, also new ones. Scans the keyspace.",
    "subscribePattern",
)  # fmt: skip
REGIONS = Option(
    "regions", "source", numbers, "",
    "Only entries of these regions, by number: `1,3`.", "assign",
)  # fmt: skip
STARTING_OFFSETS = Option(
    "startingOffsets", "source", offsets, "earliest",
    "`earliest`, `latest`, or JSON: these or an ID for a stream, or for each of its strands; the first "
    "offset of a log, as a number. Others start at their "
    "beginning. A streaming query uses this option once; then it uses its checkpoint.",
    "startingOffsets",
)  # fmt: skip
STARTING_TIMESTAMP = Option(
    "startingTimestamp", "source", times, "",
    "Start time: milliseconds since 1970, or ISO format (default time zone: UTC); or JSON with a time for "
    "each stream, others start at their beginning.",
    "startingTimestamp",
)  # fmt: skip
ENDING_OFFSETS = Option(
    "endingOffsets", "source", offsets, "latest",
    "Where a batch read ends, inclusive: `latest` (when it is planned) or JSON.", "endingOffsets",
)  # fmt: skip
ENDING_TIMESTAMP = Option(
    "endingTimestamp", "source", times, "",
    "End time of a batch read (exclusive), or JSON with a time for each stream.", "endingTimestamp",
)  # fmt: skip
MAX_ENTRIES = Option(
    "maxEntriesPerTrigger", "source", positive, "",
    "Maximum number of entries in a micro-batch, divided among the strands by their backlog.",
    "maxOffsetsPerTrigger",
)  # fmt: skip
MAX_BYTES = Option(
    "maxBytesPerTrigger", "source", positive, "",
    "Approximate maximum size of a micro-batch: bytes of fields and values. A single entry may be larger.",
)  # fmt: skip
MIN_ENTRIES = Option(
    "minEntriesPerTrigger", "source", positive, "",
    "Minimum number of entries in a micro-batch. The query waits for them at most `maxTriggerDelay`.",
    "minOffsetsPerTrigger",
)  # fmt: skip
MAX_DELAY = Option(
    "maxTriggerDelay", "source", seconds, "15m",
    "Maximum time that entries wait because of `minEntriesPerTrigger`.", "maxTriggerDelay",
)  # fmt: skip
MIN_PARTITIONS = Option(
    "minPartitions", "source", positive, "",
    "Approximate minimum number of partitions. Fewer strands are split by ID range; of more strands, small "
    "ones share a partition. Default: nothing is split, and small strands share as many partitions as the "
    "driver's machine has cores.",
    "minPartitions",
)  # fmt: skip
MAX_PER_PARTITION = Option(
    "maxEntriesPerPartition", "source", positive, "",
    "Approximate maximum number of entries in a partition. Larger strands are split by ID range. Default: "
    "500,000 for strands that share a partition.",
    "maxRecordsPerPartition",
)  # fmt: skip
FAIL_ON_DATA_LOSS = Option(
    "failOnDataLoss", "source", flag, "true",
    "Fail if unread entries were removed, and say how. `false`: warn and continue.", "failOnDataLoss",
)  # fmt: skip
FAIL_ON_MISSING = Option(
    "failOnMissing", "source", flag, "true",
    "Fail if a stream of `streams` does not exist when the query starts. `false`: read it once it exists.",
)  # fmt: skip
VALUE_TYPE = Option(
    "valueType", "source", option_value_type, "binary",
    "Type of the values in `fields`: `binary`, or `string` (bytes that are not UTF-8 appear as `\\xNN`).",
)  # fmt: skip
GROUP = Option(
    "group", "source", stream_name, "",
    "After each batch, store the query's position in this consumer group, for tools that monitor lag.",
    "kafka.group.id",
)  # fmt: skip
MODE = Option(
    "mode", "source", mode, "PERMISSIVE",
    "What happens to an entry that does not match your schema: PERMISSIVE (nulls, and the entry in the "
    "column for corrupt records), DROPMALFORMED, FAILFAST.",
)  # fmt: skip
CORRUPT_COLUMN = Option(
    "columnNameOfCorruptRecord", "source", text, "_corrupt_record",
    "Column for entries that do not match the schema, as JSON, if the schema has this column.",
)  # fmt: skip
PUSH_FILTERS = Option(
    "pushFilters", "source", flag, "false",
    "Apply filters on timestamp, id, stream and region while reading (batch reads). Needs "
    "`spark.sql.python.filterPushdown.enabled`.",
)  # fmt: skip
LAKE = Option(
    "lake", "source", text, "",
    "A lake (folder or s3://...): history from it, the rest live. A batch read without `url`: it alone.",
)  # fmt: skip

STREAM = Option(
    "stream", "sink", stream_name, "",
    "The stream to append to. Without it, a column names the stream of each row.", "topic",
)  # fmt: skip
LOG = Option(
    "log", "sink", stream_name, "",
    "The log to append to, instead of a stream. `url` must be its home. Rows have the columns `tag` and "
    "`entry`.", "topic",
)  # fmt: skip
STREAM_COLUMN = Option(
    "streamColumn", "sink", text, "stream",
    "The column that names the stream, if `stream` is not set.", "column topic",
)  # fmt: skip
FIELDS_COLUMN = Option(
    "fieldsColumn", "sink", text, "fields",
    "Name of a map column with the entry's fields. Without such a column, every column is a field.",
    "columns key, value, headers",
)  # fmt: skip
IDEMPOTENCE = Option(
    "idempotence", "sink", is_exactly_once, "exactly-once",
    "`exactly-once`, or `none`: plain XADD; a retried task writes its rows twice.", "at least once",
)  # fmt: skip
TXN_APP_ID = Option(
    "txnAppId", "sink", identity, "",
    "Name of the sink, for batch writes and `foreachBatch`. With `txnVersion`, a batch is written once. "
    "A streaming query has its own name.",
)  # fmt: skip
TXN_VERSION = Option(
    "txnVersion", "sink", count, "",
    "Number of a batch write. A number that is not above that of the last completed write is skipped.",
)  # fmt: skip
ROWS_PER_STEP = Option(
    "rowsPerStep", "sink", positive, "2000",
    "Maximum number of rows that become visible in one step, which blocks the engine. A step contains rows "
    "of one partition for one stream, about 1 MB.",
)  # fmt: skip
STAGING_TTL = Option(
    "stagingTtl", "sink", whole_seconds, "1d",
    "When rows of an abandoned attempt expire: at least 1s, and longer than a batch takes.",
)  # fmt: skip
TAKE_OVER = Option(
    "takeOver", "sink", flag, "false",
    "For one run: continue although the server with the sink's state is lost. A batch that it was "
    "publishing may be duplicated.",
)  # fmt: skip

OPTIONS: tuple[Option[Any], ...] = tuple(
    each for each in list(globals().values()) if isinstance(each, Option)
)


# ----------------------------------------------------------------------------------------------------
# Options

# Options that Spark itself adds.
_SPARKS_OWN: Final = frozenset(("checkpointlocation", "queryname"))


@dataclass(frozen=True, slots=True)
class Servers:
    """How to reach the engine: the server, its fallbacks, and redis-py's own options."""

    urls: tuple[str, ...]
    redis: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    servers: Servers
    streams: tuple[bytes, ...]
    pattern: bytes | None
    start: Start
    end: Start
    max_entries: int | None
    max_bytes: int | None
    min_entries: int | None
    max_delay_s: float
    min_partitions: int | None
    fail_on_data_loss: bool
    group: bytes | None
    regions: frozenset[int] | None
    mode: Mode
    corrupt_column: str
    push_filters: bool
    replication_wait_s: float
    lake: str | None = None
    fail_on_missing: bool = True
    value_type: ValueType = "binary"
    logs: bool = False
    max_per_partition: int | None = None


@dataclass(frozen=True, slots=True)
class SinkOptions:
    servers: Servers
    stream: bytes | None
    stream_column: str
    fields_column: str
    exactly_once: bool
    transaction: str | None
    version: int | None
    step_rows: int
    stage_ttl_s: int
    take_over: bool
    replication_wait_s: float
    is_log: bool = False


# Options of Kafka's connector that have no counterpart, by their start, and what to do instead.
_OF_KAFKA: Final = {
    "includeheaders": "It is Kafka's. Leave it out: what headers would have are fields of the entry.",
    "kafka.security": "It is Kafka's. TLS and login are part of url: rediss://USER:PASSWORD@HOST:PORT/0.",
    "kafka.sasl": "It is Kafka's. A login is part of url: rediss://USER:PASSWORD@HOST:PORT/0.",
    "kafka.ssl": "It is Kafka's. TLS is rediss:// in url, certificates are redis.ssl_ca_certs and others.",
    "kafka.": "It is for Kafka's client. Leave it out, or see redis.*, which is for redis-py.",
}


class _Taker:
    """Takes options by name; those left over at the end are unknown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.left = {name.lower(): value for name, value in options.items()}
        self.names = list[str]()

    def find(self, option: Option[T]) -> T | None:
        """The user's value, or None."""
        self.names.append(option.name)
        value = self.left.pop(option.name.lower(), None)
        return None if value is None else option.parse(option.name, value)

    def take(self, option: Option[T]) -> T:
        """The user's value, or the default."""
        found = self.find(option)
        return option.fallback if found is None else found

    def finish(self) -> None:
        for unknown in sorted(set(self.left) - _SPARKS_OWN):
            name, hint = _meant(unknown, self.names)
            raise OptionError(name, f"unknown.{hint} The options are: {', '.join(self.names)}, redis.*")


def _meant(unknown: str, names: Sequence[str]) -> tuple[str, str]:
    """The option as users write it, and what they may have meant. Kafka's names are known. Spark passes
    names in lower case."""
    for each in OPTIONS:
        if unknown in (each.kafka.lower(), f"kafka.{each.kafka.lower()}") and each.name in names:
            return each.kafka, f" Did you mean {each.name}? That is its name here."
    for start, hint in _OF_KAFKA.items():
        if unknown.startswith(start):
            return unknown, f" {hint}"
    known = {name.lower(): name for name in names}
    close = [known[name] for name in get_close_matches(unknown, known, n=1)]
    return unknown, f" Did you mean {close[0]}?" if close else ""


def source_options(given: Mapping[str, str]) -> SourceOptions:
    taker = _Taker(given)
    lake = taker.find(LAKE)
    options = SourceOptions(
        servers=_servers(taker, needed=lake is None),
        streams=taker.take(STREAMS),
        pattern=taker.find(STREAM_PATTERN),
        start=_start(taker, STARTING_OFFSETS, STARTING_TIMESTAMP),
        end=_start(taker, ENDING_OFFSETS, ENDING_TIMESTAMP),
        max_entries=taker.find(MAX_ENTRIES),
        max_bytes=taker.find(MAX_BYTES),
        min_entries=taker.find(MIN_ENTRIES),
        max_delay_s=taker.take(MAX_DELAY),
        min_partitions=taker.find(MIN_PARTITIONS),
        max_per_partition=taker.find(MAX_PER_PARTITION),
        fail_on_data_loss=taker.take(FAIL_ON_DATA_LOSS),
        group=taker.find(GROUP),
        regions=taker.find(REGIONS),
        mode=taker.take(MODE),
        corrupt_column=taker.take(CORRUPT_COLUMN),
        push_filters=taker.take(PUSH_FILTERS),
        replication_wait_s=taker.take(REPLICATION_WAIT),
        lake=lake,
        fail_on_missing=taker.take(FAIL_ON_MISSING),
        value_type=taker.take(VALUE_TYPE),
    )
    logs = taker.take(LOGS)
    taker.finish()
    if logs and options.streams:
        raise OptionError("logs", "give either streams or logs: their columns differ")
    options = replace(options, streams=logs, logs=True) if logs else options
    if bool(options.streams) == (options.pattern is not None):
        raise OptionError(
            "streams", "give either streams (a,b,c), streamPattern (a glob like orders-*) or logs (a,b,c)"
        )
    return options


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    taker = _Taker(given)
    servers, stream, log = _servers(taker), taker.find(STREAM), taker.find(LOG)
    if stream is not None and log is not None:
        raise OptionError("log", "give either stream or log")
    options = SinkOptions(
        servers=servers,
        stream=stream if log is None else log,
        stream_column=taker.take(STREAM_COLUMN),
        fields_column=taker.take(FIELDS_COLUMN),
        exactly_once=taker.take(IDEMPOTENCE),
        transaction=taker.find(TXN_APP_ID),
        version=taker.find(TXN_VERSION),
        step_rows=taker.take(ROWS_PER_STEP),
        stage_ttl_s=taker.take(STAGING_TTL),
        take_over=taker.take(TAKE_OVER),
        replication_wait_s=taker.take(REPLICATION_WAIT),
        is_log=log is not None,
    )
    taker.finish()
    return options


def _servers(taker: _Taker, *, needed: bool = True) -> Servers:
    url = taker.take(URL)
    if not url and not needed:
        return Servers((), {})
    if not url:
        taker.left = {name: value for name, value in taker.left.items() if name.startswith("kafka.")}
        taker.finish()  # who comes from Kafka
        raise OptionError("url", "missing. Say which server, like redis://localhost:6379/0")
    urls = (url, *taker.take(FALLBACK_URLS))
    redis = {
        name[len("redis.") :]: taker.left.pop(name) for name in list(taker.left) if name.startswith("redis.")
    }
    return Servers(urls, redis)


def _start(taker: _Taker, offsets: Option[Start], timestamp: Option[Start]) -> Start:
    position, moment = taker.find(offsets), taker.find(timestamp)
    if position is not None and moment is not None:
        raise OptionError(timestamp.name, f"give either this or {offsets.name}")
    return position or moment or offsets.fallback

"""The options of source and sink: parsed once, refused by name.

Spark passes a case-insensitive dict of strings. An unknown option is an error, because a misspelt limit or
offset would otherwise be ignored silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, TypeVar

from braidstream.errors import OptionError
from braidstream.spark import option_table as table
from braidstream.spark.option_table import Option
from braidstream.spark.option_values import Mode, Start, ValueType

T = TypeVar("T")

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
        unknown = sorted(set(self.left) - _SPARKS_OWN)
        if unknown:
            name, hint = _meant(unknown[0], self.names)
            raise OptionError(name, f"unknown.{hint} The options are: {', '.join(self.names)}, redis.*")


def _meant(unknown: str, names: Sequence[str]) -> tuple[str, str]:
    """The option as users write it, and what they may have meant. Kafka's names are known. Spark passes
    names in lower case."""
    for each in table.OPTIONS:
        if unknown in (each.kafka.lower(), f"kafka.{each.kafka.lower()}") and each.name in names:
            return each.kafka, f" Did you mean {each.name}? That is its name here."
    known = {name.lower(): name for name in names}
    close = [known[name] for name in get_close_matches(unknown, known, n=1)]
    return unknown, f" Did you mean {close[0]}?" if close else ""


def source_options(given: Mapping[str, str]) -> SourceOptions:
    taker = _Taker(given)
    lake = taker.find(table.LAKE)
    options = SourceOptions(
        servers=_servers(taker, needed=lake is None),
        streams=taker.take(table.STREAMS),
        pattern=taker.find(table.STREAM_PATTERN),
        start=_start(taker, table.STARTING_OFFSETS, table.STARTING_TIMESTAMP),
        end=_start(taker, table.ENDING_OFFSETS, table.ENDING_TIMESTAMP),
        max_entries=taker.find(table.MAX_ENTRIES),
        max_bytes=taker.find(table.MAX_BYTES),
        min_entries=taker.find(table.MIN_ENTRIES),
        max_delay_s=taker.take(table.MAX_DELAY),
        min_partitions=taker.find(table.MIN_PARTITIONS),
        max_per_partition=taker.find(table.MAX_PER_PARTITION),
        fail_on_data_loss=taker.take(table.FAIL_ON_DATA_LOSS),
        group=taker.find(table.GROUP),
        regions=taker.find(table.REGIONS),
        mode=taker.take(table.MODE),
        corrupt_column=taker.take(table.CORRUPT_COLUMN),
        push_filters=taker.take(table.PUSH_FILTERS),
        replication_wait_s=taker.take(table.REPLICATION_WAIT),
        lake=lake,
        fail_on_missing=taker.take(table.FAIL_ON_MISSING),
        value_type=taker.take(table.VALUE_TYPE),
    )
    logs = taker.take(table.LOGS)
    taker.finish()
    if logs and options.streams:
        raise OptionError("logs", "give either streams or logs: their columns differ")
    options = replace(options, streams=logs, logs=True) if logs else options
    if bool(options.streams) == (options.pattern is not None):
        raise OptionError(
            "streams", "give either streams (a,b,c), streamPattern (a glob like orders-*) or logs (a,b,c)"
        )
    return options


def value_type(given: Mapping[str, str]) -> ValueType:
    """The option valueType alone: Spark asks for the schema before it needs the other options."""
    return _Taker(given).take(table.VALUE_TYPE)


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    taker = _Taker(given)
    servers, stream, log = _servers(taker), taker.find(table.STREAM), taker.find(table.LOG)
    if stream is not None and log is not None:
        raise OptionError("log", "give either stream or log")
    options = SinkOptions(
        servers=servers,
        stream=stream if log is None else log,
        stream_column=taker.take(table.STREAM_COLUMN),
        fields_column=taker.take(table.FIELDS_COLUMN),
        exactly_once=taker.take(table.IDEMPOTENCE),
        transaction=taker.find(table.TXN_APP_ID),
        version=taker.find(table.TXN_VERSION),
        step_rows=taker.take(table.ROWS_PER_STEP),
        stage_ttl_s=taker.take(table.STAGING_TTL),
        take_over=taker.take(table.TAKE_OVER),
        replication_wait_s=taker.take(table.REPLICATION_WAIT),
        is_log=log is not None,
    )
    taker.finish()
    return options


def _servers(taker: _Taker, *, needed: bool = True) -> Servers:
    url = taker.take(table.URL)
    if not url and not needed:
        return Servers((), {})
    if not url:
        raise OptionError("url", "missing. Say which server, like redis://localhost:6379/0")
    urls = (url, *taker.take(table.FALLBACK_URLS))
    redis = {
        name[len("redis.") :]: taker.left.pop(name) for name in list(taker.left) if name.startswith("redis.")
    }
    return Servers(urls, redis)


def _start(taker: _Taker, offsets: Option[Start], timestamp: Option[Start]) -> Start:
    position, moment = taker.find(offsets), taker.find(timestamp)
    if position is not None and moment is not None:
        raise OptionError(timestamp.name, f"give either this or {offsets.name}")
    return position or moment or offsets.fallback

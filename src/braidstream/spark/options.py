"""The options of source and sink: parsed once, refused by name.

Spark hands over a case-insensitive dict of text. An option that nobody knows is an error, because a
misspelt limit or offset would otherwise be ignored in silence.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar

from braidstream import ids
from braidstream.errors import OptionError
from braidstream.frontier import name_of_text, place_of_text
from braidstream.ids import Id

T = TypeVar("T")

Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
MODES: Final[tuple[Mode, ...]] = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
# What Spark itself puts among the options of a query or a table.
_SPARKS_OWN: Final = frozenset(("checkpointlocation", "queryname"))


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin or end: everything, nothing, a time, or a position for each stream.

    at: stream -> "earliest", "latest", one user ID, or {place: native ID}. `rest` is for the others.
    """

    rest: str = "earliest"
    at: Mapping[bytes, Any] = field(default_factory=dict)
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Servers:
    """How to reach the engine: the server, those to turn to when it fails, and redis-py's own options."""

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
    min_partitions: int
    fail_on_data_loss: bool
    group: bytes | None
    regions: frozenset[int] | None
    mode: Mode
    corrupt_column: str
    push_filters: bool
    replication_wait_s: float
    lake: str | None = None


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


class _Taker:
    """Takes options by name; what is left over at the end is unknown."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = {name.lower(): value for name, value in given.items()}
        self.names = list[str]()

    def take(self, name: str, parse: Callable[[str, str], T], default: T) -> T:
        self.names.append(name)
        value = self.given.pop(name.lower(), None)
        return default if value is None else parse(name, value)

    def finish(self) -> None:
        unknown = sorted(set(self.given) - _SPARKS_OWN)
        if unknown:
            raise OptionError(unknown[0], f"unknown. The options are: {', '.join(self.names)}, redis.*")


def source_options(given: Mapping[str, str]) -> SourceOptions:
    taker = _Taker(given)
    lake = taker.take("lake", _text, None)
    options = SourceOptions(
        servers=_servers(taker, needed=lake is None),
        streams=taker.take("streams", _names, ()),
        pattern=taker.take("streamPattern", _bytes, None),
        start=_start(taker, "starting", "earliest"),
        end=_start(taker, "ending", "latest"),
        max_entries=taker.take("maxEntriesPerTrigger", _positive, None),
        max_bytes=taker.take("maxBytesPerTrigger", _positive, None),
        min_entries=taker.take("minEntriesPerTrigger", _positive, None),
        max_delay_s=taker.take("maxTriggerDelay", _seconds, 900.0),
        min_partitions=taker.take("minPartitions", _positive, None) or 1,
        fail_on_data_loss=taker.take("failOnDataLoss", _flag, True),
        group=taker.take("group", _bytes, None),
        regions=taker.take("regions", _numbers, None),
        mode=taker.take("mode", _mode, "PERMISSIVE"),
        corrupt_column=taker.take("columnNameOfCorruptRecord", _text, "_corrupt_record"),
        push_filters=taker.take("pushFilters", _flag, False),
        replication_wait_s=taker.take("replicationWait", _seconds, 30.0),
        lake=lake,
    )
    taker.finish()
    if bool(options.streams) == (options.pattern is not None):
        raise OptionError("streams", "give either streams (a,b,c) or streamPattern (a glob like orders-*)")
    return options


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    taker = _Taker(given)
    options = SinkOptions(
        servers=_servers(taker),
        stream=taker.take("stream", _bytes, None),
        stream_column=taker.take("streamColumn", _text, "stream"),
        fields_column=taker.take("fieldsColumn", _text, "fields"),
        exactly_once=taker.take("idempotence", _idempotence, True),
        transaction=taker.take("txnAppId", _identity, None),
        version=taker.take("txnVersion", _count, None),
        step_rows=taker.take("rowsPerStep", _positive, None) or 2_000,
        stage_ttl_s=int(taker.take("stagingTtl", _seconds, 86_400.0)),
        take_over=taker.take("takeOver", _flag, False),
        replication_wait_s=taker.take("replicationWait", _seconds, 30.0),
    )
    taker.finish()
    return options


def _servers(taker: _Taker, *, needed: bool = True) -> Servers:
    url = taker.take("url", _text, "")
    if not url and not needed:
        return Servers((), {})
    if not url:
        raise OptionError("url", "missing. Say which server, like redis://localhost:6379/0")
    none: tuple[str, ...] = ()
    urls = (url, *taker.take("fallbackUrls", _texts, none))
    redis = {
        name[len("redis.") :]: taker.given.pop(name)
        for name in list(taker.given)
        if name.startswith("redis.")
    }
    return Servers(urls, redis)


def _start(taker: _Taker, which: str, default: str) -> Start:
    offsets = taker.take(f"{which}Offsets", _offsets, None)
    moment = taker.take(f"{which}Timestamp", time_ms, None)
    if offsets is not None and moment is not None:
        raise OptionError(f"{which}Timestamp", f"give either this or {which}Offsets")
    if moment is not None:
        return Start(default, time_ms=moment)
    return offsets or Start(default)


def _offsets(name: str, value: str) -> Start:
    if value in ("earliest", "latest"):
        return Start(value)
    try:
        given = json.loads(value)
    except ValueError as error:
        raise OptionError(name, f"neither earliest nor latest nor JSON ({error})") from None
    if not isinstance(given, dict):
        raise OptionError(name, 'JSON must be {"stream": position, ...}')
    # What a progress report or a checkpoint shows may be pasted as it is.
    given = given.get("frontier", given) if set(given) <= {"frontier", "counted", "began"} else given
    return Start(at=dict(_positions(name, given)), rest="earliest" if name.startswith("start") else "latest")


def _positions(name: str, given: dict[str, Any]) -> Iterator[tuple[bytes, Any]]:
    for stream, position in given.items():
        key = name_of_text(stream)
        if isinstance(position, str):
            yield key, position if position in ("earliest", "latest") else _id(name, stream, position)
        elif isinstance(position, dict):
            for place in position:
                if place_of_text(key, place) is None:
                    raise OptionError(name, f"{stream}: {place} is no strand; one is like s1, c1.2 or p")
            yield key, {place: _id(name, stream, text) for place, text in position.items()}
        else:
            raise OptionError(
                name, f"{stream}: a position is an ID, earliest, latest, or an ID for each strand"
            )


def _id(name: str, stream: str, text: Any) -> Id:
    found = ids.parse(str(text).encode())
    if found is None:
        raise OptionError(name, f"{stream}: {text!r} is no ID; one is like 1589929244828-0")
    return found


def time_ms(name: str, value: str) -> int:
    """Milliseconds since 1970, from their number or an ISO time (UTC unless it says otherwise)."""
    if value.strip().isdigit():
        return int(value)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise OptionError(name, f"{value!r} is neither milliseconds since 1970 nor an ISO time") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def _text(name: str, value: str) -> str:
    return value.strip()


def _texts(name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _bytes(name: str, value: str) -> bytes:
    return name_of_text(value)


def _names(name: str, value: str) -> tuple[bytes, ...]:
    """`a,b,c`; a JSON list where a name has a comma."""
    if value.lstrip().startswith("["):
        try:
            return tuple(name_of_text(str(each)) for each in json.loads(value))
        except ValueError as error:
            raise OptionError(name, f"not a JSON list of names ({error})") from None
    return tuple(dict.fromkeys(name_of_text(each) for each in _texts(name, value)))


def _count(name: str, value: str) -> int:
    if not value.strip().isdigit():
        raise OptionError(name, f"{value!r} is not a whole number")
    return int(value)


def _positive(name: str, value: str) -> int:
    number = _count(name, value)
    if number < 1:
        raise OptionError(name, "must be 1 or more")
    return number


def _numbers(name: str, value: str) -> frozenset[int]:
    return frozenset(_count(name, each) for each in _texts(name, value))


def _flag(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise OptionError(name, f"{value!r} is neither true nor false")
    return value.strip().lower() == "true"


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def _seconds(name: str, value: str) -> float:
    text = value.strip().lower()
    number = text.rstrip("mshd")
    unit = text[len(number) :] or "s"
    try:
        return float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        raise OptionError(name, f"{value!r} is no duration; one is like 500ms, 30s, 15m, 1d") from None


def _mode(name: str, value: str) -> Mode:
    for mode in MODES:
        if value.strip().upper() == mode:
            return mode
    raise OptionError(name, f"{value!r} is none of {', '.join(MODES)}")


def _idempotence(name: str, value: str) -> bool:
    if value not in ("exactly-once", "none"):
        raise OptionError(name, f"{value!r} is neither exactly-once nor none")
    return value == "exactly-once"


def _identity(name: str, value: str) -> str:
    if not value or len(value) > 200 or any(sign in value for sign in "{} \r\n"):
        raise OptionError(name, "must be 1 to 200 characters without spaces and braces")
    return value

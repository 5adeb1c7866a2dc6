"""What the text of an option means: parsed, or refused by the option's name."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from braidstream.errors import OptionError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text, place_of_text
from braidstream.model.ids import Id
from braidstream.model.offset_log import LAST_OFFSET

ValueType = Literal["binary", "string"]
VALUE_TYPES: Final[tuple[ValueType, ...]] = ("binary", "string")
Mode = Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]
MODES: Final[tuple[Mode, ...]] = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin or end: everything, nothing, a time, or a position for each stream.

    at: stream -> "earliest", "latest", one user ID, the last offset of a log before the position, or
    {place: native ID}. `rest` is for the others. option: the one that says so. times: a time for a stream.
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
            yield key, position if position in ("earliest", "latest") else _id(name, stream, position)
        elif isinstance(position, int) and not isinstance(position, bool):
            yield key, _number(name, stream, position)
        elif isinstance(position, dict):
            for place in position:
                if place_of_text(key, place) is None:
                    raise OptionError(
                        name, f"{stream}: {place} is no strand; one is like s1, c1.2, t0.1 or p"
                    )
            yield key, {place: _id(name, stream, text) for place, text in position.items()}
        else:
            raise OptionError(
                name,
                f"{stream}: a position is an ID, earliest, latest, an ID for each strand, or the offset of "
                "a log",
            )


def _number(name: str, stream: str, offset: int) -> int:
    """A log is read from this offset on, or up to it: the last offset before."""
    if not 0 <= offset <= LAST_OFFSET:
        raise OptionError(name, f"{stream}: {offset} is no offset; they are 1, 2, 3, ...")
    return max(0, offset - 1) if name.startswith("start") else offset


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
        raise OptionError(name, f"{value!r} is no duration; one is like 500ms, 30s, 15m, 1d") from None


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


def value_type(name: str, value: str) -> ValueType:
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

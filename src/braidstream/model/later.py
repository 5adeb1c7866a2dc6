"""Entries for later: each waits as an ordinary entry of a companion stream, so it replicates like all others.

    XADD {orders}.later * later.delay 30000 n 1         due 30,000 ms after the time in its ID
    XADD {orders}.later * later.at 1796083200000 n 1    due at that time

When it is due, its fields without `later.*` are appended to `orders`, and it is deleted (lua/later.lua). With
`later.group billing` they are appended to `{orders}.billing.again`, which only that group reads. The braces
put a companion into the slot of its stream, so one function reaches both.
"""

import re
from collections.abc import Sequence
from typing import Final

from braidstream.model import keys

LATER: Final = b".later"
AGAIN: Final = b".again"
AT: Final = b"later.at"
DELAY: Final = b"later.delay"
GROUP: Final = b"later.group"
_CONTROL: Final = b"later."
# The year 9999 ends here.
_LAST_MS: Final = 253_402_300_799_999
_MS: Final = re.compile(rb"[0-9]{1,15}\Z")
# Fields and values of an entry: the engine's Lua reads them, and words may be made to share one hash there.
MOST_WORDS: Final = 4_096


def later_name(stream: bytes) -> bytes:
    """The stream in which entries of a stream wait. ValueError if it can have none."""
    return _checked(_stem(stream) + LATER, stream)


def again_name(stream: bytes, group: bytes) -> bytes:
    """The stream of what one group of a stream gets again. ValueError if it can have none."""
    quoted = group.replace(b"%", b"%25").replace(b".", b"%2E")
    return _checked(b"%b.%b%b" % (_stem(stream), quoted, AGAIN), stream)


def _checked(companion: bytes, stream: bytes) -> bytes:
    if len(companion) > keys.NAME_BYTES or stream_of(companion) != stream or stream_of(stream) is not None:
        shown = stream[:100].decode("utf-8", "backslashreplace")
        raise ValueError(f"entries of {shown!r} cannot wait for later: it has no name for them")
    return companion


def stream_of(name: bytes) -> bytes | None:
    """The stream that a name is a companion of; None for any other name."""
    if name.endswith(LATER):
        return _unstemmed(name[: -len(LATER)])
    if name.endswith(AGAIN):
        stem, dot, _ = name[: -len(AGAIN)].rpartition(b".")
        return _unstemmed(stem) if dot else None
    return None


def target_of(name: bytes) -> bytes | None:
    """The stream whose entries wait in a stream of this name; None for any other name."""
    return stream_of(name) if name.endswith(LATER) else None


def target_for(name: bytes, group: bytes | None) -> bytes:
    """The stream that gets an entry which waits in a stream of this name. ValueError if there is none."""
    stream = target_of(name) or b""
    return stream if group is None else again_name(stream, group)


def _stem(stream: bytes) -> bytes:
    return stream if keys.has_own_tag(stream) else b"{" + stream + b"}"


def _unstemmed(stem: bytes) -> bytes | None:
    name = stem[1:-1]
    if stem == b"{" + name + b"}" and name and b"{" not in name and not name.startswith(b"}"):
        return name
    return stem if keys.has_own_tag(stem) else None


def due_of(entry_ms: int, words: Sequence[bytes]) -> tuple[int, bytes | None]:
    """When a waiting entry is due (ms), and the only group that gets it. ValueError says what is wrong."""
    about = dict(zip(words[::2], words[1::2], strict=True))
    control = [field for field in about if field.startswith(_CONTROL)]
    if unknown := [field for field in control if field not in (AT, DELAY, GROUP)]:
        raise ValueError(f"there is no option {_shown(unknown[0])}")
    if (AT in about) == (DELAY in about):
        raise ValueError("it needs later.delay or later.at, and not both")
    if len(control) == len(about):
        raise ValueError("it has no fields of its own")
    if len(words) > MOST_WORDS:
        raise ValueError(f"it has {len(words):,} fields and values, and at most {MOST_WORDS:,} can wait")
    value = about.get(AT, about.get(DELAY, b""))
    due_ms = (entry_ms if DELAY in about else 0) + (int(value) if _MS.match(value) else _LAST_MS + 1)
    if due_ms > _LAST_MS:
        raise ValueError(f"{_shown(value)} is not a number of milliseconds up to the year 9999")
    return due_ms, about.get(GROUP)


def _shown(word: bytes) -> str:
    return repr(word[:40].decode("utf-8", "backslashreplace"))


def without_control(words: Sequence[bytes]) -> list[bytes]:
    """The fields that are appended when the entry is due."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return [word for field, value in pairs if not field.startswith(_CONTROL) for word in (field, value)]

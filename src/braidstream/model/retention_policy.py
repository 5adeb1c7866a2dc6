"""Retention policies: entries of the ordinary stream `braid.retention`, so they replicate like all others.

    XADD braid.retention * streams orders* max-age 7d max-bytes 2gb acked 1 hold 30d
    XADD braid.retention * streams orders* off 1

The latest entry of a pattern counts, by its ID, in every region. For a stream an exact name goes before
patterns, and of patterns the one that was set last.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from braidstream.errors import ReplyError
from braidstream.model.glob import matcher
from braidstream.model.ids import Id

STREAM: Final = b"braid.retention"
# Streams that no pattern matches, only their exact name: dead letters, and what waits for later.
_COMPANIONS: Final = (b".dead", b".later", b".again")
_SECONDS: Final = {b"s": 1, b"m": 60, b"h": 3_600, b"d": 86_400}
_BYTES: Final = {b"": 1, b"b": 1, b"kb": 2**10, b"mb": 2**20, b"gb": 2**30}
_QUANTITY: Final = re.compile(rb"([1-9][0-9]{0,11})([a-z]{0,2})\Z")
_WORDS: Final = (b"streams", b"max-age", b"max-bytes", b"acked", b"hold", b"off")


def seconds(text: bytes) -> int:
    """`7d`, `12h`, `30m`, `90s`. ValueError for anything else."""
    return _quantity(text, _SECONDS, "a time like 7d, 12h, 30m or 90s")


def size(text: bytes) -> int:
    """`2gb`, `200mb`, `512kb`, or a number of bytes."""
    return _quantity(text, _BYTES, "a size like 2gb, 200mb or 512kb")


def _quantity(text: bytes, units: dict[bytes, int], what: str) -> int:
    found = _QUANTITY.match(text.lower())
    if found is None or found[2] not in units:
        raise ValueError(f"{text.decode('utf-8', 'backslashreplace')!r} is not {what}")
    return int(found[1]) * units[found[2]]


@dataclass(frozen=True, slots=True)
class Policy:
    """streams: a name or a glob. id: of its entry. is_off: what was set before does not count any more.

    acked: only what every group of every region has acknowledged. hold_s: older entries go all the same.
    """

    streams: bytes
    id: Id
    max_age_s: int | None = None
    max_bytes: int | None = None
    acked: bool = False
    hold_s: int | None = None
    is_off: bool = False

    @staticmethod
    def parse(entry: Id, words: Sequence[bytes]) -> "Policy":
        """ValueError says what is wrong."""
        about = dict(zip(words[::2], words[1::2], strict=True))
        if unknown := [word.decode("utf-8", "backslashreplace") for word in about if word not in _WORDS]:
            raise ValueError(f"there is no option {unknown[0]!r}")
        if not about.get(b"streams"):
            raise ValueError("it does not say which streams")
        found = Policy(
            about[b"streams"],
            entry,
            seconds(about[b"max-age"]) if b"max-age" in about else None,
            size(about[b"max-bytes"]) if b"max-bytes" in about else None,
            about.get(b"acked", b"0") == b"1",
            seconds(about[b"hold"]) if b"hold" in about else None,
            about.get(b"off", b"0") == b"1",
        )
        if about.get(b"acked", b"0") not in (b"0", b"1"):
            raise ValueError("acked is neither 0 nor 1")
        if not found.is_off and not (found.max_age_s or found.max_bytes or found.acked):
            raise ValueError("it needs max-age, max-bytes or acked")
        if found.hold_s is not None and not found.acked:
            raise ValueError("hold is only for acked: without that, max-age is enough")
        if found.hold_s is not None and found.hold_s <= (found.max_age_s or 0):
            raise ValueError("hold must be longer than max-age")
        try:
            matcher(found.streams)
        except ReplyError as error:
            raise ValueError(error.text) from None
        return found

    def cut_ms(self, now_ms: int) -> int | None:
        """Entries before this time are too old. None if age does not matter."""
        return None if self.max_age_s is None else max(0, now_ms - 1000 * self.max_age_s)

    def hold_ms(self, now_ms: int) -> int:
        """Entries before this time go, whatever groups need."""
        return 0 if self.hold_s is None else max(0, now_ms - 1000 * self.hold_s)

    @property
    def kept_bytes(self) -> int | None:
        """To which size a stream is trimmed: a bit below max_bytes, because it grows until the next look."""
        return None if self.max_bytes is None else self.max_bytes - self.max_bytes // 20

    @property
    def is_acked_alone(self) -> bool:
        """Entries go as soon as all groups have acknowledged them."""
        return self.acked and self.max_age_s is None and self.max_bytes is None


@dataclass(frozen=True, slots=True)
class Policies:
    """Those that count. refused: entries that cannot be read, and why: they change nothing."""

    by_streams: dict[bytes, Policy] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    _matchers: dict[bytes, Callable[[bytes], bool]] = field(default_factory=dict)

    @staticmethod
    def of_entries(entries: Iterable[tuple[Id, Sequence[bytes]]]) -> "Policies":
        latest, refused = dict[bytes, Policy](), list[str]()
        for entry, words in sorted(entries, key=lambda each: each[0]):
            try:
                policy = Policy.parse(entry, words)
            except ValueError as error:
                refused.append(f"{entry[0]}-{entry[1]}: {error}")
            else:
                latest[policy.streams] = policy
        on = {streams: policy for streams, policy in latest.items() if not policy.is_off}
        return Policies(on, tuple(refused), {streams: matcher(streams) for streams in on})

    def of(self, name: bytes) -> Policy | None:
        """The policy of a stream."""
        if name == STREAM:
            return None
        if (exact := self.by_streams.get(name)) is not None:
            return exact
        if name.endswith(_COMPANIONS):
            return None
        fits = (self.by_streams[streams] for streams, matches in self._matchers.items() if matches(name))
        return max(fits, key=lambda policy: policy.id, default=None)

"""The arguments of a consumer, checked."""

import math
import os
import secrets
import socket
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidstream.consumers.handler import Message, Reject, is_coroutine
from braidstream.model import ids, topic

# The value of `key=`: a field, or a function of the message.
Key = str | Callable[[Message], Hashable]

# The longest exponent: 2**64 times any delay is over every cap.
_EXPONENTS: Final = 64
_OPTIONAL: Final = ("timeout", "batch")
_NUMBERS: Final = (
    *(
        "concurrency",
        "attempts",
        "backoff",
        "max_backoff",
        "claim_after",
        "prefetch",
        "batch_wait",
        "stop_timeout",
    ),
    *_OPTIONAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """See `Consumer` for what each means."""

    streams: tuple[str, ...]
    group: str
    name: str
    concurrency: int
    attempts: int
    dead_letter: str | None
    backoff: float
    max_backoff: float
    timeout: float | None
    claim_after: float
    prefetch: int
    key: Key | None
    batch: int | None
    batch_wait: float
    start: str
    stop_timeout: float
    scope: str | None = None
    retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None
    topic: str | None = None

    def __post_init__(self) -> None:
        if self.topic is not None:
            self._check_topic(self.topic)
        elif not self.streams or not all(self.streams) or len(set(self.streams)) < len(self.streams):
            raise ValueError(f"streams: name one stream or several different ones, not {self.streams!r}.")
        for each in _NUMBERS:
            value = getattr(self, each)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number and not (value is None and each in _OPTIONAL):
                raise TypeError(f"{each}: {value!r} given, it must be a number.")
        if self.start != "$" and ids.parse(self.start.encode()) is None:
            raise ValueError(
                f"start: {self.start!r} given, it must be an ID, like '0', or '$' for new entries."
            )
        if self.scope not in (None, "ONCE", "EVERYWHERE"):
            raise ValueError(f"scope: {self.scope!r} given, it must be 'ONCE' or 'EVERYWHERE'.")
        if not self.group:
            raise ValueError("group: the group needs a name.")
        _require(self.concurrency >= 1, "concurrency", "at least 1", self.concurrency)
        _require(self.attempts >= 1, "attempts", "at least 1", self.attempts)
        _require(0 <= self.backoff <= self.max_backoff, "backoff", "0 to max_backoff", self.backoff)
        _require(math.isfinite(self.max_backoff), "max_backoff", "finite", self.max_backoff)
        _require(self.timeout is None or self.timeout > 0, "timeout", "more than 0", self.timeout)
        _require(self.claim_after >= 0.1, "claim_after", "at least 0.1", self.claim_after)
        _require(self.prefetch >= 0, "prefetch", "0 or more", self.prefetch)
        _require(self.batch is None or self.batch >= 1, "batch", "at least 1", self.batch)
        _require(self.batch_wait >= 0, "batch_wait", "0 or more", self.batch_wait)
        _require(self.stop_timeout >= 0, "stop_timeout", "0 or more", self.stop_timeout)
        kinds = self.retry_on if isinstance(self.retry_on, tuple) else (self.retry_on or BaseException,)
        if not kinds or not all(isinstance(each, type) and issubclass(each, BaseException) for each in kinds):
            raise TypeError(f"retry_on: {self.retry_on!r} given, it must be classes of errors.")
        if callable(self.key) and is_coroutine(self.key):
            raise TypeError("key: it is async def. It must be a field, or a function that returns the key.")
        if self.batch is not None and self.key is not None:
            raise ValueError("key and batch: a consumer handles batches, or keeps order per key, not both.")
        if self.dead_letter in self.streams:
            raise ValueError(f"dead_letter: {self.dead_letter} is read by this consumer. Use another stream.")

    def _check_topic(self, name: str) -> None:
        if self.streams:
            raise ValueError(
                "streams and topic: a consumer reads streams, or partitions of a topic, not both."
            )
        if (why := topic.refusal(name.encode())) is not None:
            raise ValueError(f"topic: {name!r} given, but {why}.")
        if self.batch is not None:
            raise ValueError(
                "topic and batch: a consumer of a topic handles one entry of a key after the other."
            )

    @property
    def keeps_order(self) -> bool:
        return self.key is not None or self.topic is not None

    def is_retried(self, error: BaseException) -> bool:
        """Whether another attempt may help after this error of a handler."""
        return not isinstance(error, Reject) and isinstance(error, self.retry_on or BaseException)

    def dead_stream(self, stream: str) -> str:
        """Where entries of a stream go that failed too often."""
        return self.dead_letter if self.dead_letter is not None else f"{self.topic or stream}.dead"

    def delay(self, failures: int, random: Callable[[], float]) -> float:
        """Seconds until the next attempt: doubled with each failure, then 50 % to 100 % of that.

        random: returns a number from 0 to 1.
        """
        full: float = min(self.max_backoff, self.backoff * 2.0 ** min(failures - 1, _EXPONENTS))
        return full * (0.5 + random() / 2)

    def key_of(self, message: Message) -> Hashable:
        """What the order is kept of, in a stream. Of a topic without `key`: of the whole partition."""
        if isinstance(self.key, str):
            return message.raw.get(self.key.encode())
        return None if self.key is None else self.key(message)


def _require(holds: bool, name: str, rule: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name}: {value!r} given, it must be {rule}.")


def stream_names(streams: str | Sequence[str]) -> tuple[str, ...]:
    return (streams,) if isinstance(streams, str) else tuple(streams)


def own_name() -> str:
    """A consumer name that no other process has, also not after a restart."""
    return f"{_of_process()}{secrets.token_hex(3)}"


def has_own_name(name: str) -> bool:
    """Whether no other process can have this name."""
    return name.startswith(_of_process())


def _of_process() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-"

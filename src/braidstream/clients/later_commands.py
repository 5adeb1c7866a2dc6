"""The methods of the clients for entries that appear later (model/later.py)."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redis.typing import KeyT, StreamIdT

from braidstream.model.later import AT, DELAY, due_of, later_name, without_control

# A waiting entry: when it is due, its ID, its fields. None: that cannot be read, so it waits for ever.
WaitingEntry = tuple[datetime | None, Any, dict[Any, Any]]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
# The most milliseconds that an entry may say.
_LONGEST: Final = 10**15 - 1


class LaterCommands:
    """What pipelines have too. In asyncio each method returns an awaitable."""

    def xadd(
        self,
        name: KeyT,
        fields: Mapping[Any, Any],
        *args: Any,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        **options: Any,
    ) -> Any:
        """As in redis-py. With `delay` (seconds) or `at` the entry is appended then, and not before.

        It waits in another stream, and its ID there is returned. A daemon moves it when it is due.
        """
        if delay is None and at is None:
            return super().xadd(name, fields, *args, **options)  # type: ignore[misc]
        words = _words(delay, at)
        if others := {"*"} ^ {*args, *(options.get("id", "*"),)}:
            raise ValueError(f"an entry for later gets its ID when it is due: {others} cannot be chosen")
        if limits := [each for each in ("maxlen", "minid", "nomkstream") if options.get(each)]:
            raise ValueError(
                f"{limits[0]}: an entry for later trims nothing. Set a retention policy instead."
            )
        if any(_bytes(self, field).startswith(b"later.") for field in fields):
            raise ValueError("fields that begin with `later.` say when an entry is due: pass delay= or at=")
        return super().xadd(_later(self, name), words | dict(fields), **options)  # type: ignore[misc]

    def cancel_later(self, name: KeyT, *entries: StreamIdT) -> Any:
        """Delete waiting entries by the IDs that xadd returned. Returns how many still waited."""
        return self.xdel(_later(self, name), *entries)  # type: ignore[attr-defined]


class Later(LaterCommands):
    """The methods of the clients."""

    def later(self, name: KeyT, count: int = 1_000) -> list[WaitingEntry]:
        """The entries that wait: (when, id, fields), the first that is due first.

        Only the oldest `count` are read.
        """
        return _listed(self, self.xrange(_later(self, name), count=count))  # type: ignore[attr-defined]


class AsyncLater(LaterCommands):
    """The methods of the asyncio clients."""

    async def later(self, name: KeyT, count: int = 1_000) -> list[WaitingEntry]:
        return _listed(self, await self.xrange(_later(self, name), count=count))  # type: ignore[attr-defined]

    later.__doc__ = Later.later.__doc__


def _words(delay: float | timedelta | None, at: datetime | None) -> dict[Any, Any]:
    """The fields that say when. ValueError says what is wrong."""
    if at is not None:
        if delay is not None:
            raise ValueError("pass delay= or at=, not both")
        if at.tzinfo is None:
            raise ValueError("at: a time without a time zone is ambiguous. Pass datetime(..., tzinfo=UTC).")
        if at < _EPOCH:
            raise ValueError(f"at: {at} is before 1970")
        return {AT: (at - _EPOCH) // _MS}
    delay_s = delay.total_seconds() if isinstance(delay, timedelta) else delay
    assert delay_s is not None
    if not math.isfinite(delay_s) or not 0 <= delay_s * 1000 <= _LONGEST:
        raise ValueError(f"delay: {delay} is not a number of seconds from 0 to 10^12")
    return {DELAY: math.ceil(delay_s * 1000)}


def _later(client: Any, name: Any) -> bytes:
    return later_name(_bytes(client, name))


def _bytes(client: Any, word: Any) -> bytes:
    return bytes(client.get_encoder().encode(word))


def _listed(client: Any, entries: list[tuple[Any, dict[Any, Any]]]) -> list[WaitingEntry]:
    return sorted((_waiting(client, *each) for each in entries), key=lambda each: (each[0] is None, each[0]))


def _waiting(client: Any, entry: Any, fields: dict[Any, Any]) -> WaitingEntry:
    native = {_bytes(client, field): field for field in fields}
    words = [word for each, field in native.items() for word in (each, _bytes(client, fields[field]))]
    try:
        due_ms, _ = due_of(int(_bytes(client, entry).partition(b"-")[0]), words)
    except ValueError:
        return None, entry, fields
    kept = {*without_control(words)[::2]}
    return (
        _EPOCH + due_ms * _MS,
        entry,
        {field: fields[field] for each, field in native.items() if each in kept},
    )

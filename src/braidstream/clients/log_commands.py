"""The methods of both clients for logs. In asyncio each returns an awaitable."""

from collections.abc import Iterable
from typing import Any, Final

from redis.typing import EncodableT, KeyT


class LogCommands:
    """What the clients add to redis-py for logs. Each method sends one command."""

    def twrite(
        self,
        name: KeyT,
        tag: EncodableT | None = None,
        entry: EncodableT | None = None,
        *,
        entries: Iterable[tuple[EncodableT, EncodableT]] | None = None,
        backlog: int | None = None,
        maxage: int | None = None,
        idmp: tuple[EncodableT, EncodableT] | None = None,
    ) -> Any:
        """Append an entry and return its offset; or append `entries` and return their offsets.

        backlog: evict old entries, but keep at least this many. maxage: evict entries older than this, in ms.
        idmp: (producer, message ID). If the message was written before, return its offsets and write nothing.
        """
        if (tag is None) != (entry is None) or (tag is None) == (entries is None):
            raise ValueError("pass a tag and an entry, or entries=[(tag, entry), ...]")
        once: list[Any] = [] if idmp is None else ["IDMP", *idmp]
        if entries is None and backlog is None and maxage is None:
            return self._send_log("TWRITE", name, *once, tag, entry)
        pairs = [(tag, entry)] if entries is None else list(entries)
        if not pairs:
            raise ValueError("entries is empty")
        words = once + ([] if backlog is None else ["BACKLOG", backlog])
        words += [] if maxage is None else ["MAXAGE", maxage]
        words += ["ENTRIES", *(word for pair in pairs for word in pair)]
        return self._send_log("TWRITE", name, *words, **({"single": True} if entries is None else {}))

    def tread(
        self,
        name: KeyT,
        offset: int = 1,
        count: int = 10,
        *,
        block: int | None = None,
        group: EncodableT | None = None,
        start: str = "FIRST",
        retry: tuple[int, int] | None = None,
        withinfo: bool = False,
        skip: bool = False,
    ) -> Any:
        """Entries from an offset on: a list of (offset, tag, entry), None where one was evicted.

        block: milliseconds to wait for an entry, 0 for ever. withinfo: return ((first, last), entries).
        skip: leave out missing entries, and return the next ones instead.
        group: the next entries that no reader of the group has; the offset is ignored. start: where a new
        group starts, "FIRST" or "LAST". retry: (retry_ms, expire_ms): acknowledge the entries with tack().
        """
        words: list[Any] = []
        if block is not None:
            words += ["BLOCK", block]
        if group is not None:
            words += ["GROUP", group, start]
        if retry is not None:
            words += ["RETRY", *retry]
        if withinfo:
            words.append("WITHINFO")
        if skip:
            words.append("SKIP")
        return self._send_log("TREAD", name, offset, count, *words, withinfo=withinfo)

    def tack(self, name: KeyT, group: EncodableT, *offsets: "int | range") -> Any:
        """Acknowledge entries that a group was given with retry=. Returns how many were pending.

        A range of offsets: tack(name, group, range(1, 100)), which has no 100, as everywhere in Python.
        """
        given = [each for each in offsets if not isinstance(each, range) or len(each)]
        if not given or any(isinstance(each, range) and each.step != 1 for each in given):
            raise ValueError("pass offsets, or ranges of step 1 that are not empty")
        words = [f"{each[0]}-{each[-1]}" if isinstance(each, range) else each for each in given]
        return self._send_log("TACK", name, group, *words)

    def tevict(
        self, name: KeyT, offset: int | None = None, *, keep: int | None = None, older: int | None = None
    ) -> Any:
        """Evict everything up to an offset, or all but the last `keep` entries, or entries older than
        `older` ms. Returns how many were evicted."""
        if [offset, keep, older].count(None) != 2:
            raise ValueError("pass an offset, or keep=, or older=")
        if older is not None:
            return self._send_log("TEVICT", name, "OLDER", older)
        if keep is not None:
            # -0 would be offset 0, which evicts nothing.
            return self._send_log("TEVICT", name, -keep if keep else "-0")
        return self._send_log("TEVICT", name, offset)

    def tcfgset(
        self,
        name: KeyT,
        *,
        pending: int | None = None,
        backlog: int | None = None,
        maxage: int | None = None,
    ) -> Any:
        """Set how many entries a group may have pending, how many entries stay at least, and how many ms
        they stay (0: all of them, for ever)."""
        words: list[Any] = [] if pending is None else ["PENDING", pending]
        words += [] if backlog is None else ["BACKLOG", backlog]
        words += [] if maxage is None else ["MAXAGE", maxage]
        return self._send_log("TCFGSET", name, *words)

    def _send_log(self, *args: Any, **options: Any) -> Any:
        return self.execute_command(*args, **options)  # type: ignore[attr-defined]


def written(reply: Any, *, single: bool = False, **_: Any) -> Any:
    """The offset, or the offsets, of TWRITE."""
    return reply[0] if single and isinstance(reply, list) else reply


def entries_read(reply: Any, *, withinfo: bool = False, **_: Any) -> Any:
    """The entries of TREAD as tuples."""
    if not isinstance(reply, list):
        return ((1, 0), []) if withinfo else []
    rows = [None if row is None else tuple(row) for row in reply]
    return (rows[0], rows[1:]) if withinfo else rows


CALLBACKS: Final = {
    "TWRITE": written,
    "TREAD": entries_read,
    "TCFGSET": lambda reply, **_: reply in (b"OK", "OK"),
}

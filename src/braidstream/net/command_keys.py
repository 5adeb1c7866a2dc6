"""The keys of any command, by the engine's own table: COMMAND. For commands that no plan sends.

GET key             first 1, last 1, step 1
MSET k v k v        first 1, last -1, step 2
EVAL script 1 key   movable: the number of keys is in the command
SORT key STORE to   movable in another way: the engine says which (COMMAND GETKEYS)
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model.command import Command
from braidstream.net.resp import Words
from braidstream.protocol.plan import Batch, Replies

# Where the number of keys is. The keys follow.
_NUMBER_AT: Final = dict.fromkeys(
    (b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO", b"FCALL", b"FCALL_RO", b"BLMPOP", b"BZMPOP"), 2
) | dict.fromkeys((b"LMPOP", b"ZMPOP", b"SINTERCARD", b"ZINTERCARD", b"ZINTER", b"ZUNION", b"ZDIFF"), 1)

Send = Callable[[Batch], Awaitable[Replies]]


@dataclass(frozen=True, slots=True)
class Row:
    """One command of the table. movable: the positions do not say all its keys."""

    first: int
    last: int
    step: int
    movable: bool
    reads: bool


class CommandKeys:
    """The table of one engine."""

    def __init__(self, reply: Sequence[Any]) -> None:
        self._rows = dict[bytes, Row]()
        for row in reply:
            self._add(row)

    def _add(self, row: Any) -> None:
        name, flags = bytes(row[0]).upper(), {bytes(flag) for flag in row[2]}
        found = Row(int(row[3]), int(row[4]), int(row[5]), b"movablekeys" in flags, b"readonly" in flags)
        self._rows[name] = found
        for each in row[9] if len(row) > 9 else ():
            self._add(each)

    def row_of(self, words: Words) -> Row | None:
        """The row of a command, or of its subcommand. None if the engine does not know it."""
        name = words[0].upper()
        sub = self._rows.get(name + b"|" + words[1].upper()) if len(words) > 1 else None
        return sub or self._rows.get(name)

    def only_reads(self, words: Words) -> bool:
        row = self.row_of(words)
        return row is not None and row.reads

    async def keys_of(self, words: Words, send: Send) -> Sequence[bytes]:
        """The keys of a command; none if it may go to any node. A malformed one has none: the engine that
        gets it answers with its error."""
        row = self.row_of(words)
        if row is None:
            return ()
        if (at := _NUMBER_AT.get(words[0].upper())) is not None:
            return numbered(words, at)
        if row.movable:
            command: Command = ("COMMAND", "GETKEYS", *words)
            [reply] = await send(Batch([command], resend=True, attempt=True))
            return () if isinstance(reply, ReplyError) else reply
        if not row.first:
            return ()
        end = row.last if row.last >= 0 else len(words) + row.last
        return words[row.first : end + 1 : row.step]


def numbered(words: Sequence[bytes], at: int) -> Sequence[bytes]:
    """Keys after their number; none if that is no number, or too large."""
    try:
        count = int(words[at])
    except (IndexError, ValueError):
        return ()
    return words[at + 1 : at + 1 + count] if 0 < count < len(words) - at else ()

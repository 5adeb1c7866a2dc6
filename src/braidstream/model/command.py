"""A native command: its words, and the bytes that an engine reads."""

from collections.abc import Callable, Iterable
from typing import Final

import hiredis

Command = tuple[bytes | str | int, ...]

# RESP prefixes: `$<length>` of a short word, `*<words>` of a short command.
HEADS: Final = [b"$%d" % length for length in range(4096)]
COUNTS: Final = {b"*%d" % count: count for count in range(1, 257)}

pack_one: Final[Callable[[Command], bytes]] = hiredis.pack_command  # type: ignore[assignment]  # the stub is wrong


def pack(commands: Iterable[Command]) -> bytes:
    return b"".join(map(pack_one, commands))


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)

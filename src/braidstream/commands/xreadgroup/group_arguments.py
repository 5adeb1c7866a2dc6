"""The arguments of XREADGROUP, parsed in the engine's order, refused with its error texts."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from braidstream.commands.arguments import Argv, fail, integer, option, positive
from braidstream.model import ids

# Command lines up to this many bytes are cached.
SHORT: Final = 500
NOT_IDLE: Final = "ERR min-idle-time is not an integer or out of range"


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """XREADGROUP, parsed."""

    group: bytes
    consumer: bytes
    names: list[bytes]
    positions: list[bytes]
    count: int | None
    block_ms: int | None
    noack: bool
    claim_ms: int | None = None
    max_count: int | None = None
    max_size: int | None = None

    @property
    def limited(self) -> bool:
        """Whether the reply has a cap over all streams, or claims: then native reads are not enough."""
        return self.claim_ms is not None or self.max_count is not None or self.max_size is not None


def parse(argv: Argv) -> ReadGroup | None:
    """The parsed command. A consumer repeats the same words, so short ones are parsed once."""
    return _parsed_before(tuple(argv)) if sum(map(len, argv)) < SHORT else _parse(argv)


@lru_cache(maxsize=1_000)
def _parsed_before(argv: tuple[bytes, ...]) -> ReadGroup | None:
    return _parse(list(argv))


def _parse(argv: Argv) -> ReadGroup | None:
    """XREADGROUP GROUP group consumer [COUNT n] [MAXCOUNT n] [MAXSIZE bytes] [BLOCK ms] [CLAIM min-idle]
    [NOACK] STREAMS key ... id ...

    None if streams and IDs differ in number: engines word that error differently, so the engine answers.
    """
    group = consumer = count = block_ms = claim_ms = max_count = max_size = None
    noack, at = False, 1
    while at < len(argv):
        word, more = option(argv[at]), len(argv) - 1 - at
        if word == b"BLOCK" and more:
            block_ms, at = integer(argv[at + 1], "ERR timeout is not an integer or out of range"), at + 1
            if block_ms < 0:
                fail("ERR timeout is negative")
        elif word == b"COUNT" and more:
            count, at = max(integer(argv[at + 1]), 0) or None, at + 1
        elif word == b"MAXCOUNT" and more:
            max_count, at = positive(argv[at + 1], "MAXCOUNT"), at + 1
        elif word == b"MAXSIZE" and more:
            max_size, at = positive(argv[at + 1], "MAXSIZE"), at + 1
        elif word == b"CLAIM" and more:
            claim_ms, at = integer(argv[at + 1], NOT_IDLE), at + 1
            if claim_ms < 0:
                fail("ERR min-idle-time must be a positive integer")
        elif word == b"GROUP" and more >= 2:
            group, consumer, at = argv[at + 1], argv[at + 2], at + 2
        elif word == b"NOACK":
            noack = True
        elif word == b"STREAMS" and more:
            rest = argv[at + 1 :]
            if len(rest) % 2:
                return None
            if group is None or consumer is None:
                fail("ERR Missing GROUP option for XREADGROUP")
            if max_count is not None and count is not None and max_count < count:
                fail("ERR MAXCOUNT must be greater than or equal to COUNT")
            half = len(rest) // 2
            # The engine's own form of `>` is the largest ID.
            positions = [b">" if ids.parse(word) == ids.LAST else word for word in rest[half:]]
            caps = (claim_ms, max_count, max_size)
            return ReadGroup(group, consumer, rest[:half], positions, count, block_ms, noack, *caps)
        else:
            fail("ERR syntax error")
        at += 1
    return fail("ERR syntax error")

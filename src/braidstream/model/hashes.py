"""The hash of strings in the engine's Lua, and whether words were made to share it (engine/collisions.py)."""

from collections import Counter
from collections.abc import Collection
from typing import Final

_BUCKETS: Final = 0xFFFF


def share_buckets(words: Collection[bytes]) -> bool:
    """Whether many of these words, all of them different, share a place of Lua's table of strings."""
    buckets = Counter(_hash(word) & _BUCKETS for word in words)
    pairs = sum(count * (count - 1) // 2 for count in buckets.values())
    # Of usual words one pair in 65,536 shares a bucket.
    return pairs > 3 + len(words) ** 2 // 10_000


def sampled(words: Collection[bytes], most: int) -> set[bytes]:
    """About so many of them. Nobody can foresee which: Python's own hash has a secret."""
    step = 1 + len(words) // most
    return {word for word in words if hash(word) % step == 0}


def _hash(word: bytes) -> int:
    """That of Lua 5.1, over all bytes."""
    value = len(word)
    for byte in reversed(word):
        value = (value ^ ((value << 5) + (value >> 2) + byte)) & 0xFFFFFFFF
    return value

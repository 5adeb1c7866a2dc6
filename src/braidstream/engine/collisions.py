"""Whether words were made so that all of them have the same hash in the engine's Lua.

Lua looks a string up among all that have its hash, whenever it makes one. In Redis, and in Valkey before 9,
the hash has no secret, so anyone can find any number of words with one hash. The time for n of them grows
with n * n: 50,000 take 7 s, in which the engine does nothing else, and FUNCTION KILL does not help. They need
not come in one call: Lua keeps strings for a while after their last use.
"""

import random
from collections.abc import Callable
from typing import Final

from braidstream.model.hashes import share_buckets

# Fewer words at once are not looked at: alone they cost less than a millisecond.
_FEW: Final = 256
# A small sample shows that most words collide. Of many words it also shows groups of a hundredth.
_MANY: Final = 2_048
_SAMPLE, _LARGE_SAMPLE = 16, 1_000
# Bytes of a sample that are looked at, for each word: 60 ns a byte.
_BYTES: Final = 250


def collide(count: int, word_at: Callable[[int], bytes]) -> bool:
    """Judged by a random sample: the order of the words is the sender's. False for few words or fewer."""
    if count <= _FEW:
        return False
    seen, size = set[bytes](), 0
    most = _SAMPLE if count <= _MANY else _LARGE_SAMPLE
    for at in random.sample(range(count), most):
        word = word_at(at)
        size += len(word)
        if size > most * _BYTES:
            break
        seen.add(word)
    return share_buckets(seen)

"""Words with the same hash in Lua 5.1, as an attacker makes them.

Two blocks of five bytes that lead from one state of the hash to the same next one are found at random, 17
times. Each word takes one of the two at each place, so there are 2 ** 17 of them.
"""

import random
from functools import cache
from typing import Final

_PLACES: Final = 17
_SIZE: Final = 5
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@cache
def words_that_collide(count: int, before: int = 0) -> list[bytes]:
    """The first `count` of them. Finding the blocks takes half a second: ask in a test, not in a module.

    before: bytes that are put before each of them, the same ones. Without them the words do not collide.
    """
    blocks, state = list[tuple[bytes, bytes]](), _PLACES * _SIZE + before
    dice = random.Random(1)
    while len(blocks) < _PLACES:
        block, state = _pair_from(state, dice)
        blocks.append(block)
    # Lua begins at the end of a word.
    return [
        b"".join(block[number >> place & 1] for place, block in enumerate(blocks))[::-1]
        for number in range(count)
    ]


def _pair_from(state: int, dice: random.Random) -> tuple[tuple[bytes, bytes], int]:
    found = dict[int, bytes]()
    while True:
        block, after = bytes(dice.choices(_LETTERS, k=_SIZE)), state
        for byte in block:
            after = (after ^ ((after << 5) + (after >> 2) + byte)) & 0xFFFFFFFF
        if found.setdefault(after, block) != block:
            return (found[after], block), after

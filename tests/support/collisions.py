"""Words with the same hash in Lua 5.1, as an attacker makes them.

Two blocks of five bytes that lead from one state of the hash to the same next one are found at random, 17
times. Each word takes one of the two at each place, so there are 2 ** 17 of them.
"""

import random
from collections.abc import Iterator
from typing import Final

_PLACES: Final = 17
_SIZE: Final = 5
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def words_that_collide(count: int) -> Iterator[bytes]:
    blocks, state = list[tuple[bytes, bytes]](), _PLACES * _SIZE
    dice = random.Random(1)
    while len(blocks) < _PLACES:
        block, state = _pair_from(state, dice)
        blocks.append(block)
    for number in range(count):
        # Lua begins at the end of a word.
        yield b"".join(block[number >> place & 1] for place, block in enumerate(blocks))[::-1]


def _pair_from(state: int, dice: random.Random) -> tuple[tuple[bytes, bytes], int]:
    found = dict[int, bytes]()
    while True:
        block, after = bytes(dice.choices(_LETTERS, k=_SIZE)), state
        for byte in block:
            after = (after ^ ((after << 5) + (after >> 2) + byte)) & 0xFFFFFFFF
        if found.setdefault(after, block) != block:
            return (found[after], block), after

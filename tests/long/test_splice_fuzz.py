"""Hostile and damaged pages: each is refused, or spliced to what a parser reads in it.

BRAID_PAGES says how many (make fuzz-pages: a million). BRAID_SEED replays one of them.
"""

import os
import random
from collections import Counter

import pytest

from braidstream.replication.link import batches, splice
from tests.support.pages import Entry, check, page

PAGES = int(os.environ.get("BRAID_PAGES", 3_000))
SEED = os.environ.get("BRAID_SEED")
PLAIN = [b"", b"a", b"bc", b"0", b"*2", b"$1", b"\r", b"-1", b"x" * 99, bytes(range(11, 256))]
EVIL = [
    b"\n",
    b"\r\n",
    b"\r\n*2\r\n",
    b"$3\r\n",
    b"*8\r\n",
    b"$1\r\na\r\n",
    b"\r\n$0\r\n\r\n",
    b"*0\r\n",
    b"*-1\r\n",
]
LENGTHS = [9, 10, 99, 100, 999, 1_000, 9_999, 10_000, 10_001]
NATIVES = [
    b"",
    b"-",
    b"5",
    b"5-",
    b"-5",
    b"*",
    b"5-*",
    b"MAXLEN",
    b"99999999999999999999-1",
    b"5-1\r",
    b"5-1 ",
]


def entries_of(dice: random.Random) -> list[Entry]:
    width, count = dice.choice((0, 1, 2, 2, 4, 4, 6, 8, 12)), dice.randrange(9)
    pieces = PLAIN if dice.random() < 0.6 else PLAIN + EVIL
    found = list[Entry]()
    for number in range(count):
        native = b"%d-%d" % (10**12 + number, dice.randrange(100))
        if dice.random() < 0.01:
            native = dice.choice(NATIVES)
        wide = width + dice.choice((-2, 1, 2)) if dice.random() < 0.01 else width
        words = [b"".join(dice.choices(pieces, k=dice.randrange(3))) for _ in range(max(0, wide))]
        if words and dice.random() < 0.02:
            words[dice.randrange(len(words))] = b"y" * dice.choice(LENGTHS)
        found.append((native, words))
    return found


def damage(reply: bytearray, dice: random.Random) -> None:
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(reply) + 1)
        lines = [place for place, byte in enumerate(reply) if byte in b"$*\r\n"]
        if lines and dice.random() < 0.7:
            at = dice.choice(lines)
        upto = at + dice.randrange(4)
        if dice.random() < 0.1:
            new = bytes(reply[dice.randrange(len(reply) + 1) :][:50])
        else:
            new = bytes(dice.choices(b"$*\r\n0123456789-+:a\0\xff", k=dice.randrange(4)))
        reply[at:upto] = new


def page_of(seed: int) -> tuple[str, bytearray]:
    dice = random.Random(seed)
    reply = page(entries_of(dice))
    if dice.random() < 0.4:
        damage(reply, dice)
        return "damaged", reply
    return "whole", reply


def test_no_page_is_spliced_to_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splice, "LEAST_ENTRIES", 1)
    monkeypatch.setattr(splice, "MOST_BYTES", 20_000)
    monkeypatch.setattr(batches, "BATCH_ENTRIES", 3)
    monkeypatch.setattr(batches, "BATCH_BYTES", 1_000)
    seen = Counter[str]()
    for seed in [int(SEED)] if SEED else range(PAGES):
        kind, reply = page_of(seed)
        try:
            seen[kind + " spliced" * check(reply)] += 1
        except Exception as error:
            raise AssertionError(f"BRAID_SEED={seed}: {reply!r:.2000}") from error
    print(dict(seen))
    assert SEED or min(seen[kind] for kind in ("whole", "whole spliced", "damaged", "damaged spliced")) > 0

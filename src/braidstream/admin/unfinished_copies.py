"""Copies that a client left behind: it was killed in the middle of COPY, RENAME, RESTORE or DUMP, or of
`braid spark audit --repair`. Those of `braid log compact` expire.

Clients also delete their copy after an error. A client that was killed cannot, and a program cannot know
whether a copy is still being made: for a large stream that takes long. So `braid doctor` names the old ones.
"""

from dataclasses import dataclass
from typing import Final

from braidstream.commands.rename import made_s
from braidstream.model import keys
from braidstream.protocol.identify import read_ms
from braidstream.protocol.plan import Batch, Plan

_PAGE: Final = 1_000
# Younger ones may still be under way.
_OLD_S: Final = 3_600


@dataclass(frozen=True, slots=True, order=True)
class UnfinishedCopy:
    key: bytes
    age_s: int


def find_unfinished() -> Plan[list[UnfinishedCopy]]:
    """Copies that were begun an hour ago or earlier, sorted. Scans the database."""
    now_s = (yield from read_ms()) // 1_000
    found, cursor = set[UnfinishedCopy](), b"0"
    while True:
        [(cursor, listed)] = yield Batch(
            [("SCAN", cursor, "MATCH", keys.COPY + b"*", "COUNT", _PAGE)], resend=True
        )
        ages = ((key, now_s - began) for key in listed if (began := made_s(key)) is not None)
        found.update(UnfinishedCopy(key, age_s) for key, age_s in ages if age_s >= _OLD_S)
        if int(cursor) == 0:
            return sorted(found)

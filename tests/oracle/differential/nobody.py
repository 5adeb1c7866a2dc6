"""Entries that were given back (XNACK): in the bare engine a stand-in owns them, of whom replies say nothing.

bare XPENDING orders g     [2, 1-1, 2-1, [[alice, 1], [differential:nobody, 1]]]
compared as                [2, 1-1, 2-1, [[alice, 1]]]
"""

from collections.abc import Callable
from typing import Any, Final

from tests.oracle.differential.script import Argv, command_of, upper
from tests.oracle.differential.sides import Fault, Reply

STAND_IN: Final = b"differential:nobody"
# It owns them since so long ago that they are idle by every measure; who came first, first.
GIVEN_BACK_MS: Final = 50 * 365 * 24 * 3600 * 1000
# FATAL: the largest count there is, kept a little smaller so that the engine can count on.
FATAL: Final = 2**62
LARGEST: Final = 2**63 - 1


def deliveries(count: int) -> int:
    return LARGEST if count >= FATAL // 2 else count


def retold(argv: Argv, reply: Reply, has_stand_in: Callable[[bytes, bytes], bool]) -> Reply:
    """A reply of the bare engine, as an engine with XNACK would give it."""
    if isinstance(reply, Fault) or not isinstance(reply, list | dict):
        return reply
    command, kind = command_of(argv), upper(argv[1]) if len(argv) > 1 else b""
    if command == b"XPENDING" and len(argv) == 3:
        total, first, last, counts = reply
        owners = None if counts is None else [each for each in counts if each[0] != STAND_IN]
        return [total, first, last, owners]
    if command == b"XPENDING":
        return [_row(row, never=-1) for row in reply]
    if command == b"XINFO" and kind == b"CONSUMERS":
        return [info for info in reply if get(info, b"name") != STAND_IN]
    if command == b"XINFO" and kind == b"GROUPS":
        for info in reply:
            if has_stand_in(argv[2], get(info, b"name")):
                put(info, b"consumers", get(info, b"consumers") - 1)
    if command == b"XINFO" and kind == b"STREAM" and len(argv) > 3:
        for group in get(reply, b"groups"):
            put(group, b"pending", [_row(row, never=0) for row in get(group, b"pending")])
            consumers = [info for info in get(group, b"consumers") if get(info, b"name") != STAND_IN]
            put(group, b"consumers", consumers)
            for info in consumers:
                rows = [[entry, since, deliveries(count)] for entry, since, count in get(info, b"pending")]
                put(info, b"pending", rows)
    return reply


def _owner(name: bytes) -> bytes:
    return b"" if name == STAND_IN else name


def _row(row: list[Any], *, never: int) -> list[Any]:
    entry, owner, since, count = row
    return [entry, _owner(owner), never if owner == STAND_IN else since, deliveries(count)]


def get(info: Any, key: bytes) -> Any:
    """A fact of a map, by whichever protocol it came."""
    return info[key] if isinstance(info, dict) else info[info.index(key) + 1]


def put(info: Any, key: bytes, value: Any) -> None:
    info[key if isinstance(info, dict) else info.index(key) + 1] = value

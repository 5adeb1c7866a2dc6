"""Hostile bytes at a running gateway: no crash, no hang, no leak, and the next client gets its own answers.

BRAID_CASES   how many (make fuzz: 1,000,000)
"""

import os
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.gateways import Line, Served, packed
from tests.support.regions import become
from tests.support.servers import Engine
from tests.support.waiting import eventually

CI_CASES = 1_500
CASES_PER_CONNECTION = 8
STALLED = 64
pytestmark = [
    pytest.mark.timeout(0 if "BRAID_CASES" in os.environ else 300),
    pytest.mark.usefixtures("sound"),
    pytest.mark.long,
]

NUMBERS = [b"-1", b"0", b"1", b"2", b"10", b"2147483648", b"9" * 30]
MARKS = [
    b"*",
    b"$",
    b"\r\n",
    b"\r",
    b"\n",
    b" ",
    b"\0",
    b'"',
    b"'",
    b"+OK\r\n",
    b":1\r\n",
    b"%1\r\n",
    b">1\r\n",
]
HEADS = [b"*1\r\n", b"*3\r\n$4\r\nXADD\r\n", b"$0\r\n\r\n", b"*-1\r\n", b"$-1\r\n", b"*1\r\n*1\r\n*1\r\n"]
LINES = [
    "PING",
    "XADD h * a b",
    "XRANGE h - +",
    "MULTI",
    "EXEC",
    "SUBSCRIBE c",
    "HELLO 3",
    "CLIENT REPLY OFF",
]
SAID = ["XADD h * a b", "XADD h", "XREADGROUP GROUP", "WATCH h", "XINFO STREAM", "XREAD BLOCK 1 STREAMS h $"]
PARTS = [
    *NUMBERS,
    *MARKS,
    *HEADS,
    *(line.encode() + b"\r\n" for line in LINES),
    *(packed(*line.split()) for line in SAID),
    packed("XADD", "h", "*", "a" * 5000, "\r\n"),
    packed(b""),
    packed(b"\xff\x00", b"\r\n"),
]


def case(dice: random.Random) -> bytes:
    """A few parts, some of them torn or with a byte changed."""
    data = bytearray(b"".join(dice.choices(PARTS, k=dice.randrange(1, 12))))
    if data and dice.random() < 0.3:
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data[: dice.randrange(len(data) + 1)] if dice.random() < 0.2 else data)


def memory_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def stalled(port: int) -> Iterator[socket.socket]:
    """Clients that stay: some do not read what they asked for, some never finish their first command."""
    for number in range(2 * STALLED):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        if number % 2:
            client.sendall(packed("XRANGE", "large", "-", "+") * 50)
        else:
            client.sendall(b"*2\r\n$4\r\nAUTH\r\n$16384\r\n" + b"x" * 16_000)
        yield client


def test_hostile_bytes_hurt_nobody_else(engine: Engine) -> None:
    become(engine)
    wanted, dice, at_half = int(os.environ.get("BRAID_CASES", CI_CASES)), random.Random(7), 0
    with Served(engine.url) as gateway, Line(gateway.port) as fair:
        fair.say("XADD", "large", "*", "n", "x" * 100_000)
        waiting = list(stalled(gateway.port))
        for number in range(0, wanted, CASES_PER_CONNECTION):
            with socket.create_connection(("127.0.0.1", gateway.port), 10) as hostile, suppress(OSError):
                for _ in range(CASES_PER_CONNECTION):
                    hostile.sendall(case(dice))
                if dice.random() < 0.5:
                    hostile.shutdown(socket.SHUT_WR)
                    while hostile.recv(65536):
                        pass
            token = f"n{number}"
            assert fair.say("ECHO", token) == b"$%d\r\n%b\r\n" % (len(token), token.encode())
            assert fair.say("XADD", "fair", "*", "n", number).startswith(b"$")
            if number % (100 * CASES_PER_CONNECTION) == 0:
                fair.say("DEL", "h")  # or XRANGE takes more and more memory, rightly
            if number >= wanted // 2 and not at_half:
                at_half = memory_kb()
            if number % 100_000 < CASES_PER_CONNECTION and "BRAID_CASES" in os.environ:
                print(f"{number:,} cases, {memory_kb():,} kB", file=sys.__stderr__, flush=True)
        assert len(gateway.gateway.hub.clients) >= 2 * STALLED + 1, "those that wait should still be there"
        for client in waiting:
            client.close()
        eventually(
            lambda: len(gateway.gateway.hub.clients) == 1, within_s=20, why="hostile clients should be gone"
        )
        assert gateway.gateway.hub.backends.owned <= 1
        assert fair.say("XLEN fair") == b":%d\r\n" % len(range(0, wanted, CASES_PER_CONNECTION))
        assert memory_kb() - at_half < 20_000


def test_a_client_that_hangs_up_while_its_appends_are_under_way_takes_nobody_along(engine: Engine) -> None:
    """It is leaving, so its XREAD does not wait; a failed write shows that it has left."""
    become(engine)
    said = b"NOPE\r\n" + packed("XREAD", "BLOCK", 1, "STREAMS", "h", "$") + packed("XADD", "h", "*", "a", "b")
    with Served(engine.url) as gateway, Line(gateway.port) as fair:
        for _ in range(300):
            with Line(gateway.port) as hostile:
                hostile.socket.sendall(said)
            assert fair.say("XADD", "h", "*", "a", "b").startswith(b"$")

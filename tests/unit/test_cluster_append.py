"""The order of a client's appends before a cluster, without servers."""

import asyncio
from types import SimpleNamespace
from typing import Any

from braidstream.errors import ReplyError
from braidstream.gateway.append import FastAppends
from braidstream.gateway.hub import GatewayMetrics
from braidstream.model.region import Region

MOVED = ReplyError("MOVED 1 127.0.0.1:7001")


def xadd(name: bytes, value: bytes) -> list[bytes]:
    return [b"XADD", name, b"*", b"n", value]


def test_an_append_that_was_refused_waits_for_earlier_ones_at_a_slower_node() -> None:
    async def run() -> tuple[list[list[bytes]], list[bytes]]:
        repeated, written = list[list[bytes]](), list[bytes]()

        async def run_plan(words: list[bytes]) -> bytes:
            repeated.append(words)
            await asyncio.sleep(0)
            return b"$3\r\n9-%b\r\n" % words[-1]

        hub = SimpleNamespace(
            metrics=GatewayMetrics(), traces=SimpleNamespace(enabled=False), run=asyncio.ensure_future
        )
        database = SimpleNamespace(cache=SimpleNamespace(region=Region(1, "us-east", 1, "strict")))
        client: Any = SimpleNamespace(
            hub=hub, database=database, write=written.append, settled=lambda: None, close=lambda: None
        )
        appends = FastAppends(client, run_plan)
        first, second = list[bytes](), list[bytes]()
        appends._slots.extend((first, second))
        appends._answer(0.0, second, [xadd(b"a", b"2")], 1, 0, [MOVED])
        for _ in range(10):
            await asyncio.sleep(0)
        assert not repeated, "another node has not answered the run before"
        appends._answer(0.0, first, [xadd(b"a", b"1"), xadd(b"b", b"1")], 2, 0, [MOVED, b"5-0"])
        await appends.until_quiet()
        return repeated, written

    repeated, written = asyncio.run(run())
    assert repeated == [xadd(b"a", b"1"), xadd(b"a", b"2")]
    assert b"".join(written) == b"$3\r\n9-1\r\n$3\r\n5-1\r\n$3\r\n9-2\r\n"


def test_appends_after_one_whose_node_is_lost_stay_in_the_queue() -> None:
    posted = list[tuple[bytes, int]]()

    class Conn:
        def post(self, data: bytes, count: int, done: Any) -> None:
            posted.append((data, count))

    homes = {name: SimpleNamespace(key=b"key-" + name, ensure=b"<ensure>") for name in (b"a", b"b")}
    lane = SimpleNamespace(
        only=None, slots=SimpleNamespace(version=1), connection_for={b"key-a": Conn(), b"key-b": None}.get
    )
    hub = SimpleNamespace(metrics=GatewayMetrics(), traces=SimpleNamespace(enabled=False), held=None)
    database = SimpleNamespace(cache=SimpleNamespace(homes=homes), is_fresh=True, used=False)
    client: Any = SimpleNamespace(hub=hub, database=database, lane=lane, is_plain=True)
    appends = FastAppends(client, lambda words: None)  # type: ignore[arg-type, return-value]
    assert appends.run([xadd(b"a", b"1"), xadd(b"a", b"2"), xadd(b"b", b"1"), xadd(b"a", b"3")]) == 2
    [(data, count)] = posted
    assert (data.count(b"<ensure>"), data.count(b"XADD"), count) == (1, 2, 3)

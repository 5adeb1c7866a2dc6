"""When the gateway gives up a connection to the engine that says nothing. Without servers."""

import asyncio
from typing import Any

from braidstream.engine.connection import Connection, Flight, parse_address
from braidstream.gateway.lanes import SILENCE_S, SharedConnection


class _Transport:
    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass

    abort = close


def test_a_lane_with_one_client_is_silent_only_if_nothing_arrives() -> None:
    """The client's appends share a flight: whenever the gateway looks, the same one may be under way."""

    async def run() -> list[bool]:
        answers = list[Any]()
        lane = SharedConnection(parse_address("redis://localhost:1"), lambda: None, None)
        lane.conn = conn = Connection("engine")
        conn.connection_made(_Transport())  # type: ignore[arg-type]
        flight, open_at = Flight(1, answers.append, True, 0.0, 0.0), list[bool]()
        for look in range(4):
            conn.post_again(b"append", flight)
            lane.leave_silent(look * SILENCE_S)
            open_at.append(conn.lost is None)
            conn.data_received(b"$3\r\n7-%d\r\n" % look)
        conn.post_again(b"append", flight)
        for look in range(4, 7):
            lane.leave_silent(look * SILENCE_S)
            open_at.append(conn.lost is None)
        assert answers[:4] == [[b"7-%d" % look] for look in range(4)]
        return open_at

    assert asyncio.run(run()) == [True] * 6 + [False]

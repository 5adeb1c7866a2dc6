"""Parts of a gateway before a cluster, without servers: what is sent again, and what is closed."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from braidstream.clusters.slots import SlotMap
from braidstream.engine.address import parse_address
from braidstream.engine.sentinels import Place
from braidstream.errors import LostError
from braidstream.gateway import router
from braidstream.gateway.lanes import Lane

PLACES: list[Place] = [("node", port) for port in (1, 2, 3)]


async def nothing(*_: Any) -> None:
    pass


def test_flushall_runs_once_on_a_node_while_another_fails_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a replica takes over from a node that was flushed: a client may have written there since."""
    flushed = list[int]()
    maps = [{0: ("node", 4), 50: ("node", 2), 99: ("node", 3)}, dict(zip((0, 50, 99), PLACES, strict=True))]

    async def at(client: Any, place: Place, words: list[bytes]) -> bytes:
        flushed.append(place[1])
        if flushed == [1, 2]:
            raise LostError("node:2", "it does not answer", wrote=False)
        return b"OK"

    monkeypatch.setattr(router, "_at", at)
    monkeypatch.setattr(router, "_by_lowest_slot", lambda client: maps.pop())
    client: Any = SimpleNamespace(
        database=SimpleNamespace(refresh_if_due=nothing), enter_lane=nothing, session=SimpleNamespace(resp=2)
    )
    assert asyncio.run(router._everywhere(client, [b"FLUSHALL"])) == b"+OK\r\n"
    assert flushed == [1, 2, 2, 3]


def test_a_lane_that_is_opened_after_the_last_client_left_is_closed() -> None:
    here = parse_address("redis://127.0.0.1:7000")
    nodes: Any = SimpleNamespace(slots=SimpleNamespace(only=None))
    lane = Lane(here, lambda: None, nodes)
    lane.close()
    assert lane.at(PLACES[0])._closed


def test_one_server_has_every_slot_and_keeps_its_socket_and_database() -> None:
    here = parse_address("unix:///run/engine.sock?db=3")
    slots = SlotMap.of_one(here)
    assert slots.homes() == [slots.only] == list({slots.owner(slot) for slot in (0, 8_000, 16_383)})
    assert slots.address(slots.homes()[0]) == here
    before = slots.version
    asyncio.run(slots.read())
    assert slots.version == before

"""A sink that goes on in another region: it waits for what it must know or refuses, never writes twice."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from braidstream.errors import SinkError
from braidstream.spark.ledger import Publisher
from tests.support.servers import Engine
from tests.support.sinks import Crash, Sink, crash_after, numbers
from tests.support.world import World


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    with Engine("valkey") as other:
        made = World([engine, other])
        yield made
        made.close()


Move = Callable[[], Sink]


def both(world: World, first: int, **options: Any) -> Sink:
    """The same query, with one region first and the other to fall back to."""
    urls = [engine.url for engine in world.engines]
    order = urls if first == 1 else urls[::-1]
    return Sink(order[0], fallbackUrls=order[1], **options)


def everywhere(world: World) -> list[list[int]]:
    world.sync()
    return [sorted(numbers(engine)) for engine in world.engines]


def test_a_restart_in_another_region_finishes_there_what_was_begun_here(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(world, 1).run(0, [0])
    with monkeypatch.context() as patched:
        crash_after(patched, Publisher, "_append", 1)
        with pytest.raises(Crash):
            both(world, 1).run(1, [1, 2, 3], [4, 5])
    both(world, 2).run(1, [5, 4], [3, 2, 1])
    both(world, 2).run(2, [6])
    assert everywhere(world) == [[0, 1, 2, 3, 4, 5, 6]] * 2


def test_a_batch_that_was_done_is_not_done_again_in_another_region(world: World) -> None:
    both(world, 1).run(0, [0, 1])
    both(world, 2).run(0, [0, 1])
    both(world, 2).run(1, [2])
    both(world, 1).run(1, [2])
    both(world, 1).run(2, [3])
    assert everywhere(world) == [[0, 1, 2, 3]] * 2


def test_a_region_that_cannot_know_refuses_and_says_what_to_do(world: World) -> None:
    both(world, 1).run(0, [0])
    both(world, 1).run(1, [1])
    world.engines[0].pause()
    try:
        away = both(world, 2, **{"redis.socket_timeout": "0.3", "redis.socket_connect_timeout": "0.3"})
        with pytest.raises(SinkError, match="cannot tell whether batch 2 was written.*takeOver"):
            away.run(2, [2])
    finally:
        world.engines[0].resume()
    away.run(2, [2])  # it answers again
    assert everywhere(world) == [[0, 1, 2]] * 2


def test_what_has_travelled_is_known_although_the_other_region_is_away(world: World) -> None:
    both(world, 1).run(0, [0])
    both(world, 1).run(1, [1])
    world.sync()
    world.engines[0].pause()
    try:
        away = both(world, 2, **{"redis.socket_timeout": "0.3", "redis.socket_connect_timeout": "0.3"})
        away.run(1, [1])  # the batch that was under way when the region went away
        with pytest.raises(SinkError, match="cannot tell whether batch 2"):
            away.run(2, [2])
        away.options["takeOver"] = "true"  # an operator says that no query runs there any more
        away.run(2, [2])
    finally:
        world.engines[0].resume()
    both(world, 1).run(2, [2])
    both(world, 1).run(3, [3])
    assert everywhere(world) == [[0, 1, 2, 3]] * 2


def test_a_driver_left_behind_in_the_other_region_is_fenced(world: World) -> None:
    both(world, 1).run(0, [0])
    stale = both(world, 1)
    message = stale.write([{"n": 1}])
    both(world, 2).run(1, [1])
    stale.commit(1, message)
    assert everywhere(world) == [[0, 1]] * 2

"""A sink that goes on in another region: it waits for what it must know or refuses, never writes twice."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from braidstream.errors import SinkError
from braidstream.spark.sink.commit import Committer
from braidstream.spark.sink.ledger import Book, Publisher
from tests.support.servers import Engine
from tests.support.sinks import Crash, Job, Sink, crash_after, numbers
from tests.support.world import World


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    with Engine("valkey-9.1") as other:
        made = World([engine, other])
        yield made
        made.close()


Move = Callable[[], Sink]


IMPATIENT = {"redis.socket_timeout": "1", "redis.socket_connect_timeout": "1"}


def order(world: World, first: int) -> list[str]:
    urls = [engine.url for engine in world.engines]
    return urls if first == 1 else urls[::-1]


def both(world: World, first: int, **options: Any) -> Sink:
    """The same query, with one region first and the other to fall back to."""
    here, there = order(world, first)
    return Sink(here, fallbackUrls=there, **options)


def save(world: World, first: int, version: int, numbers: list[int], **options: Any) -> None:
    """The same batch write, with one region first and the other to fall back to."""
    here, there = order(world, first)
    Job(here, fallbackUrls=there, txnAppId="nightly", txnVersion=version, **options).save(numbers)


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
        away = both(world, 2, **IMPATIENT)
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
        away = both(world, 2, **IMPATIENT)
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


def test_a_takeover_does_not_repeat_a_batch_that_is_complete_here(world: World) -> None:
    both(world, 1).run(0, [0])
    both(world, 1).run(1, [1, 2, 3])
    world.sync()
    world.engines[0].pause()
    try:
        away = both(world, 2, takeOver="true", **IMPATIENT)
        away.run(1, [3, 2, 1])  # the driver died before Spark noted that batch 1 is done
        both(world, 2, takeOver="true", **IMPATIENT).run(2, [4])
    finally:
        world.engines[0].resume()
    assert everywhere(world) == [[0, 1, 2, 3, 4]] * 2


def test_a_driver_left_behind_in_the_other_region_is_fenced(world: World) -> None:
    both(world, 1).run(0, [0])
    stale = both(world, 1)
    message = stale.write([{"n": 1}])
    both(world, 2).run(1, [1])
    stale.commit(1, message)
    assert everywhere(world) == [[0, 1]] * 2


def test_a_driver_that_is_fenced_after_it_asked_does_not_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one has queried, the new one takes over, and only then the old one decides."""
    old, new = both(world, 1), both(world, 2)
    old.run(0, [0])
    asked, real = [old.write([{"n": 1}]), new.write([{"n": 1}])], Committer._consult

    def overtaken(self: Any, *args: Any, **options: Any) -> Any:
        found = real(self, *args, **options)
        monkeypatch.setattr(Committer, "_consult", real)
        new.commit(1, asked[1])
        return found

    monkeypatch.setattr(Committer, "_consult", overtaken)
    old.commit(1, asked[0])
    assert everywhere(world) == [[0, 1]] * 2


def test_of_two_drivers_that_begin_a_sink_at_once_in_two_regions_one_writes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has queried the other's region, which had no ledger, before either wrote one."""
    one, two = both(world, 1), both(world, 2)
    messages, real = [one.write([{"n": 0}]), two.write([{"n": 0}])], Committer._query_others

    def overtaken(self: Any, *args: Any) -> Any:
        found = real(self, *args)
        monkeypatch.setattr(Committer, "_query_others", real)
        two.commit(0, messages[1])
        return found

    monkeypatch.setattr(Committer, "_query_others", overtaken)
    one.commit(0, messages[0])
    assert everywhere(world) == [[0]] * 2


def test_rows_that_expired_in_one_region_are_written_by_the_replay_in_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    both(world, 1).run(0, [0])
    with monkeypatch.context() as patched:
        crash_after(patched, Book, "decide")
        with pytest.raises(Crash):
            both(world, 1).run(1, [1, 2])
    with world.engines[0].client() as client:
        [staged] = client.keys("bs:stage:*")
        assert client.ttl(staged) > 0
        client.delete(staged)
    both(world, 2).run(1, [2, 1])
    both(world, 1).run(2, [3])
    assert everywhere(world) == [[0, 1, 2, 3]] * 2


def test_a_batch_write_is_done_once_whichever_region_runs_it_again(world: World) -> None:
    save(world, 1, 7, [1, 2, 3])
    save(world, 2, 7, [1, 2, 3])
    save(world, 2, 20, [4])  # versions grow, and may jump
    save(world, 1, 20, [4])
    save(world, 1, 9, [5])  # not above the last that was done
    save(world, 1, 21, [6])
    assert everywhere(world) == [[1, 2, 3, 4, 6]] * 2


def test_a_write_to_another_stream_is_not_taken_for_done_in_another_region(world: World) -> None:
    save(world, 1, 7, [1, 2])
    with pytest.raises(SinkError, match="batch 7 was written to out.* write is to b"):
        save(world, 2, 7, [1, 2], stream="b")


def test_a_batch_write_that_was_begun_in_one_region_is_finished_from_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        crash_after(patched, Publisher, "_append", 1)
        with pytest.raises(Crash):
            save(world, 1, 7, [1, 2, 3, 4, 5])
    save(world, 2, 8, [6])
    save(world, 2, 7, [1, 2, 3, 4, 5])
    assert everywhere(world) == [[1, 2, 3, 4, 5, 6]] * 2


def test_a_batch_write_is_refused_where_it_cannot_be_known_whether_it_was_done(world: World) -> None:
    silent = {"fallbackUrls": "redis://127.0.0.1:1/0", "txnAppId": "nightly"}
    one, two = order(world, 1)
    save(world, 1, 7, [1])
    with pytest.raises(SinkError, match="cannot tell whether batch 7 was written.*do not answer"):
        Job(two, **silent, txnVersion=7).save([1])
    Job(one, **silent, txnVersion=8).save([2])  # the region with the last batch needs no other
    save(world, 2, 9, [3])
    Job(one, txnAppId="nightly", txnVersion=8).save([2])  # known to be done, and who holds the ledger is not
    with pytest.raises(SinkError, match="cannot tell whether batch 9 was written.*not in the list"):
        Job(one, txnAppId="nightly", txnVersion=9).save([3])
    assert everywhere(world) == [[1, 2, 3]] * 2

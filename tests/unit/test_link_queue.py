"""The queue of a link: each stream goes to one of the tasks that wait, when it is due."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from braidstream.replication.daemon.queue import Need, Queue

TASKS = 8


def with_takers(story: Callable[[Queue, list[asyncio.Task[bytes]]], Awaitable[None]]) -> None:
    async def take(queue: Queue) -> bytes:
        return (await queue.take())[0]

    async def whole() -> None:
        queue = Queue()
        tasks = [asyncio.create_task(take(queue)) for _ in range(TASKS)]
        await asyncio.sleep(0)
        try:
            await story(queue, tasks)
        finally:
            for task in tasks:
                task.cancel()

    asyncio.run(whole())


def test_every_stream_goes_to_one_task() -> None:
    async def story(queue: Queue, tasks: list[asyncio.Task[bytes]]) -> None:
        for name in (b"a", b"b", b"a", b"c"):
            queue.add(name, Need.FOLLOW)
        found = [await task for task in tasks[:3]]
        assert sorted(found) == [b"a", b"b", b"c"]
        assert not any(task.done() for task in tasks[3:])

    with_takers(story)


def test_streams_come_when_they_are_due_and_the_earlier_time_wins() -> None:
    async def story(queue: Queue, tasks: list[asyncio.Task[bytes]]) -> None:
        queue.add(b"never", Need.SYNC, 3600.0)
        queue.add(b"late", Need.SYNC, 0.2)
        queue.add(b"soon", Need.SYNC, 60.0)
        queue.add(b"soon", Need.SYNC, 0.1)
        clock, began = asyncio.get_running_loop().time, asyncio.get_running_loop().time()
        assert await tasks[0] == b"soon"
        assert clock() - began >= 0.1
        assert await tasks[1] == b"late"
        assert clock() - began >= 0.2
        assert len(queue) == 3

    with_takers(story)


def test_a_stream_whose_task_was_cancelled_goes_to_another_one() -> None:
    async def story(queue: Queue, tasks: list[asyncio.Task[bytes]]) -> None:
        queue.add(b"a", Need.FOLLOW)  # wakes the first
        tasks[0].cancel()
        tasks[1].cancel()
        assert await tasks[2] == b"a"
        tasks[3].cancel()
        queue.add(b"b", Need.FOLLOW)  # the fourth has not seen yet that it is cancelled
        assert await tasks[4] == b"b"

    with_takers(story)


def test_a_stream_that_changes_while_it_is_taken_comes_again_after_that() -> None:
    async def story(queue: Queue, tasks: list[asyncio.Task[bytes]]) -> None:
        queue.add(b"a", Need.FOLLOW)
        assert await tasks[0] == b"a"
        queue.add(b"a", Need.SYNC)
        await asyncio.sleep(0.05)
        assert not tasks[1].done()
        queue.done(b"a")
        assert await tasks[1] == b"a"

    with_takers(story)


def test_streams_that_are_due_at_one_time_start_together() -> None:
    async def story(queue: Queue, tasks: list[asyncio.Task[bytes]]) -> None:
        for name in (b"a", b"b", b"c"):
            queue.add(name, Need.SYNC, 0.01)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert sorted(task.result() for task in tasks if task.done()) == [b"a", b"b", b"c"]

    with_takers(story)


def test_streams_that_wait_for_their_time_keep_no_task_busy() -> None:
    async def story(queue: Queue, tasks: list[asyncio.Task[bytes]]) -> None:
        for number in range(100):
            queue.add(b"later-%d" % number, Need.SYNC, 60.0)
        assert (len(queue), queue.in_work) == (100, 0)
        for number in range(TASKS + 2):
            queue.add(b"now-%d" % number, Need.SYNC)
        assert queue.in_work == TASKS + 2
        queue.done(await tasks[0])
        assert queue.in_work == TASKS + 1

    with_takers(story)


def test_on_uvloop_times_within_a_millisecond_are_kept() -> None:
    """Its timers for less than that are no timers, and do not know when they ring."""
    uvloop = pytest.importorskip("uvloop")

    async def story() -> None:
        queue = Queue()
        tasks = [asyncio.create_task(queue.take()) for _ in range(TASKS)]
        await asyncio.sleep(0.01)
        for number in range(TASKS):
            queue.add(b"%d" % number, Need.SYNC, 0.0004 - number / 100_000)
        found = await asyncio.gather(*tasks)
        assert {name for name, _ in found} == {b"%d" % number for number in range(TASKS)}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(story())


def test_a_comparison_finds_what_was_heard_before_it() -> None:
    async def story(queue: Queue, tasks: list[asyncio.Task[bytes]]) -> None:
        queue.add(b"a", Need.SYNC)
        assert await tasks[0] == b"a"
        queue.add(b"a", Need.SYNC)
        queue.will_compare(b"a")
        assert len(queue) == 1
        queue.done(b"a")
        assert not queue.in_work
        assert not len(queue)
        queue.add(b"a", Need.SYNC)
        assert await tasks[1] == b"a"

    with_takers(story)


@pytest.mark.parametrize(("need", "delay_s"), [(Need.RELAY, 0.0), (Need.SYNC, 0.1)])
def test_what_a_comparison_does_not_find_stays(need: Need, delay_s: float) -> None:
    async def story(queue: Queue, tasks: list[asyncio.Task[bytes]]) -> None:
        queue.add(b"a", Need.SYNC)
        assert await tasks[0] == b"a"
        queue.add(b"a", need, delay_s)
        queue.will_compare(b"a")
        queue.done(b"a")
        assert await tasks[1] == b"a"

    with_takers(story)


def test_one_of_several_tasks_gets_all_streams_that_are_due() -> None:
    async def story() -> None:
        queue = Queue()
        tasks = [asyncio.create_task(queue.take_some(3)) for _ in range(TASKS)]
        await asyncio.sleep(0)
        for name in (b"a", b"b", b"c", b"d"):
            queue.add(name, Need.FOLLOW)
        queue.add(b"later", Need.FOLLOW, 60.0)
        assert [name for name, _ in await tasks[0]] == [b"a", b"b", b"c"]
        assert [name for name, _ in await tasks[1]] == [b"d"]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks[2:])
        queue.add(b"a", Need.FOLLOW)
        queue.add(b"e", Need.FOLLOW)
        assert [name for name, _ in await tasks[2]] == [b"e"]  # a is taken
        queue.done(b"a")
        assert [name for name, _ in await tasks[3]] == [b"a"]
        for task in tasks:
            task.cancel()

    asyncio.run(story())

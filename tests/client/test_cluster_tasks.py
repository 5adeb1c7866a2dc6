"""`braidstream.asyncio.RedisCluster`: tasks that share it, and tasks that are cancelled."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
import redis.asyncio

import braidstream
import braidstream.asyncio
from tests.support.cluster import Cluster, become_cluster

NAMES = [f"stream-{number}" for number in range(6)]

Story = Callable[[Any], Awaitable[None]]


def run(cluster: Cluster, story: Story) -> None:
    async def tell() -> None:
        async with braidstream.asyncio.RedisCluster.from_url(cluster.url, decode_responses=True) as client:
            await story(client)

    become_cluster(cluster, id_mode="liberal")
    asyncio.run(tell())


async def waiting(cluster: Cluster, clients: int) -> None:
    """Until so many clients wait inside the engines."""

    def count() -> int:
        total = 0
        for node in cluster.nodes:
            with node.client() as operator:
                total += operator.info("clients")["blocked_clients"]
        return total

    async with asyncio.timeout(20):
        while await asyncio.to_thread(count) != clients:
            await asyncio.sleep(0.01)


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("streams", [1, 6])
def test_a_cancelled_wait_ends_in_every_slot_and_the_client_goes_on(cluster: Cluster, streams: int) -> None:
    async def story(client: Any) -> None:
        reader = asyncio.create_task(client.xread(dict.fromkeys(NAMES[:streams], "$"), block=0))
        await waiting(cluster, streams)
        await cancelled(reader)
        await waiting(cluster, 0)
        for n, name in enumerate(NAMES):
            entry = await client.xadd(name, {"n": str(n)})
            assert await client.xrange(name) == [(entry, {"n": str(n)})]

    run(cluster, story)


def test_what_a_group_delivered_to_a_cancelled_wait_is_pending(cluster: Cluster) -> None:
    async def story(client: Any) -> None:
        for name in NAMES:
            await client.xgroup_create(name, "g", "$", mkstream=True)
        wait = client.xreadgroup("g", "ann", dict.fromkeys(NAMES, ">"), block=0)
        reader = asyncio.create_task(wait)
        await waiting(cluster, 6)
        await cancelled(reader)
        for name in NAMES:
            await client.xadd(name, {"n": "1"})
        new = {
            name: len(page) for name, page in await client.xreadgroup("g", "bob", dict.fromkeys(NAMES, ">"))
        }
        for name in NAMES:
            assert (await client.xpending(name, "g"))["pending"] == 1
        assert new == dict.fromkeys(NAMES, 1)

    run(cluster, story)


def test_tasks_cancelled_at_any_moment_leave_no_reply_to_another_command(cluster: Cluster) -> None:
    """Every reply belongs to its command, nothing stands twice, and what was acknowledged stands."""
    dice, acknowledged = random.Random(7), list[str]()

    async def use(client: Any, worker: int, turn: int) -> None:
        name, value = NAMES[(worker + turn) % len(NAMES)], f"{worker}-{turn}"
        await client.set(f"plain-{worker}", value)
        assert await client.get(f"plain-{worker}") == value
        if turn % 2:
            entry = await client.xadd(name, {"n": value})
        else:
            pipe = client.pipeline(transaction=turn % 4 == 0)
            pipe.xadd(name, {"n": value}).xlen(name)
            entry, length = await pipe.execute()
            assert length > 0
        acknowledged.append(value)
        assert (entry, {"n": value}) in await client.xrange(name, entry, entry)
        assert value in [fields["n"] for _, fields in await client.xrange(name)]
        found = dict(await client.xread(dict.fromkeys(NAMES, "0"), count=1, block=1))
        assert set(found) <= set(NAMES)

    async def work(client: Any, worker: int) -> None:
        for turn in count():
            if turn >= 25 and len(acknowledged) > 10:
                return
            task = asyncio.create_task(use(client, worker, turn))
            await asyncio.wait([task], timeout=dice.random() * 0.02 * (1 + turn / 25))  # machines differ
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def story(client: Any) -> None:
        await asyncio.gather(*(work(client, worker) for worker in range(8)))
        stored = Counter[str]()
        for name in NAMES:
            stored.update(fields["n"] for _, fields in await client.xrange(name))
        assert [value for value, times in stored.items() if times > 1] == []
        assert set(acknowledged) <= set(stored)

    run(cluster, story)


def test_many_tasks_share_a_client(cluster: Cluster) -> None:
    async def story(client: Any) -> None:
        added = await asyncio.gather(*(client.xadd(NAMES[n % 6], {"n": str(n)}) for n in range(60)))
        for at, name in enumerate(NAMES):
            assert sorted(await client.xrange(name)) == sorted(
                (added[n], {"n": str(n)}) for n in range(at, 60, 6)
            )

    run(cluster, story)


@pytest.mark.parametrize("sends", range(1, 5))
def test_a_task_that_is_cancelled_while_an_append_is_sent_ends(
    cluster: Cluster, sends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = redis.asyncio.Connection._send_packed_command  # type: ignore[attr-defined]

    async def story(client: Any) -> None:
        await client.xadd("orders", {"n": "1"})
        left = sends

        async def append() -> None:
            for _ in range(20):
                await client.xadd("orders", {"n": "1"})

        async def interrupt(self: Any, command: Any) -> None:
            nonlocal left
            await send(self, command)
            left -= 1
            if left == 0:
                asyncio.get_running_loop().call_soon(task.cancel)

        task = asyncio.create_task(append())
        with monkeypatch.context() as patched:
            patched.setattr(redis.asyncio.Connection, "_send_packed_command", interrupt)
            await asyncio.wait([task])
        assert task.cancelled()
        last = await client.xadd("orders", {"n": "2"})
        assert await client.xrevrange("orders", count=1) == [(last, {"n": "2"})]

    run(cluster, story)

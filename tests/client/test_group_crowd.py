"""Many consumers of one group wait at once: who is served, in which order, and what each gets."""

import asyncio
import statistics
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from select import select

import pytest
import redis

import braidstream
import braidstream.asyncio
from braidstream.model import keys
from braidstream.model.strand import Strand
from tests.support.clients import blocked
from tests.support.gateways import Line, Served
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

pytestmark = pytest.mark.long

CROWD = 64
BATCH = 8
HERE, FAR = Strand(b"x", "s", 1), Strand(b"x", "s", 2)
TURN = keys.turn(b"x", b"g")


@pytest.fixture
def stream(engine: Engine) -> Iterator[braidstream.Redis]:
    """A stream that regions 1, 2 and 3 write, with an empty group."""
    become(engine)
    with engine.client() as operator:
        operator.hset("bs:config", "writers", "1 2 3")
    with client_of(engine, decode_responses=True) as client:
        client.xgroup_create("x", "g", id="0", mkstream=True)
        yield client


@pytest.mark.parametrize("limit", [1, 3])
def test_waiting_consumers_are_served_in_the_order_in_which_they_came(
    stream: braidstream.Redis, engine: Engine, limit: int
) -> None:
    asyncio.run(_served_in_order(stream, engine, limit))


async def _served_in_order(stream: braidstream.Redis, engine: Engine, limit: int) -> None:
    async with braidstream.asyncio.Redis.from_url(engine.url, decode_responses=True) as client:
        waiting = []
        for me in range(CROWD):
            read = client.xreadgroup("g", f"c{me}", {"x": ">"}, count=limit, block=60_000)
            waiting.append(asyncio.create_task(read))
            await asyncio.to_thread(blocked, engine, me + 1)
        for n in range(CROWD):
            if n % 2:
                stream.run_plan(apply(FAR, [((n + 1, 0), [b"n", b"%d" % n])], (max(n - 1, 0), 0)))
            else:
                stream.xadd("x", {"n": n}, id=f"{n + 1}")
        replies = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    got = [[fields["n"] for _, fields in entries] for [[_, entries]] in replies]
    assert got == [[str(n)] for n in range(CROWD)]


def test_consumers_that_come_back_are_served_in_turn_through_a_gateway(
    stream: braidstream.Redis, engine: Engine
) -> None:
    with Served(engine.url) as gateway, ExitStack() as stack:
        lines = [stack.enter_context(Line(gateway.port)) for _ in range(3)]
        read = "XREADGROUP GROUP g c{} COUNT 1 BLOCK 0 STREAMS x >"
        for me, line in enumerate(lines):
            line.send(*read.format(me).split())
            blocked(engine, me + 1)
        served = list[int]()
        for n in range(9):
            stream.xadd("x", {"n": n})
            [ready], _, _ = select([line.socket for line in lines], [], [], 20)
            [me] = [me for me, line in enumerate(lines) if line.socket is ready]
            assert b"%d" % n in lines[me].read()
            served.append(me)
            lines[me].send(*read.format(me).split())
            blocked(engine, 3)
    assert served == [0, 1, 2] * 3


def test_those_who_wait_go_on_when_the_one_who_looks_out_dies(
    stream: braidstream.Redis, engine: Engine, background: ThreadPoolExecutor
) -> None:
    """COUNT 1 of three strands: one looks out, the others wait for their turn."""
    clients = [client_of(engine, decode_responses=True, client_name=f"c{me}") for me in range(3)]
    readers = []
    for me, client in enumerate(clients):
        readers.append(background.submit(client.xreadgroup, "g", f"c{me}", {"x": ">"}, count=1, block=60_000))
        blocked(engine, me + 1)
    [lookout] = [each for each in stream.client_list() if each["name"] == "c0"]
    stream.client_kill_filter(_id=lookout["id"])
    with pytest.raises(redis.ConnectionError):
        readers[0].result(timeout=20)
    for n in range(2):
        stream.xadd("x", {"n": n})
    got = [entries for reader in readers[1:] for _, entries in reader.result(timeout=20)]
    assert sorted(fields["n"] for [[_, fields]] in got) == ["0", "1"]


@pytest.mark.parametrize(
    ("limit", "crowd", "key"), [(None, 1, HERE.key), (50, 1, HERE.key), (1, 1, HERE.key), (1, 2, TURN)]
)
def test_who_waits_is_not_disturbed_by_what_is_deleted_as_it_comes(
    stream: braidstream.Redis,
    engine: Engine,
    background: ThreadPoolExecutor,
    limit: int | None,
    crowd: int,
    key: bytes,
) -> None:
    """A repair after a loss does that in one function, a trim in one MULTI. Redis 7.0 wakes the reader."""
    readers = []
    for me in range(crowd):
        client = client_of(engine, decode_responses=True)
        readers.append(
            background.submit(client.xreadgroup, "g", f"c{me}", {"x": ">"}, count=limit, block=60_000)
        )
        blocked(engine, me + 1)
    with engine.client() as operator:
        pipe = operator.pipeline(transaction=True)
        pipe.xadd(key, {"n": "gone"}).xtrim(key, maxlen=0, approximate=False).execute()
    for n in range(crowd):
        stream.xadd("x", {"n": n})
    got = [entries for reader in readers for _, entries in reader.result(timeout=20)]
    assert sorted(fields["n"] for [[_, fields]] in got) == [str(n) for n in range(crowd)]


# COUNT 1 is less than the strands: there consumers take turns, which takes longer.
@pytest.mark.parametrize(("limit", "entries"), [(1, 3_000), (10, 10_000)])
def test_a_crowd_shares_a_stream_nothing_twice_nothing_lost_nobody_starved(
    stream: braidstream.Redis, engine: Engine, limit: int, entries: int, capsys: pytest.CaptureFixture[str]
) -> None:
    got = asyncio.run(_crowd(engine, stream, limit, entries))
    served = [len(values) for values in got]
    with capsys.disabled():
        print(
            f"\n{engine.flavour}, COUNT {limit}: {CROWD} consumers of {entries:,} entries got "
            f"{min(served)} to {max(served)}, median {statistics.median(served):.0f}"
        )
    times = Counter(value for values in got for value in values)
    assert not {value for value, number in times.items() if number > 1}, "duplicated"
    assert not {str(n) for n in range(entries)} - set(times), "lost"
    assert len(times) == entries
    assert min(served) > 0, f"starved: {sorted(served)}"
    assert stream.xpending("x", "g")["pending"] == entries


async def _crowd(engine: Engine, stream: braidstream.Redis, limit: int, entries: int) -> list[list[str]]:
    """What each of the crowd got, while regions 1, 2 and 3 write in turn."""
    stream.run_plan(apply(Strand(b"x", "s", 3), [((1, 0), [b"n", b"first"])]))
    stream.xreadgroup("g", "first", {"x": ">"}, noack=True)
    got: list[list[str]] = [[] for _ in range(CROWD)]
    async with braidstream.asyncio.Redis.from_url(engine.url, decode_responses=True) as client:

        async def consume(me: int) -> None:
            while sum(map(len, got)) < entries:
                reply = await client.xreadgroup("g", f"c{me}", {"x": ">"}, count=limit, block=1_000)
                for _, given in reply:
                    assert len(given) <= limit
                    got[me] += [fields["n"] for _, fields in given]

        consumers = [asyncio.create_task(consume(me)) for me in range(CROWD)]
        await asyncio.to_thread(blocked, engine, CROWD)
        await asyncio.to_thread(_write, stream, entries)
        await asyncio.wait_for(asyncio.gather(*consumers), 120)
    return got


def _write(stream: braidstream.Redis, entries: int) -> None:
    """Entries 0, 1, 2 ... by turns of the writers, a few at a time."""
    ends = {FAR: (0, 0), Strand(b"x", "s", 3): (1, 0)}
    turns = count()
    for first in range(0, entries, BATCH):
        values = [str(n) for n in range(first, min(first + BATCH, entries))]
        turn = next(turns)
        if turn % 3 == 0:
            pipe = stream.pipeline(transaction=False)
            for value in values:
                pipe.xadd("x", {"n": value})
            pipe.execute()
            continue
        strand = list(ends)[turn % 3 - 1]
        natives = [(10 + turn, n) for n in range(len(values))]
        batch = [(native, [b"n", value.encode()]) for native, value in zip(natives, values, strict=True)]
        assert stream.run_plan(apply(strand, batch, ends[strand])) == len(batch)
        ends[strand] = natives[-1]


def test_a_consumer_is_created_without_a_list_of_all_others(engine: Engine) -> None:
    """On a stream of one writer. 10,000 consumers would read 50 million rows."""
    become(engine)
    with client_of(engine) as client, engine.client() as operator:
        client.xgroup_create("x", "g", mkstream=True)
        operator.config_resetstat()
        assert [client.xgroup_createconsumer("x", "g", "ann") for _ in range(2)] == [1, 0]
        assert "cmdstat_xinfo|consumers" not in operator.info("commandstats")

"""Many streams get single entries: the links compare them rarely, and everything else still arrives soon."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import redis

import braidstream
from braidstream.replication.daemon.carrier import CHECKS
from braidstream.replication.daemon.peer_lag import SAMPLE
from braidstream.replication.daemon.queue import AT_ONCE
from tests.support.beside import beside
from tests.support.daemons import all_replicating, numbered, replicating
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

STREAMS = 150
ENTRIES_A_SECOND = 300
# So many streams get an entry together. Then calls are counted until all have arrived, and a little longer.
BURST = 300
AFTER_S = 1.0
# The peer has nothing to do if so few functions are called in this time.
QUIET_CALLS = 30
QUIET_S = 2.0
WITHIN_S = 120
# Pushes and acknowledgements do not wait for the comparisons after new entries, and trims travel by these.
SOON_S = 10.0
TRIMMED_S = 20.0


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Single entries, stream by stream, from another thread."""

    def write(done: threading.Event) -> None:
        with braidstream.Redis.from_url(url) as client:
            for number in count():
                client.xadd(f"busy-{number % STREAMS}", {"n": str(number)})
                if done.wait(1 / ENTRIES_A_SECOND):
                    return

    with beside(write):
        yield


def add_to_each(client: braidstream.Redis) -> None:
    pipeline = client.pipeline(transaction=False)
    for number in range(BURST):
        pipeline.xadd(f"burst-{number}", {"n": "1"})
    pipeline.execute()


def arrived(client: redis.Redis) -> int:
    pipeline = client.pipeline(transaction=False)
    for number in range(BURST):
        pipeline.xlen(f"bs:1:s:{{burst-{number}}}")
    return sum(pipeline.execute())


def calls(client: redis.Redis) -> int:
    """How often a function was called: once for each batch that arrives, and once to compare a stream."""
    return int(client.info("commandstats").get("cmdstat_fcall", {}).get("calls", 0))


def is_quiet(client: redis.Redis) -> bool:
    before = calls(client)
    time.sleep(QUIET_S)
    return calls(client) - before < QUIET_CALLS


def later_comparisons(seconds: float) -> float:
    """At most so many comparisons follow new entries in this time."""
    return 1.25 * (AT_ONCE + seconds * (CHECKS + SAMPLE)) + QUIET_CALLS


def test_streams_that_get_entries_together_are_compared_one_after_another(
    flavour: Flavour, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        here, there = (stack.enter_context(Engine(flavour)) for _ in range(2))
        stack.enter_context(all_replicating(tmp_path, numbered([here, there])))
        one = stack.enter_context(braidstream.Redis.from_url(here.url))
        copies = stack.enter_context(there.client())
        add_to_each(one)
        eventually(lambda: arrived(copies) == BURST, within_s=WITHIN_S, why="all streams should arrive")
        eventually(lambda: is_quiet(copies), within_s=WITHIN_S, why="all streams should be compared")
        before, began = calls(copies), time.monotonic()
        add_to_each(one)
        eventually(lambda: arrived(copies) == 2 * BURST, within_s=WITHIN_S, why="all entries should arrive")
        time.sleep(AFTER_S)
        compared, took_s = calls(copies) - before - BURST, time.monotonic() - began
        assert compared < later_comparisons(took_s)


def test_a_new_stream_is_compared_once(flavour: Flavour, tmp_path: Path) -> None:
    """A link notes in the registry that it has read the stream. What it hears of that is nothing new."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(Engine(flavour)) for _ in range(2))
        urls = numbered([here, there])
        one = stack.enter_context(braidstream.Redis.from_url(here.url))
        own, copies = stack.enter_context(here.client()), stack.enter_context(there.client())
        add_to_each(one)
        before = calls(own)
        stack.enter_context(replicating(tmp_path, urls))
        eventually(lambda: arrived(copies) > 0, within_s=WITHIN_S, why="the first stream should arrive")
        began = time.monotonic()
        eventually(lambda: arrived(copies) == BURST, within_s=WITHIN_S, why="all streams should arrive")
        time.sleep(AFTER_S)
        # To look for losses, to compare, and to read and note that the peer lacks nothing (holes.py).
        again = calls(own) - before - 4 * BURST
        assert again < later_comparisons(time.monotonic() - began)


def test_deletions_acknowledgements_and_trims_arrive_while_many_streams_are_busy(
    flavour: Flavour, tmp_path: Path
) -> None:
    with Engine(flavour) as here, Engine(flavour) as there:
        urls = numbered([here, there])
        one = braidstream.Redis.from_url(here.url, decode_responses=True)
        two = braidstream.Redis.from_url(there.url, decode_responses=True)
        with one, two, all_replicating(tmp_path, urls), writing(here.url):
            one.xgroup_create("orders", "jobs", "0", mkstream=True)
            entries = [one.xadd("orders", {"n": str(number)}) for number in range(5)]
            eventually(
                lambda: two.exists("orders") and two.xlen("orders") == 5 and two.xinfo_groups("orders"),
                within_s=SOON_S,
                why="a new stream and its group should arrive",
            )
            one.xreadgroup("jobs", "ann", {"orders": ">"})
            one.xack("orders", "jobs", *entries)
            eventually(
                lambda: two.xinfo_groups("orders")[0]["last-delivered-id"] == entries[-1],
                within_s=SOON_S,
                why="acknowledgements should arrive",
            )
            one.xdel("orders", entries[2])
            eventually(lambda: two.xlen("orders") == 4, within_s=SOON_S, why="a deletion should arrive")
            one.xtrim("orders", maxlen=1, approximate=False)
            eventually(lambda: two.xlen("orders") == 1, within_s=TRIMMED_S, why="a trim should arrive")

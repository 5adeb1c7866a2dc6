"""Many streams get single entries: the links compare them rarely, and everything else still arrives soon."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import braidstream
from tests.support.daemons import all_replicating, numbered
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

STREAMS = 150
ENTRIES_A_SECOND = 300
# Of the peer's engine. Comparing each stream after each entry would be about 300.
MOST_READS_A_SECOND = 150
LASTS_S = 5.0
# Pushes and acknowledgements do not wait for the comparisons after new entries, and trims travel by these.
SOON_S = 10.0
TRIMMED_S = 20.0


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Single entries, stream by stream, from another thread."""
    done = threading.Event()

    def write() -> None:
        with braidstream.Redis.from_url(url) as client:
            for number in count():
                client.xadd(f"busy-{number % STREAMS}", {"n": str(number)})
                if done.wait(1 / ENTRIES_A_SECOND):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def registries_read(engine: Engine) -> int:
    with engine.client() as client:
        return int(client.info("commandstats").get("cmdstat_hgetall", {}).get("calls", 0))


def test_links_compare_many_busy_streams_less_often_than_they_get_entries(
    flavour: Flavour, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        here, there = (stack.enter_context(Engine(flavour)) for _ in range(2))
        stack.enter_context(all_replicating(tmp_path, numbered([here, there])))
        copies = stack.enter_context(there.client())
        stack.enter_context(writing(here.url))
        last = f"bs:1:s:{{busy-{STREAMS - 1}}}"
        eventually(lambda: copies.exists(last), within_s=30, why="all streams should be there")
        before, began = registries_read(there), time.monotonic()
        eventually(lambda: time.monotonic() - began > LASTS_S, within_s=60, why="it takes its time")
        reads = (registries_read(there) - before) / (time.monotonic() - began)
        assert reads < MOST_READS_A_SECOND


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

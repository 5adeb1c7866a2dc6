"""`raise Later(seconds)` in handlers, with the daemons of two regions."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import braidstream
from tests.regions.test_cluster_regions import numbered as numbered_regions
from tests.support.cli import braid
from tests.support.cluster import Cluster
from tests.support.consumers import Runs
from tests.support.daemons import all_replicating
from tests.support.servers import NEWEST, Engine, Flavour
from tests.support.two_regions import WITHIN_S, TwoRegions, two_regions
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

KINDS = ("sync", "asyncio")
AGAIN = "{%s}.billing.again"


@pytest.fixture(scope="module", params=NEWEST)
def regions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRegions]:
    with two_regions(request.param, tmp_path_factory.mktemp("regions")) as made:
        yield made


class Calls:
    """A handler that puts off every fourth entry, so often."""

    def __init__(self, times: int, delay_s: float = 0.5) -> None:
        self.times, self.delay_s = times, delay_s
        self.seen = defaultdict[str, list[tuple[float, str, str, int]]](list)
        self._lock = threading.Lock()

    def handle(self, message: braidstream.Message) -> None:
        with self._lock:
            seen = self.seen[message["n"]]
            seen.append((time.monotonic(), message.stream, message.first_id, message.attempt))
        if int(message["n"]) % 4 == 0 and len(seen) <= self.times:
            raise braidstream.Later(self.delay_s)

    @property
    def counts(self) -> dict[str, int]:
        return {number: len(seen) for number, seen in self.seen.items()}


def wanted(entries: int, again: int) -> dict[str, int]:
    return {str(number): 1 + again * (number % 4 == 0) for number in range(entries)}


def settled(client: Any, name: str) -> bool:
    """Nothing is pending, nothing waits, and nothing is left of what came again."""
    left = [client.xlen(f"{{{name}}}.later"), client.xlen(AGAIN % name)]
    pending = [client.xpending(each, "billing")["pending"] for each in (name, AGAIN % name)]
    return not any([*left, *pending])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefetch", [0, 1000])
def test_only_this_group_gets_an_entry_again_and_then(regions: TwoRegions, kind: str, prefetch: int) -> None:
    one, two = regions.clients
    name, calls = f"jobs-{kind}-{prefetch}", Calls(times=2)
    sent = [one.xadd(name, {"n": str(number)}) for number in range(20)]
    one.xgroup_create(name, "others", "0")
    with Runs(kind, regions.engines[0].url)(
        calls.handle, name, concurrency=2, prefetch=prefetch, scope="ONCE"
    ):
        eventually(lambda: calls.counts == wanted(20, 2), within_s=WITHIN_S, why="each is handled as often")
        eventually(lambda: settled(one, name), within_s=WITHIN_S, why="nothing is left")
    for number, seen in calls.seen.items():
        assert {first for _, _, first, _ in seen} == {sent[int(number)]}
        assert {stream for _, stream, _, _ in seen} == {name}
        assert {attempt for _, _, _, attempt in seen} == {1}, "it is no attempt"
        assert all(after[0] - before[0] >= 0.5 for before, after in zip(seen, seen[1:], strict=False))
    [[_, theirs]] = one.xreadgroup("others", "x", {name: ">"})
    assert [entry for entry, _ in theirs] == sent, "another group saw each once"
    eventually(lambda: settled(two, name), within_s=WITHIN_S, why="in the other region too")
    regions.await_length(name, 20)


def test_a_region_gets_again_only_what_it_has_put_off_itself(regions: TwoRegions) -> None:
    """With a group that delivers everywhere. What one region acknowledges first, the other may not get."""
    one, two = regions.clients
    calls = [Calls(times=1), Calls(times=1)]
    with ExitStack() as stack:
        for engine, each in zip(regions.engines, calls, strict=True):
            stack.enter_context(
                Runs("sync", engine.url)(each.handle, "both", scope="EVERYWHERE", claim_after=2)
            )
        for number in range(40):
            (one, two)[number % 2].xadd("both", {"n": str(number)})
        eventually(
            lambda: all(
                max(each.counts.get(number, 0) for each in calls) == times
                for number, times in wanted(40, 1).items()
            ),
            within_s=WITHIN_S,
            why="each is handled, and again where it was put off",
        )
        for client in (one, two):
            eventually(lambda c=client: settled(c, "both"), within_s=WITHIN_S, why="nothing is left")  # type: ignore[misc]
    for each in calls:
        assert all(times <= wanted(40, 1)[number] for number, times in each.counts.items())


def test_the_next_process_gets_what_one_that_ended_has_put_off(regions: TwoRegions) -> None:
    one, _ = regions.clients
    first, second = Calls(times=9, delay_s=3), Calls(times=0)
    one.xadd("handed", {"n": "0"})
    with Runs("sync", regions.engines[0].url)(first.handle, "handed"):
        eventually(lambda: one.xlen("{handed}.later"), within_s=WITHIN_S, why="it is put off")
    with Runs("sync", regions.engines[0].url)(second.handle, "handed"):
        eventually(lambda: second.counts == {"0": 1}, within_s=WITHIN_S, why="the next one gets it")
        eventually(lambda: settled(one, "handed"), within_s=WITHIN_S, why="nothing is left")
    assert first.counts == {"0": 1}


def test_a_process_that_runs_notices_what_another_one_has_put_off(regions: TwoRegions) -> None:
    one, _ = regions.clients
    calls, run = Calls(times=1, delay_s=1), Runs("sync", regions.engines[0].url)
    with (
        run(calls.handle, "found", claim_after=1) as first,
        run(calls.handle, "found", claim_after=1) as second,
    ):
        for each in (first, second):
            eventually(lambda r=each: r.consumer and r.consumer.is_ready, within_s=WITHIN_S, why="it runs")  # type: ignore[misc]
            assert each.consumer._turns.streams == ("found",), "there is nothing to read yet"
        one.xadd("found", {"n": "0"})
        for each in (first, second):
            eventually(
                lambda c=each.consumer: c._turns.streams == ("found", AGAIN % "found"),  # type: ignore[misc]
                within_s=WITHIN_S,
                why="it is noticed",
            )
        eventually(lambda: calls.counts == {"0": 2}, within_s=WITHIN_S, why="one of them gets it")


def failing(message: braidstream.Message) -> None:
    if message.id == message.first_id:
        raise braidstream.Later(0.1)
    raise KeyError("always")


def test_what_fails_when_it_comes_again_is_a_dead_letter_of_its_stream(regions: TwoRegions) -> None:
    one, _ = regions.clients
    entry = one.xadd("fails", {"n": "1"})
    with Runs("sync", regions.engines[0].url)(failing, "fails", attempts=2):
        eventually(lambda: one.xlen("fails.dead"), within_s=WITHIN_S, why="it is dead")
    [(_, fields)] = one.xrange("fails.dead")
    assert (fields["dead.stream"], fields["dead.id"], fields["n"]) == ("fails", entry, "1")
    assert "again.id" not in fields
    assert settled(one, "fails")
    retried = braid("dead", "retry", "fails.dead", "--all", "--url", regions.engines[0].url)
    assert retried.returncode == 0, retried.stderr
    assert one.xlen("fails") == 2


@pytest.mark.parametrize(("delay", "options"), [(60, {"key": "n"}), (float("nan"), {}), (-1, {})])
def test_what_cannot_be_put_off_is_a_dead_letter(regions: TwoRegions, delay: float, options: Any) -> None:
    one, _ = regions.clients
    name = f"refused-{delay}-{len(options)}"

    def handle(message: braidstream.Message) -> None:
        raise braidstream.Later(delay)

    one.xadd(name, {"n": "1"})
    with Runs("sync", regions.engines[0].url)(handle, name, attempts=1, **options):
        eventually(lambda: one.xlen(f"{name}.dead"), within_s=WITHIN_S, why="it is dead")
    [(_, fields)] = one.xrange(f"{name}.dead")
    assert "Later:" in fields["dead.reason"]


def test_a_batch_can_be_put_off(regions: TwoRegions) -> None:
    one, _ = regions.clients
    sizes = list[int]()

    def handle(batch: list[braidstream.Message]) -> None:
        sizes.append(len(batch))
        if len(sizes) == 1:
            raise braidstream.Later(0.5)

    for number in range(10):
        one.xadd("batch", {"n": str(number)})
    with Runs("sync", regions.engines[0].url)(handle, "batch", batch=10, batch_wait=1.0, concurrency=1):
        eventually(lambda: sum(sizes) == 20, within_s=WITHIN_S, why="all of them come again")
        eventually(lambda: settled(one, "batch"), within_s=WITHIN_S, why="nothing is left")


def test_a_worker_with_the_printed_rights_can_put_off(regions: TwoRegions) -> None:
    one, _ = regions.clients
    printed = braid("acl", "worker", "--streams", "granted", "--user", "ann", "--later").stdout
    with regions.engines[0].client() as operator:
        operator.execute_command(*printed.replace("PASSWORD", "secret").split())
    calls = Calls(times=1)
    one.xadd("granted", {"n": "0"})
    url = regions.engines[0].url.replace("//", "//ann:secret@", 1)
    with Runs("sync", url)(calls.handle, "granted"):
        eventually(lambda: calls.counts == {"0": 2}, within_s=WITHIN_S, why="it comes again")
        eventually(lambda: settled(one, "granted"), within_s=WITHIN_S, why="nothing is left")


def test_on_a_cluster(flavour: Flavour, cluster: Cluster, tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Engine(flavour))
        stack.enter_context(all_replicating(tmp_path, numbered_regions(cluster, server)))
        client = stack.enter_context(braidstream.RedisCluster.from_url(cluster.url, decode_responses=True))
        calls = Calls(times=2)
        for number in range(20):
            client.xadd("jobs", {"n": str(number)})
        with Runs("sync", cluster.url, is_cluster=True)(calls.handle, "jobs"):
            eventually(lambda: calls.counts == wanted(20, 2), within_s=WITHIN_S, why="as on one server")
            eventually(lambda: settled(client, "jobs"), within_s=WITHIN_S, why="nothing is left")

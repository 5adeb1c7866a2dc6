"""Trims of a stream with several strands: races, rounds and cost."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

import braidstream
from braidstream.commands.removal import trim
from braidstream.commands.xadd import add
from braidstream.model.ids import ZERO
from braidstream.model.strand import Strand
from braidstream.plan.lookup import read_server
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from tests.support.observed import observed
from tests.support.regions import apply
from tests.support.servers import Engine

T = TypeVar("T")
Client = braidstream.Redis


def fill(client: Client, count: int, strands: int = 2, name: str = "x") -> None:
    """Entries 1, 2, ... in turn in the strands of regions far away."""
    for writer in range(2, 2 + strands):
        strand = Strand(name.encode(), "s", writer)
        numbers = range(writer - 1, count + 1, strands)
        after = ZERO
        for first in range(0, len(numbers), 500):
            entries = [((n, 0), (b"n", b"%d" % n)) for n in numbers[first : first + 500]]
            client.run_plan(apply(strand, entries, after))
            after = entries[-1][0]


def numbers(client: Client, name: str = "x") -> list[int]:
    return [int(fields["n"]) for _, fields in client.xrange(name)]


def run_observed(
    client: Client,
    make: Callable[[View, list[bytes]], Plan[T]],
    words: str,
    before: Callable[[Batch], object],
) -> T:
    def plan() -> Plan[T]:
        region, server = yield from read_server()
        view = View(region)
        view.cache.check_server(region, server, 0)
        return (yield from observed(make(view, words.encode().split()), before))

    return client.run_plan(plan())


@pytest.mark.parametrize("strands", [1, 2])
@pytest.mark.parametrize("policy", ["KEEPREF", "DELREF", "ACKED"])
def test_two_clients_that_trim_at_once_keep_what_the_cap_keeps(
    region: Client, policy: str, strands: int
) -> None:
    def trimmed(at: int) -> bool:
        """Another client trims before batch `at` of this one. False if there are fewer."""
        name, batches = f"x{at}", list[Batch]()
        fill(region, 20, strands, name)

        def before(batch: Batch) -> None:
            batches.append(batch)
            if len(batches) == at:
                region.xtrim(name, maxlen=10, approximate=False, ref_policy=policy)

        run_observed(region, trim, f"XTRIM {name} MAXLEN 10 {policy}", before)
        assert numbers(region, name) == list(range(11, 21)), f"the other came before batch {at}"
        return len(batches) >= at

    at = 1
    while trimmed(at):
        at += 1
    assert at > 2


def test_entries_that_are_acknowledged_during_a_trim_do_not_count_twice(region: Client) -> None:
    def trimmed(at: int) -> bool:
        name, batches = f"x{at}", list[Batch]()
        fill(region, 20, name=name)
        region.xgroup_create(name, "g", 0)
        region.xreadgroup("g", "c", {name: ">"})
        entries = [entry for entry, _ in region.xrange(name)]
        region.xack(name, "g", *entries[10:])

        def before(batch: Batch) -> None:
            batches.append(batch)
            if len(batches) == at:
                region.xack(name, "g", *entries[:10])
                region.xtrim(name, maxlen=10, approximate=False, ref_policy="ACKED")

        run_observed(region, trim, f"XTRIM {name} MAXLEN 10 ACKED", before)
        assert region.xlen(name) == 10, f"the other came before batch {at}"
        return len(batches) >= at

    at = 1
    while trimmed(at):
        at += 1
    assert at > 3


@pytest.fixture
def large_nodes(engine: Engine) -> Iterator[None]:
    with engine.client() as operator:
        operator.config_set("stream-node-max-entries", 1000)
        operator.config_set("stream-node-max-bytes", 0)
        yield
        operator.config_set("stream-node-max-entries", 100)
        operator.config_set("stream-node-max-bytes", 4096)


def test_a_tilde_removes_all_whole_nodes_of_several_strands(region: Client) -> None:
    fill(region, 6000)
    removed = region.xtrim("x", maxlen=1000, approximate=True)
    assert 1000 <= 6000 - removed <= 1200
    assert numbers(region)[-1000:] == list(range(5001, 6001))


@pytest.mark.usefixtures("large_nodes")
def test_a_tilde_removes_large_nodes(region: Client) -> None:
    fill(region, 6000)
    removed = region.xtrim("x", maxlen=1000, approximate=True)
    assert 1000 <= 6000 - removed <= 3000
    assert numbers(region)[-1000:] == list(range(5001, 6001))


def test_limit_counts_the_whole_stream(region: Client) -> None:
    fill(region, 6000)
    assert region.xtrim("x", maxlen=1000, approximate=True, limit=100) == 100
    assert region.xtrim("x", maxlen=1000, approximate=True, limit=450) == 400
    assert region.xtrim("x", maxlen=1000, approximate=True, limit=0) >= 4300


def reads(batches: list[Batch]) -> list[tuple[Any, ...]]:
    return [command for batch in batches for command in batch.commands if command[0] == "XRANGE"]


@pytest.mark.parametrize("policy", ["KEEPREF", "DELREF", "ACKED"])
def test_an_append_below_its_cap_reads_no_entries(region: Client, policy: str) -> None:
    fill(region, 20)
    sent = list[Batch]()
    run_observed(region, add, f"XADD x {policy} MAXLEN 1000 * n 21", sent.append)
    assert not reads(sent)
    run_observed(region, add, f"XADD x {policy} MAXLEN 22 * n 22", sent.append)
    assert not reads(sent)
    run_observed(region, add, f"XADD x {policy} MAXLEN 22 * n 23", sent.append)
    assert {command[-1] for command in reads(sent)} <= {1, 2}
    assert numbers(region) == list(range(2, 24))


def test_a_cap_with_acked_does_not_look_at_what_a_group_has_not_read(region: Client) -> None:
    fill(region, 5000)
    region.xgroup_create("x", "g", 0)
    region.xreadgroup("g", "c", {"x": ">"}, count=4)
    region.xack("x", "g", *(entry for entry, _ in region.xrange("x", count=3)))
    sent = list[Batch]()
    run_observed(region, add, "XADD x ACKED MAXLEN 10 * n 5001", sent.append)
    assert len(sent) < 8
    assert numbers(region) == list(range(4, 5002))

"""How the daemons of a region divide its streams."""

import random
from collections import Counter

import pytest

from braidstream.clusters.command_keys import slot_of
from braidstream.model import keys
from braidstream.replication.daemon.leases import RANGES, assign, range_of

MOST = 64
# How many ranges more than the share of one daemon move at most, when it joins or leaves.
MORE = 24


@pytest.fixture(scope="module", params=range(3))
def joining(request: pytest.FixtureRequest) -> list[dict[int, bytes]]:
    """The daemon of each range while one daemon after the other joins. Backwards, they leave."""
    dice = random.Random(request.param)
    daemons = [b"%016x" % dice.getrandbits(64) for _ in range(MOST)]
    return [assign(daemons[:count]) for count in range(1, MOST + 1)]


def test_every_range_has_one_daemon_and_shares_are_even(joining: list[dict[int, bytes]]) -> None:
    for count, owners in enumerate(joining, 1):
        shares = Counter(owners.values())
        assert (sorted(owners), len(shares)) == ([*range(RANGES)], count)
        assert max(shares.values()) - min(shares.values()) <= 1


def test_few_ranges_move_when_a_daemon_joins_or_leaves(joining: list[dict[int, bytes]]) -> None:
    moved = [
        sum(before[number] != after[number] for number in range(RANGES))
        for before, after in zip(joining, joining[1:], strict=False)
    ]
    expected = [RANGES // count + MORE for count in range(2, MOST + 1)]
    assert all(seen <= most for seen, most in zip(moved, expected, strict=True)), moved


def test_all_daemons_compute_the_same_shares() -> None:
    daemons = [b"%d" % number for number in range(10)]
    assert assign(daemons) == assign({*reversed(daemons)})


def test_256_daemons_have_one_range_each_and_more_have_none() -> None:
    assert {*Counter(assign([b"%d" % number for number in range(RANGES)]).values()).values()} == {1}
    assert len({*assign([b"%d" % number for number in range(RANGES + 20)]).values()}) == RANGES


@pytest.mark.parametrize("name", [b"orders", b"a{tag}b", b"", b"}odd", b"{"])
def test_all_keys_of_a_stream_are_in_its_range(name: bytes) -> None:
    ours = [keys.meta(name), keys.strand(name, "s", 1), keys.strand(name, "c", 7, 2), keys.journal(name, 3)]
    assert {slot_of(key) // 64 for key in ours} == {range_of(name)}


def test_streams_spread_over_all_ranges() -> None:
    assert {range_of(b"stream-%d" % number) for number in range(5_000)} == {*range(RANGES)}

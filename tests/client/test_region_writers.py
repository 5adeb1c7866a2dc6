"""Which writers a region has, when several clients change them at the same time."""

from typing import Any

import pytest
import redis

import braidstream
from braidstream.operations.membership import meet, part
from braidstream.plan.lookup import read_region
from braidstream.plan.plan import Batch, Plan, Replies


def _say(batch: Batch) -> Plan[Replies]:
    return (yield batch)


def _between(client: braidstream.Redis, plan: Plan[Any], other: Plan[Any]) -> None:
    """Run a plan, and another one as a whole after its first batch."""
    batch = next(plan)
    try:
        replies = client.run_plan(_say(batch))
        client.run_plan(other)
        while True:
            batch = plan.send(replies)
            replies = client.run_plan(_say(batch))
    except StopIteration:
        pass


def test_two_that_meet_a_region_at_once_are_both_known(region: braidstream.Redis) -> None:
    _between(region, meet([2]), meet([3]))
    assert region.run_plan(read_region()).writers == (1, 2, 3)


def test_who_has_left_does_not_come_back_by_a_meeting_at_the_same_time(region: braidstream.Redis) -> None:
    region.run_plan(meet([3]))
    _between(region, meet([2, 3]), part([3]))
    known = region.run_plan(read_region())
    assert (known.writers, known.left) == ((1, 2), (3,))


def test_the_topology_counts_changes_only(region: braidstream.Redis) -> None:
    counts = []
    for plan in (meet([1]), meet([2, 700]), meet([2]), part([2]), part([2]), meet([2])):
        region.run_plan(plan)
        counts.append(int(region.hget("bs:config", "topology") or 0))
    assert [count - counts[0] for count in counts] == [0, 1, 1, 2, 2, 2]


def test_a_region_does_not_part_from_itself(region: braidstream.Redis) -> None:
    with pytest.raises(braidstream.BraidError, match="itself"):
        region.run_plan(part([1]))
    assert region.run_plan(read_region()).left == ()


def test_writers_that_cannot_be_read_are_told_and_left_as_they_are(region: braidstream.Redis) -> None:
    region.hset("bs:config", "writers", "1 two")
    with pytest.raises((braidstream.BraidError, redis.RedisError), match="cannot be read"):
        region.run_plan(meet([3]))
    assert region.hget("bs:config", "writers") == "1 two"

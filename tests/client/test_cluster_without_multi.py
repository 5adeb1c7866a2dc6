"""Users of a cluster who lack the right to MULTI: what braidstream sends in a MULTI runs one by one."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from braidstream.model import keys
from tests.support.clients import Opener
from tests.support.cluster import Cluster, SlotMove
from tests.support.cluster_clients import cluster_client, cluster_opener, slot, values

opened = cluster_opener
client = cluster_client


def tell(cluster: Cluster, *words: str) -> None:
    for node in cluster.nodes:
        with node.client() as operator:
            operator.execute_command("ACL", *words)


@pytest.fixture
def user(client: Any, opened: Opener, cluster: Cluster) -> Iterator[Any]:
    tell(cluster, "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", "-multi")
    yield opened(cluster.url.replace("//", "//app:pw@"), decode_responses=True)
    tell(cluster, "DELUSER", "app")


def test_each_command_of_a_pipeline_runs_once(client: Any, user: Any) -> None:
    """A pipeline puts commands that may not overtake each other into a MULTI of its own."""
    client.xadd("{a}s", {"n": "0"})
    pipe = user.pipeline(transaction=False)
    pipe.incr("{a}n").delete("{a}x", "{a}y").incr("{a}n").xadd("{a}s", {"n": "1"}).xlen("{a}s")
    first, deleted, second, _, length = pipe.execute()
    assert (first, deleted, second, length) == (1, 0, 2, 2)
    assert user.xadd("{a}new", {"n": "1"})
    assert user.xlen("{a}new") == 1


def test_the_first_entry_of_a_stream_follows_a_slot_that_has_moved(user: Any, cluster: Cluster) -> None:
    user.xadd("{a}s", {"n": "0"})
    with SlotMove(cluster, slot("a")) as moving:
        moving.finish()
        user.xadd("{a}new", {"n": "1"})
        assert values(user, "{a}new") == ["1"]


def test_the_first_entry_of_a_stream_waits_until_a_slot_has_moved(user: Any, cluster: Cluster) -> None:
    user.xadd("{a}s", {"n": "0"})
    with SlotMove(cluster, slot("a")) as moving, ThreadPoolExecutor(1) as pool:
        moving.move(keys.meta(b"{a}s"))
        adding = pool.submit(user.xadd, "{a}new", {"n": "1"})
        time.sleep(0.3)
        assert not adding.done()
        moving.finish()
        assert adding.result(10)
        assert values(user, "{a}new") == ["1"]


def test_a_pipeline_follows_a_slot_that_has_moved(client: Any, user: Any, cluster: Cluster) -> None:
    client.xadd("{a}s", {"n": "0"})
    assert user.xlen("{a}s") == 1
    with SlotMove(cluster, slot("a")) as moving:
        moving.finish()
        pipe = user.pipeline(transaction=False)
        pipe.delete("{a}x", "{a}s").xadd("{a}s", {"n": "1"}).xlen("{a}s")
        deleted, _, length = pipe.execute()
        assert (deleted, length) == (1, 1)


def test_a_refused_rename_leaves_no_watch_behind(client: Any, user: Any, cluster: Cluster) -> None:
    user.xadd("{a}s", {"n": "0"})
    with pytest.raises(redis.exceptions.NoPermissionError):
        user.rename("{a}s", "{a}t")
    client.xadd("{a}s", {"n": "1"})
    tell(cluster, "SETUSER", "app", "+multi")
    assert user.pipeline(transaction=True).set("{a}k", "1").execute() == [True]

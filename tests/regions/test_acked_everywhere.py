"""XTRIM, XDELEX and XACKDEL with ACKED ask the groups of all regions, through real daemons."""

import json
from collections.abc import Iterator

import pytest
import redis

import braidstream
from tests.support.cli import braid
from tests.support.gateways import Served
from tests.support.servers import NEWEST
from tests.support.two_regions import WITHIN_S, TwoRegions, two_regions
from tests.support.waiting import eventually

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=NEWEST)
def regions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRegions]:
    with two_regions(request.param, tmp_path_factory.mktemp("regions")) as made:
        yield made


def trim(client: braidstream.Redis, name: str, *more: object) -> int:
    return int(client.execute_command("XTRIM", name, "MAXLEN", 0, "ACKED", *more))


def test_a_trim_keeps_what_a_group_needs_that_only_another_region_has(regions: TwoRegions) -> None:
    one, two = regions.clients
    entries = regions.fill("x", 20)
    one.xgroup_create("x", "here", "$")
    with regions.apart():
        two.xgroup_create("x", "there", "0")
        assert trim(one, "x") == 0
        two.xreadgroup("there", "c", {"x": ">"}, count=12)
        assert trim(one, "x") == 0, "it has acknowledged none of them"
        two.xack("x", "there", *entries[:8])
        assert trim(one, "x") == 8
        assert trim(one, "x", "EXCEPT", 1, "there") == 12


def test_xdelex_and_xackdel_keep_what_another_region_needs(regions: TwoRegions) -> None:
    one, two = regions.clients
    entries = regions.fill("d", 4)
    one.xgroup_create("d", "here", "0")
    one.xreadgroup("here", "c", {"d": ">"})
    with regions.apart():
        two.xgroup_create("d", "there", "0")
        two.xreadgroup("there", "c", {"d": ">"})
        two.xack("d", "there", entries[0])
        one.xack("d", "here", *entries[:2])
        asked = ("XDELEX", "d", "ACKED", "IDS", 4, *entries[:2], entries[3], "1-1")
        assert one.execute_command(*asked) == [1, 2, 2, -1]
        asked = ("XACKDEL", "d", "here", "ACKED", "IDS", 2, entries[2], entries[0])
        assert one.execute_command(*asked) == [2, -1]
        assert one.xpending("d", "here")["pending"] == 1, "it was acknowledged"
        assert one.xlen("d") == 3


def test_a_group_that_was_moved_back_elsewhere_keeps_what_it_reads_again(regions: TwoRegions) -> None:
    one, two = regions.clients
    entries = regions.fill("b", 5)
    one.xgroup_create("b", "jobs", "0")
    one.xreadgroup("jobs", "c", {"b": ">"})
    one.xack("b", "jobs", *entries)
    eventually(
        lambda: [each["last-delivered-id"] for each in two.xinfo_groups("b")] == [entries[-1]],
        within_s=WITHIN_S,
        why="the acknowledgements should arrive",
    )
    two.xgroup_setid("b", "jobs", entries[2])
    assert trim(one, "b") == 3
    two.xgroup_setid("b", "jobs", entries[-1])
    assert trim(one, "b") == 2


def test_one_pending_entry_of_a_group_that_both_know_keeps_only_itself(regions: TwoRegions) -> None:
    one, two = regions.clients
    entries = regions.fill("p", 6)
    one.xgroup_create("p", "jobs", "0")
    one.xreadgroup("jobs", "c", {"p": ">"})
    one.xack("p", "jobs", *entries[:2], *entries[3:])
    eventually(lambda: len(two.xinfo_groups("p")) == 1, within_s=WITHIN_S, why="it should arrive")
    assert trim(one, "p") == 5
    assert [entry for entry, _ in one.xrange("p")] == [entries[2]]


def length_after_xadd(client: braidstream.Redis, name: str) -> int:
    client.xadd(name, {"n": "new"}, maxlen=2, approximate=False, ref_policy="ACKED")
    return int(client.xlen(name))


def test_xadd_does_not_wait_and_trims_by_the_last_answer(regions: TwoRegions) -> None:
    one, two = regions.clients
    regions.fill("a", 6)
    with regions.apart():
        two.xgroup_create("a", "there", "0")
        for _ in range(5):
            assert length_after_xadd(one, "a") > 6
        two.xgroup_destroy("a", "there")
        eventually(
            lambda: length_after_xadd(one, "a") == 2, within_s=WITHIN_S, why="nobody needs them any more"
        )


def test_xadd_trims_by_no_answer_that_is_older_than_five_seconds(regions: TwoRegions) -> None:
    one, _ = regions.clients
    regions.fill("o", 3)
    eventually(lambda: length_after_xadd(one, "o") == 2, within_s=WITHIN_S, why="there is an answer")
    regions.daemons[1].kill()
    try:
        eventually(lambda: length_after_xadd(one, "o") > 2, within_s=10, why="the answer is too old")
        assert length_after_xadd(one, "o") == one.xlen("o") > 3
    finally:
        regions.daemons[1].start()


def test_where_a_region_cannot_be_asked_nothing_goes_and_everybody_says_so(regions: TwoRegions) -> None:
    one, _ = regions.clients
    regions.fill("u", 3)
    with regions.engines[1].paused():
        with pytest.raises(redis.ResponseError, match=r"region 2 \(region-2: "):
            trim(one, "u")
        assert one.xdelex("u", one.xrange("u")[0][0], ref_policy="ACKED") == [2]
        one.xadd("u", {"n": 1}, maxlen=1, approximate=False, ref_policy="ACKED")
        assert one.xlen("u") == 4
        assert "stream=u region=2" in regions.daemons[1].tells("trim.waits")
        problems = json.loads(braid("status", "--config", str(regions.config), "--json").stdout)["problems"]
        [found] = [each for each in problems if each["kind"] == "waits"]
        assert (found["where"], "from u:" in found["text"], "region-2" in found["text"]) == (
            "region-1",
            True,
            True,
        )
    eventually(lambda: _trimmed(one, "u"), within_s=WITHIN_S, why="region 2 answers again")
    assert one.xlen("u") == 0


def _trimmed(client: braidstream.Redis, name: str) -> bool:
    try:
        return bool(trim(client, name))
    except redis.ResponseError as error:
        if not str(error).startswith("WAITS "):
            raise
        return False


def test_without_a_daemon_nothing_goes(regions: TwoRegions) -> None:
    one, _ = regions.clients
    regions.fill("n", 3)
    regions.daemons[1].kill()
    try:
        with pytest.raises(redis.ResponseError, match="no daemon of this region answers"):
            trim(one, "n")
    finally:
        regions.daemons[1].start()
    assert one.xlen("n") == 3


def test_a_pipeline_waits_and_a_multi_refuses(regions: TwoRegions) -> None:
    one, _ = regions.clients
    regions.fill("m", 3)
    with one.pipeline(transaction=False) as pipe:
        pipe.xtrim("m", maxlen=1, approximate=False, ref_policy="ACKED").xlen("m")
        assert pipe.execute() == [2, 1]
    with one.pipeline() as pipe, pytest.raises(redis.ResponseError, match="several round trips"):
        pipe.xtrim("m", maxlen=1, approximate=False, ref_policy="ACKED").execute()


def test_a_gateway_asks_and_other_clients_do_not_wait(regions: TwoRegions) -> None:
    one, _ = regions.clients
    regions.fill("g", 3)
    with Served(regions.engines[0].url) as served, redis.Redis.from_url(served.url) as client:
        assert trim(client, "g") == 3
        pipe = client.pipeline(transaction=False)
        pipe.xadd("g", {"n": 1}).xtrim("g", maxlen=0, approximate=False, ref_policy="ACKED").xlen("g")
        assert pipe.execute()[1:] == [1, 0]

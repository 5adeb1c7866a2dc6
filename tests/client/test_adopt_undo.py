"""`braid adopt --undo`: streams that were adopted become native again, with groups and pending entries."""

import time
from typing import Any

import pytest

from braidstream.operations.adoption import adopted_names, release
from braidstream.operations.membership import tune_id_mode
from tests.support.native_streams import adopt_here, bare_client, native_stream
from tests.support.servers import NEWEST, Engine


@pytest.mark.parametrize("appended", [0, 3, 2500])
def test_undo_gives_everything_back(region: Any, engine: Engine, appended: int) -> None:
    with bare_client(engine) as bare:
        native_stream(bare)
        adopt_here(region)
        assert region.run_plan(adopted_names([b"ord*"])) == [b"orders"]
        pipe = region.pipeline(transaction=False)
        for at in range(appended):
            pipe.xadd("orders", {"new": at})
        pipe.execute()
        [[_, taken]] = region.xreadgroup("billing", "bob", {"orders": ">"}, count=12)
        region.xack("orders", "billing", *(entry for entry, _ in taken[:11]))
        region.xgroup_create("orders", "late", 0)
        entries = region.xrange("orders")
        pending = region.xpending_range("orders", "billing", "-", "+", 100)
        assert region.run_plan(release(b"orders")).problem == ""
        assert bare.xrange("orders") == entries == region.xrange("orders")
        after = bare.xpending_range("orders", "billing", "-", "+", 100)
        for row in (*pending, *after):
            row.pop("time_since_delivered")
        assert pending == after
        rest = [entry for entry, _ in entries[22:]]
        left = bare.xreadgroup("billing", "cid", {"orders": ">"})
        assert [entry for _, page in left for entry, _ in page] == rest
        assert len(bare.xreadgroup("late", "l", {"orders": ">"})[0][1]) == 20 + appended
        assert bare.keys("bs:[0-9]*") == []
        assert region.xlen("orders") == 20 + appended
        entry = region.xadd("orders", {"n": "native"})
        assert bare.xrange("orders")[-1][0] == entry
        adopt_here(region)
        assert region.xlen("orders") == 21 + appended


def test_undo_keeps_all_pending_entries_between_deleted_ones(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        native_stream(bare)
        adopt_here(region)
        with region.pipeline(transaction=False) as pipe:
            for at in range(1_500):
                pipe.xadd("orders", {"new": at})
            added = pipe.execute()
        region.xreadgroup("billing", "bob", {"orders": ">"})
        region.xdel("orders", *added[::2])
        assert region.run_plan(release(b"orders")).problem == ""
        rows = bare.xpending_range("orders", "billing", "-", "+", 2_000, consumername="bob")
        assert [row["message_id"] for row in rows][-750:] == added[1::2]


@pytest.mark.parametrize("flavour", NEWEST[:1], indirect=True)
@pytest.mark.parametrize("mode", ["FAIL", "FATAL"])
def test_undo_keeps_entries_that_were_given_back(region: Any, engine: Engine, mode: str) -> None:
    if "XNACK" not in engine.vocabulary:
        pytest.skip("this engine has no XNACK")
    with bare_client(engine) as bare:
        native_stream(bare)
        adopt_here(region)
        region.xreadgroup("billing", "bob", {"orders": ">"})
        added = region.xadd("orders", {"new": 1})
        region.xreadgroup("billing", "bob", {"orders": ">"})
        strand = "bs:1:s:{orders}"
        [[native, _]] = bare.xrange(strand)
        bare.execute_command("XNACK", strand, "billing", mode, "IDS", 1, native)
        [before] = bare.xpending_range(strand, "billing", "-", "+", 10)
        assert before["consumer"] == ""
        assert region.run_plan(release(b"orders")).problem == ""
        [after] = bare.xpending_range("orders", "billing", added, added, 1)
        assert (after["consumer"], after["times_delivered"]) == ("", before["times_delivered"])
        names = {each["name"] for each in bare.xinfo_consumers("orders", "billing")}
        assert names == {"ann", "bob"}


def test_undo_leaves_pending_entries_with_a_consumer_whose_name_is_empty(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        native_stream(bare)
        adopt_here(region)
        added = region.xadd("orders", {"new": 1})
        region.xreadgroup("billing", "", {"orders": ">"})
        assert region.run_plan(release(b"orders")).problem == ""
        [row] = bare.xpending_range("orders", "billing", added, added, 1)
        assert (row["consumer"], row["times_delivered"]) == ("", 1)
        assert row["time_since_delivered"] >= 0
        owners = {each["name"]: each["pending"] for each in bare.xinfo_consumers("orders", "billing")}
        assert owners == {"ann": 6, "": 11}


def test_undo_is_refused_if_lua_would_round_an_id(region: Any, engine: Engine) -> None:
    with bare_client(engine) as bare:
        native_stream(bare)
        adopt_here(region)
        region.xadd("orders", {"n": "1"})
        for sequence in (2**43 + 1, 2**43 + 2):
            bare.xadd("bs:1:s:{orders}", {"n": "2"}, id=f"4102444800000-{sequence}")
        before = region.xrange("orders")
        assert "too large a sequence" in region.run_plan(release(b"orders")).problem
        assert region.xrange("orders") == before


def test_undo_of_a_stream_with_later_chosen_ids_is_refused_and_others_go_on(
    region: Any, engine: Engine
) -> None:
    with bare_client(engine) as bare:
        for name in ("orders", "other"):
            native_stream(bare, name)
            adopt_here(region, name)
        region.run_plan(tune_id_mode("semi-strict"))
        region.session.cache.expire_region()
        region.xadd("orders", {"n": "generated"})
        region.xadd("orders", {"n": "chosen"}, id=f"{int(time.time() * 1000) + 60_000}-1")
        before = region.xrange("orders")
        assert "an ID that was chosen since" in region.run_plan(release(b"orders")).problem
        assert region.xrange("orders") == before
        assert region.run_plan(release(b"other")).problem == ""
        region.xdel("orders", before[-2][0])
        assert region.run_plan(release(b"orders")).problem == ""
        assert bare.xrange("orders") == [*before[:-2], before[-1]]

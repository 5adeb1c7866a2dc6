"""readStream with a lake: from history to the live stream in one query, each entry once."""

from collections.abc import Callable
from typing import Any

import pytest

from braidstream.errors import DataLossError, LakeError, OptionError
from braidstream.operations.adoption import adopt
from braidstream.spark.source.survey import Surveyor
from tests.spark.conftest import Query
from tests.support.lakes import Run, add
from tests.support.microbatch import Killed, Micro
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.world import World


def micro_query(engine: Engine, lake: str, **options: Any) -> Micro:
    given = {"url": engine.url, "streams": "orders", "lake": lake, "startingOffsets": "earliest", **options}
    return Micro(given)


@pytest.mark.parametrize("is_region", [True, False])
def test_a_query_begins_in_the_lake_and_goes_on_with_the_stream(
    archive: Run, lake: str, engine: Engine, is_region: bool
) -> None:
    if is_region:
        become(engine)
    with client_of(engine) if is_region else engine.client() as client:
        add(client, *range(10))
        assert archive(trim=True).trimmed == 10
        add(client, *range(10, 15))
        archive()
        add(client, *range(15, 18))
        micro = micro_query(engine, lake)
        assert micro.numbers() == list(range(18))
        assert micro.numbers() == []
        add(client, 18, 19)
        assert archive(trim=True).trimmed == 10
        add(client, 20)
        assert micro.numbers() == [18, 19, 20]  # two of them are in the lake alone
        with_limit = micro_query(engine, lake, maxEntriesPerTrigger=4)
        assert with_limit.numbers() == list(range(21))
        assert len(with_limit.batches) >= 3


def test_a_batch_that_is_replayed_reads_the_lake_where_the_stream_was_trimmed(
    archive: Run, lake: str, engine: Engine
) -> None:
    with engine.client() as client:
        add(client, *range(4))
        archive()
        add(client, *range(4, 9))
        micro = micro_query(engine, lake)
        with pytest.raises(Killed):
            micro.run(kill_after="plan")
        assert archive(trim=True).trimmed == 9
        assert micro.numbers() == list(range(9))
        add(client, *range(9, 12))
        micro.before_read = lambda: archive(trim=True)  # between planning and reading
        with pytest.raises(DataLossError):
            micro.run()
        micro.before_read = lambda: None
        assert micro.numbers() == [9, 10, 11]
        assert sorted(int(row["fields"]["n"]) for row in micro.rows) == list(range(12))


def test_what_was_trimmed_before_it_was_archived_is_still_a_loss(
    archive: Run, lake: str, engine: Engine
) -> None:
    with engine.client() as client:
        add(client, *range(4))
        archive()
        micro = micro_query(engine, lake)
        assert micro.numbers() == [0, 1, 2, 3]
        add(client, *range(4, 9))
        client.xtrim("orders", maxlen=2, approximate=False)
        with pytest.raises(DataLossError):
            micro.run()


def test_history_of_two_regions_is_read_once_in_batches(archive: Run, lake: str, engine: Engine) -> None:
    with Engine() as other:
        world = World([engine, other])
        try:
            for n in range(24):
                add(world[1 + n % 2], n)
                if n % 3 == 0:
                    world.sync()
                    archive(trim=n % 2 == 0)  # files of one strand and of both
            world.sync()
            micro = micro_query(engine, lake, maxEntriesPerTrigger=2)
            assert micro.numbers() == list(range(24))
            assert len(micro.batches) > 2
        finally:
            world.close()


@pytest.mark.parametrize("is_failing", ["true", "false"])
def test_what_the_archive_trims_before_the_first_batch_is_read_comes_from_the_lake(
    archive: Run, lake: str, engine: Engine, is_failing: str
) -> None:
    with engine.client() as client:
        add(client, *range(10))
        micro = micro_query(engine, lake, failOnDataLoss=is_failing)
        micro.before_read = lambda: archive(trim=True)
        with pytest.raises(DataLossError, match="start the query again"):
            micro.run()
        micro.before_read = lambda: None
        assert micro.numbers() == list(range(10))


def test_what_the_archive_trims_while_the_first_batch_is_planned_comes_from_the_lake(
    archive: Run, lake: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.client() as client:
        add(client, *range(10))
        real = Surveyor.look

        def late(self: Surveyor, strands: Any) -> Any:
            archive(trim=True)  # after the planner has looked at the lake, before it looks at the server
            return real(self, strands)

        monkeypatch.setattr(Surveyor, "look", late)
        assert micro_query(engine, lake).numbers() == list(range(10))


def test_a_first_batch_of_a_stream_that_was_trimmed_empty_is_no_loss(lake: str, engine: Engine) -> None:
    with engine.client() as client:
        add(client, *range(10))
        client.xtrim("orders", maxlen=0, approximate=False)
        micro = micro_query(engine, lake)
        assert micro.numbers() == []
        add(client, 10)
        assert micro.numbers() == [10]


def test_a_strand_that_nobody_writes_since_its_stream_was_deleted(
    archive: Run, lake: str, engine: Engine
) -> None:
    with Engine() as other:
        world = World([engine, other])
        try:
            add(world[1], 0)
            add(world[2], 1)
            world.sync()
            world[1].delete("orders")
            world.sync()
            add(world[1], 2)
            assert micro_query(engine, lake).numbers() == [2]
            archive()
            assert micro_query(engine, lake).numbers() == [2]
        finally:
            world.close()


def test_a_stream_that_is_deleted_unread_is_reported(archive: Run, lake: str, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        add(client, 0, 1)
        archive()
        micro = micro_query(engine, lake)
        assert micro.numbers() == [0, 1]
        add(client, 2, 3)
        client.delete("orders")
        add(client, 4)
        with pytest.raises(DataLossError, match="deleted before it was read to its end"):
            micro.run()
        micro.options["failOnDataLoss"] = "false"
        assert micro.numbers() == [4]
        assert micro.numbers() == []


def test_a_plain_stream_that_was_created_again_is_not_read_from_the_lake_again(
    archive: Run, lake: str, engine: Engine
) -> None:
    with engine.client() as client:
        add(client, *range(5))
        micro = micro_query(engine, lake, failOnDataLoss="false")
        assert micro.numbers() == [0, 1, 2, 3, 4]
        add(client, 5)
        archive()  # the query is behind the lake
        client.delete("orders")
        client.xgroup_create("orders", "bills", "0", mkstream=True)
        assert micro.numbers() == []
        add(client, 6)
        micro.options["failOnDataLoss"] = "true"
        with pytest.raises(DataLossError, match="deleted and created again"):
            micro.run()
        micro.options["failOnDataLoss"] = "false"
        assert micro.numbers() == [5, 6]
        add(client, 7)
        assert micro.numbers() == [7]


def test_a_plain_stream_that_was_created_again_with_lower_ids_is_read_live(
    archive: Run, lake: str, engine: Engine
) -> None:
    with engine.client() as client:
        add(client, *range(5))
        micro = micro_query(engine, lake, failOnDataLoss="false")
        assert micro.numbers() == [0, 1, 2, 3, 4]
        add(client, 5)
        archive()
        client.delete("orders")
        client.xadd("orders", {"n": 6}, id="5-0")
        assert micro.numbers() == [6]
        client.xadd("orders", {"n": 7}, id="6-0")
        assert micro.numbers() == [7]


def test_a_stream_that_is_read_to_its_end_may_be_trimmed_while_another_has_history(
    archive: Run, lake: str, engine: Engine
) -> None:
    with engine.client() as client:
        for n in range(3):
            add(client, n)
            archive()
        add(client, *range(10, 15), name="other")
        starts = '{"orders": "earliest", "other": "latest"}'
        micro = micro_query(
            engine, lake, streams="orders,other", startingOffsets=starts, maxEntriesPerTrigger=1
        )
        with pytest.raises(Killed):
            micro.run(kill_after="commit")
        add(client, 15, 16, name="other")
        client.xtrim("other", maxlen=2, approximate=False)
        assert micro.numbers() == [1, 2, 15, 16]


def test_a_stream_that_was_adopted_since_it_was_archived_is_refused_to_a_new_query(
    archive: Run, lake: str, engine: Engine
) -> None:
    """Its history is in the lake alone, as that of a native stream; a query that has read it continues."""
    with engine.client() as plain:
        add(plain, 0, 1)
        archive(trim=True)
        add(plain, 2)
    micro = micro_query(engine, lake)
    assert micro.numbers() == [0, 1, 2]
    become(engine)
    with client_of(engine) as client:
        assert client.run_plan(adopt(b"orders")).problem == ""
        add(client, 3)
    with pytest.raises(LakeError, match="was adopted since then.* Archive it to another lake"):
        micro_query(engine, lake).run()
    assert micro.numbers() == [3]


def test_history_is_never_too_little_for_a_batch(archive: Run, lake: str, engine: Engine) -> None:
    with engine.client() as client:
        add(client, *range(10))
        archive(trim=True)
        add(client, 10)
        micro = micro_query(engine, lake, minEntriesPerTrigger=5, maxTriggerDelay="1h")
        assert micro.numbers(all_available=False) == list(range(11))
        add(client, 11)
        assert micro.numbers(all_available=False) == []


def test_strands_share_the_limit_of_a_batch_of_history(archive: Run, lake: str, engine: Engine) -> None:
    names = "abcdef"
    with engine.client() as client:
        for n, name in enumerate(names * 2):
            add(client, n, name=name)
            archive(streams=(name.encode(),), trim=True)
    micro = micro_query(engine, lake, streams=",".join(names), maxEntriesPerTrigger=2)
    assert micro.numbers() == list(range(12))
    assert micro.batches == [2] * 6


def test_spark_reads_history_and_stream_in_one_query(
    archive: Run, lake: str, engine: Engine, query: Callable[..., Query]
) -> None:
    with engine.client() as client:
        add(client, *range(6))
        archive(trim=True)
        add(client, 6, 7)
        both = query(streams="orders", lake=lake, startingOffsets="earliest")
        assert both.numbers() == list(range(8))
        add(client, 8)
        archive(trim=True)
        add(client, 9)
        assert both.numbers() == [8, 9]


def test_a_query_without_a_server_is_refused(lake: str) -> None:
    with pytest.raises(OptionError, match="url: missing: a streaming query continues"):
        Micro({"streams": "orders", "lake": lake}).run()

"""Streaming reads: offsets are frontiers, so nothing is skipped and nothing read twice.

By tests/support/microbatch.py, which calls the source as Spark does; test_query.py runs it under Spark.
"""

from collections.abc import Callable

import pytest

from braidstream.errors import DataLossError, OptionError
from braidstream.model.strand import Strand
from braidstream.operations.adoption import adopt
from tests.support.microbatch import Killed, Micro
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

US = Strand(b"orders", "s", 2)
Make = Callable[..., Micro]


@pytest.fixture
def query(engine: Engine) -> Make:
    return lambda **options: Micro({"url": engine.url, **options})


def add(engine: Engine, *numbers: int, name: str = "orders") -> None:
    with engine.client() as client:
        for n in numbers:
            client.xadd(name, {"n": n})


def test_a_restarted_query_goes_on_where_it_was(query: Make, engine: Engine) -> None:
    orders = query(streams="orders")
    add(engine, 0, 1)
    assert orders.numbers() == [0, 1]
    add(engine, 2, 3)
    assert orders.numbers() == [2, 3]
    assert orders.numbers() == []


@pytest.mark.parametrize("planned", [False, True], ids=["between batches", "between plan and read"])
def test_a_query_continues_in_a_stream_that_was_adopted(query: Make, engine: Engine, planned: bool) -> None:
    orders = query(streams="orders")
    add(engine, 0, 1)
    assert orders.numbers() == [0, 1]
    add(engine, 2, 3)
    if planned:
        with pytest.raises(Killed):
            orders.run(kill_after="plan")
    become(engine)
    with client_of(engine) as client:
        assert client.run_plan(adopt(b"orders")).problem == ""
        client.xadd("orders", {"n": 4})
        assert orders.numbers() == [2, 3, 4]
        client.xadd("orders", {"n": 5})
        assert orders.numbers() == [5]
        assert orders.numbers() == []


def test_latest_begins_at_the_moment_of_the_first_batch(query: Make, engine: Engine) -> None:
    orders = query(streams="orders", startingOffsets="latest")
    add(engine, 0)
    assert orders.numbers() == []
    add(engine, 1, 2)
    assert orders.numbers() == [1, 2]


def test_latest_is_the_same_moment_when_the_first_batch_is_replayed(query: Make, engine: Engine) -> None:
    """Spark's log has only the end of a batch. A first batch that failed must not begin later next time."""
    add(engine, 0)
    orders = query(streams="orders", startingOffsets="latest")
    with pytest.raises(Killed):
        orders.run(kill_after="plan")
    add(engine, 1)
    assert orders.numbers() == [1]


@pytest.mark.parametrize("step", ["plan", "read", "commit"])
def test_a_batch_that_was_cut_off_is_read_again_and_no_other(query: Make, engine: Engine, step: str) -> None:
    orders = query(streams="orders", maxEntriesPerTrigger=3)
    add(engine, *range(5))
    with pytest.raises(Killed):
        orders.run(kill_after=step)
    add(engine, *range(5, 10))
    orders.run()
    assert sorted(int(row["fields"]["n"]) for row in orders.rows) == list(range(10))


def test_limits_cut_a_backlog_into_batches(query: Make, engine: Engine) -> None:
    add(engine, *range(10))
    by_count = query(streams="orders", maxEntriesPerTrigger=4)
    assert by_count.numbers() == list(range(10))
    assert [size for size in by_count.batches if size] == [4, 4, 2]


def test_a_limit_in_bytes_lets_a_large_entry_through_alone(query: Make, engine: Engine) -> None:
    with engine.client() as client:
        for n, size in enumerate((10, 100_000, 10, 10)):
            client.xadd("orders", {"n": n, "body": b"x" * size})
    orders = query(streams="orders", maxBytesPerTrigger=1000)
    assert orders.numbers() == [0, 1, 2, 3]
    assert [size for size in orders.batches if size] == [1, 1, 2]


def test_a_stream_that_appears_later_is_read_from_its_start(query: Make, engine: Engine) -> None:
    both = query(streamPattern="orders-*", startingOffsets="latest")
    add(engine, 0, name="orders-a")
    assert both.numbers() == []
    add(engine, 1, name="orders-a")
    add(engine, 2, 3, name="orders-b")
    assert both.numbers() == [1, 2, 3]


def test_a_region_that_joins_is_read_from_its_start(query: Make, engine: Engine) -> None:
    become(engine)
    orders = query(streams="orders", startingOffsets="latest")
    with client_of(engine) as client:
        client.xadd("orders", {"n": 0})
        assert orders.numbers() == []
        client.run_plan(apply(US, [((5, 0), [b"n", b"1"]), ((6, 0), [b"n", b"2"])]))
        client.xadd("orders", {"n": 3})
        assert orders.numbers() == [1, 2, 3]


def test_an_entry_that_arrives_late_is_not_skipped(query: Make, engine: Engine) -> None:
    become(engine)
    orders = query(streams="orders")
    with client_of(engine) as client:
        client.xadd("orders", {"n": 0})
        client.run_plan(apply(US, [((5, 0), [b"n", b"1"])]))
        assert orders.numbers() == [0, 1]
        client.run_plan(apply(US, [((6, 0), [b"n", b"2"])], (5, 0)))  # long before entry 0 by its ID
        assert orders.numbers() == [2]


def test_a_trim_of_what_was_read_is_no_loss(query: Make, engine: Engine) -> None:
    orders = query(streams="orders")
    add(engine, 0, 1)
    orders.run()
    with engine.client() as client:
        client.xtrim("orders", maxlen=0)
    add(engine, 2)
    assert orders.numbers() == [2]


def test_a_trim_of_unread_entries_fails_the_query_or_is_borne(query: Make, engine: Engine) -> None:
    add(engine, 0, 1)
    orders = query(streams="orders")
    orders.run()
    add(engine, 2, 3, 4)
    with engine.client() as client:
        client.xtrim("orders", maxlen=1, approximate=False)
    with pytest.raises(DataLossError, match="stream orders: entries were trimmed before they were read"):
        orders.run()
    assert query(streams="orders", failOnDataLoss="false").numbers() == [4]


def test_a_deleted_braid_is_told_apart(query: Make, engine: Engine) -> None:
    become(engine)
    orders = query(streams="orders")
    with client_of(engine) as client:
        client.xadd("orders", {"n": 0})
        orders.run()
        client.delete("orders")
        client.xadd("orders", {"n": 1})
        assert orders.numbers() == [1]  # everything was read before it was deleted: no loss
        client.xadd("orders", {"n": 2})
        client.delete("orders")
        client.xadd("orders", {"n": 3})
    with pytest.raises(DataLossError, match="deleted before it was read to its end"):
        orders.run()
    assert query(streams="orders", failOnDataLoss="false").numbers() == [3]


def test_a_plain_stream_that_was_deleted_and_reborn_is_told_apart(query: Make, engine: Engine) -> None:
    with engine.client() as client:
        client.xadd("orders", {"n": 0}, id="900-0")
        orders = query(streams="orders")
        orders.run()
        client.delete("orders")
        client.xadd("orders", {"n": 1}, id="5-0")
    with pytest.raises(DataLossError, match="deleted and created again"):
        orders.run()
    assert query(streams="orders", failOnDataLoss="false").numbers() == [1]


def test_a_group_shows_where_the_query_is(query: Make, engine: Engine) -> None:
    become(engine)
    orders = query(streams="orders", group="billing", maxEntriesPerTrigger=2)
    with client_of(engine, decode_responses=True) as client:
        for n in range(5):
            client.xadd("orders", {"n": n})
        client.run_plan(apply(US, [((5, 0), [b"n", b"1"])]))
        with pytest.raises(Killed):
            orders.run(kill_after="commit")
        [group] = client.xinfo_groups("orders")
        assert (group["name"], group["lag"], group["pending"]) == ("billing", 4, 0)
        orders.run()
        assert client.xinfo_groups("orders")[0]["lag"] == 0


def test_a_group_on_a_plain_stream(query: Make, engine: Engine) -> None:
    add(engine, *range(5))
    query(streams="orders", group="billing").run()
    add(engine, 5)
    with engine.client(decode_responses=True) as client:
        assert client.xinfo_groups("orders")[0]["lag"] == 1


def test_two_queries_at_once_each_get_everything(query: Make, engine: Engine) -> None:
    add(engine, *range(20))
    one, two = query(streams="orders", maxEntriesPerTrigger=7), query(streams="orders", minPartitions=3)
    assert one.numbers() == two.numbers() == list(range(20))


def test_too_few_entries_are_waited_for_but_not_for_ever(query: Make, engine: Engine) -> None:
    orders = query(streams="orders", minEntriesPerTrigger=3, maxTriggerDelay="1h")
    add(engine, 0, 1)
    assert orders.numbers(all_available=False) == []
    add(engine, 2)
    assert orders.numbers(all_available=False) == [0, 1, 2]
    add(engine, 3)
    assert orders.numbers(all_available=True) == [3]
    orders.options["maxTriggerDelay"] = "0s"
    add(engine, 4)
    assert orders.numbers(all_available=False) == [4]


def test_only_the_regions_that_are_asked_for_are_read(query: Make, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        client.xadd("orders", {"n": 0})
        client.run_plan(apply(US, [((5, 0), [b"n", b"1"])]))
    assert query(streams="orders", regions="2").numbers() == [1]


@pytest.mark.parametrize(
    ("start", "wanted"),
    [
        ('{"orders": {"s2": "5-0"}}', [0, 2, 3]),  # what is not named begins at its start
        ('{"orders": {"s2": "5-0"}, "more": "latest"}', [0, 2]),
        ('{"more": "earliest", "orders": "latest"}', [3]),
        ("{}", [0, 1, 2, 3]),
    ],
)
def test_a_position_may_name_some_streams_and_some_strands(
    query: Make, engine: Engine, start: str, wanted: list[int]
) -> None:
    become(engine)
    with client_of(engine) as client:
        client.xadd("orders", {"n": 0})
        client.run_plan(apply(US, [((5, 0), [b"n", b"1"]), ((6, 0), [b"n", b"2"])]))
        client.xadd("more", {"n": 3})
    orders = query(streams="orders,more", startingOffsets=start)
    assert orders.numbers() == wanted
    with client_of(engine) as client:
        client.xadd("orders", {"n": 10})
    assert orders.numbers() == [10]


def test_a_wrong_start_is_refused_by_name(query: Make) -> None:
    with pytest.raises(OptionError, match="startingOffsets: orders: 'x' is no ID"):
        query(streams="orders", startingOffsets='{"orders": "x"}').run()

"""Entries that are gone before they were read: trimmed, deleted one by one, or unknown which.

A query has read entries 1, 2 and 3; then something happens to the stream.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from braidstream.errors import DataLossError, NotReplicatedError
from tests.support.microbatch import Killed, Micro
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.world import World

TRIMMED = "entries were trimmed before they were read"
GONE = "trimmed, or deleted one by one, before they were read; the server cannot tell which"


def entry(client: Any, *numbers: int) -> None:
    for n in numbers:
        client.xadd("orders", {"n": n}, id=f"{n}-0")


def trim(client: Any, first: int) -> None:
    client.xtrim("orders", minid=f"{first}-0", approximate=False)


@pytest.fixture
def client(engine: Engine) -> Iterator[redis.Redis]:
    with engine.client() as made:
        yield made


@pytest.fixture
def query(engine: Engine, client: redis.Redis) -> Callable[..., Micro]:
    def made(**options: Any) -> Micro:
        query = Micro({"url": engine.url, "streams": "orders", **options})
        entry(client, 1, 2, 3)
        query.run()
        return query

    return made


Make = Callable[..., Micro]


def test_an_entry_deleted_by_id_is_no_loss_although_all_before_it_is_trimmed(
    query: Make, client: redis.Redis
) -> None:
    orders = query()
    entry(client, 4, 5, 6)
    trim(client, 4)
    client.xdel("orders", "5-0")
    assert orders.numbers() == [4, 6]
    entry(client, 7, 8)
    trim(client, 7)
    client.xdel("orders", "7-0")  # the head itself
    assert orders.numbers() == [8]


def test_any_number_deleted_by_id_is_no_loss_while_an_entry_that_was_read_is_there(
    query: Make, client: redis.Redis
) -> None:
    orders = query()
    entry(client, 4, 5, 6, 7)
    trim(client, 3)
    client.xdel("orders", "4-0", "5-0", "7-0")
    assert orders.numbers() == [6]


@pytest.mark.parametrize("deleted", [None, 2])
def test_a_trim_past_the_query_is_told_as_one(query: Make, client: redis.Redis, deleted: int | None) -> None:
    orders = query()
    if deleted:
        client.xdel("orders", f"{deleted}-0")  # one that was read: it cannot be what is missing
    entry(client, 4, 5, 6)
    trim(client, 6)
    with pytest.raises(DataLossError, match=TRIMMED):
        orders.run()
    orders.options["failOnDataLoss"] = "false"
    assert orders.numbers() == [6]


def test_a_trim_and_a_deletion_of_unread_entries_cannot_be_told_apart_and_that_is_said(
    query: Make, client: redis.Redis
) -> None:
    orders = query()
    entry(client, 4, 5, 6)
    client.xdel("orders", "5-0")
    trim(client, 6)
    with pytest.raises(DataLossError, match=GONE):
        orders.run()
    orders.options["failOnDataLoss"] = "false"
    assert orders.numbers() == [6]


def test_a_trim_between_planning_and_reading_is_noticed(query: Make, client: redis.Redis) -> None:
    orders = query()
    trim(client, 4)
    entry(client, 4, 5, 6)
    orders.before_read = lambda: trim(client, 6)
    with pytest.raises(DataLossError, match=TRIMMED + ".*It happened while the batch was read"):
        orders.run()
    with pytest.raises(DataLossError, match=TRIMMED):
        orders.run()
    orders.options["failOnDataLoss"] = "false"
    assert orders.numbers() == [6]


def test_a_trim_of_everything_between_planning_and_reading_is_noticed(
    query: Make, client: redis.Redis
) -> None:
    orders = query()
    entry(client, 4, 5, 6)
    orders.before_read = lambda: trim(client, 7)
    with pytest.raises(DataLossError, match=TRIMMED + ".*It happened while the batch was read"):
        orders.run()


def test_a_trim_of_what_came_while_an_available_now_run_went_on_is_noticed(
    engine: Engine, client: redis.Redis
) -> None:
    orders = Micro({"url": engine.url, "streams": "orders", "maxEntriesPerTrigger": 2})
    entry(client, 1, 2, 3)
    late = iter([4, 5])
    orders.before_read = lambda: entry(client, *late)
    assert orders.numbers() == [1, 2, 3]
    trim(client, 6)
    entry(client, 6)
    with pytest.raises(DataLossError, match=TRIMMED):
        orders.run()


def test_a_query_that_began_in_the_middle_bears_a_trim_of_what_it_has_read(
    engine: Engine, client: redis.Redis
) -> None:
    entry(client, *range(1, 11))
    begin = {"startingOffsets": '{"orders": "4-0"}', "maxEntriesPerTrigger": 2}
    orders = Micro({"url": engine.url, "streams": "orders", **begin})
    reads = iter([6, 8])  # after the first batch it has read up to 6, then up to 8
    orders.before_read = lambda: trim(client, next(reads, 8) - 1)
    assert orders.numbers() == [5, 6, 7, 8, 9, 10]


def test_a_query_that_waits_for_more_entries_bears_a_trim_of_what_is_before_it(
    engine: Engine, client: redis.Redis
) -> None:
    entry(client, 1, 2, 3)
    options = {"startingOffsets": "latest", "minEntriesPerTrigger": 2, "maxTriggerDelay": "1h"}
    waiting = Micro({"url": engine.url, "streams": "orders", **options})
    assert waiting.numbers(all_available=False) == []
    entry(client, 4, 5)
    trim(client, 4)
    assert waiting.numbers(all_available=False) == [4, 5]


def test_a_deletion_between_planning_and_reading_is_no_loss(query: Make, client: redis.Redis) -> None:
    orders = query()
    trim(client, 4)
    entry(client, 4, 5, 6)
    orders.before_read = lambda: client.xdel("orders", "4-0")
    assert orders.numbers() == [5, 6]


def test_a_stream_deleted_between_planning_and_reading_is_told(query: Make, client: redis.Redis) -> None:
    orders = query()
    trim(client, 4)
    entry(client, 4, 5)
    orders.before_read = lambda: client.delete("orders")
    with pytest.raises(DataLossError, match="the stream was deleted"):
        orders.run()


def test_a_region_that_trimmed_what_was_read_elsewhere_says_that_it_cannot_tell(engine: Engine) -> None:
    with Engine("valkey-9.1") as other:
        world = World([engine, other])
        query = Micro({"streams": "orders", "url": engine.url, "fallbackUrls": other.url})
        for n in range(3):
            world[1].xadd("orders", {"n": n})
        query.run()
        world.sync()
        world[1].xadd("orders", {"n": 3})
        world[1].xtrim("orders", maxlen=1, approximate=False)
        world.sync()
        query.options |= {"url": other.url, "fallbackUrls": engine.url}
        with pytest.raises(DataLossError, match="unread entries may be trimmed too"):
            query.run()
        query.options |= {"url": engine.url, "fallbackUrls": other.url}
        assert query.numbers() == [3]  # where it was counted it is known that nothing is missing
        world.close()


def swap(client: redis.Redis, key: str, older: bytes) -> bytes:
    """A replica without the newest entries was promoted. Returns what the old primary had."""
    newer = client.dump(key)
    assert isinstance(newer, bytes)
    client.restore(key, 0, older, replace=True)
    return newer


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_task_does_not_skip_what_its_promoted_server_has_not(
    engine: Engine, client: redis.Redis, pieces: int
) -> None:
    become(engine)
    options = {"streams": "orders", "replicationWait": "0.1s", "minPartitions": pieces}
    with client_of(engine) as ours:
        ours.xadd("orders", {"n": 0})
        older: Any = client.dump("bs:1:s:{orders}")
        for n in range(1, 6):
            ours.xadd("orders", {"n": n})
    query, lost = Micro({"url": engine.url, **options}), list[bytes]()
    query.before_read = lambda: lost.append(swap(client, "bs:1:s:{orders}", older))
    with pytest.raises(NotReplicatedError, match="Nothing is lost"):
        query.run()
    swap(client, "bs:1:s:{orders}", lost[0])  # the peers have restored it
    query.before_read = lambda: None
    assert query.numbers() == [0, 1, 2, 3, 4, 5]


def test_what_a_promoted_server_has_lost_of_a_plain_stream_is_told(query: Make, client: redis.Redis) -> None:
    orders = query()
    older: Any = client.dump("orders")
    entry(client, 4, 5)
    orders.before_read = lambda: swap(client, "orders", older)
    with pytest.raises(DataLossError, match="It happened while the batch was read"):
        orders.run()


@pytest.mark.parametrize("command", ["SET orders text", "HSET orders a b"])
def test_a_name_that_is_another_kind_of_key_after_its_stream_was_deleted_stops_no_query(
    engine: Engine, client: redis.Redis, command: str
) -> None:
    """A hash may also be the fence of an adopted stream that was deleted."""
    become(engine)
    by_name = Micro({"url": engine.url, "streams": "orders,other", "failOnDataLoss": "false"})
    by_pattern = Micro({"url": engine.url, "streamPattern": "o*"})
    with client_of(engine) as ours:
        for n, name in enumerate(("orders", "other")):
            ours.xadd(name, {"n": n})
        assert by_name.numbers() == [0, 1]
        ours.delete("orders")
        client.execute_command(*command.split())
        ours.xadd("other", {"n": 2})
    assert by_name.numbers() == [2]
    assert by_pattern.numbers() == [1, 2]


def test_a_batch_of_chosen_ids_whose_stream_was_deleted_and_written_again_does_not_wait_for_ever(
    engine: Engine,
) -> None:
    become(engine, id_mode="liberal")
    query = Micro({"url": engine.url, "streams": "orders", "replicationWait": "0.1s"})
    with client_of(engine) as ours:
        entry(ours, 1, 2, 3)
        assert query.numbers() == [1, 2, 3]
        entry(ours, 4, 5)
        with pytest.raises(Killed):
            query.run(kill_after="plan")
        ours.delete("orders")
        entry(ours, 6, 7)
    with pytest.raises(DataLossError, match="the stream was deleted before it was read"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.numbers() == [6, 7]


def test_a_key_that_the_server_has_lost_is_told_as_a_loss_and_not_as_a_deletion(
    engine: Engine, client: redis.Redis
) -> None:
    become(engine)
    query = Micro({"url": engine.url, "streams": "orders"})
    with client_of(engine) as ours:
        ours.xadd("orders", {"n": 1})
        assert query.numbers() == [1]
        ours.xadd("orders", {"n": 2})
        client.delete("bs:1:s:{orders}")
        ours.xadd("orders", {"n": 3})
    with pytest.raises(DataLossError, match="the server has lost the stream's key"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.numbers() == [3]

"""Routes give what plans give: the short way of common commands, also when the cache is stale."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import braidstream
from braidstream.clients import routes
from braidstream.operations import log_upkeep
from tests.support.clients import Opener
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually
from tests.support.world import World

SHAPES = [
    {"decode_responses": False},
    {"decode_responses": True},
    {"decode_responses": False, "protocol": 3},
    {"decode_responses": True, "protocol": 3},
]


def warm(opened: Opener, engine: Engine, **options: Any) -> Any:
    """A client that has read the stream and its group, so that it may take routes."""
    client = opened(engine.url, **options)
    client.xreadgroup("g", "c", {"x": ">"}, count=1)
    client.xlen("x")
    return client


def taken(client: Any) -> int:
    return client.session.routes.taken  # type: ignore[no-any-return]


def filled(engine: Engine, entries: int = 20) -> list[bytes]:
    become(engine)
    with client_of(engine, decode_responses=False) as writer:
        found = [writer.xadd("x", {"n": str(n), "é": b"\xc3\xa9"}) for n in range(entries)]
        for group in ("g", "plan"):
            writer.xgroup_create("x", group, "0")
    return found


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_a_route_and_its_plan_give_the_same(
    opened: Opener, engine: Engine, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    filled(engine)
    client = warm(opened, engine, **options)
    client.xreadgroup("plan", "c", {"x": ">"}, count=1)
    calls: list[Any] = [
        lambda group: client.xreadgroup(group, "c", {"x": ">"}, count=3),
        lambda group: client.xreadgroup(group, "c", {b"x": ">"}, count=3, block=50),
        lambda group: client.xreadgroup(group, "c", {"x": ">"}),
        lambda group: client.xreadgroup(group, "c", {"x": ">"}),
        lambda group: client.xreadgroup(group, "c", {"x": ">"}, block=1),
        lambda group: client.xlen("x"),
        lambda group: client.xack("x", group, *[row[0] for row in client.xrange("x", count=2)]),
        lambda group: client.xack("x", group, *[row[0] for row in client.xrange("x", count=3)]),
        lambda group: client.xack("x", group, "1-1"),
    ]
    before = taken(client)
    routed = [call("g") for call in calls]
    assert taken(client) >= before + 5
    monkeypatch.setattr(routes, "ROUTED", frozenset())
    monkeypatch.setattr("braidstream.clients.shared.ROUTED", frozenset())
    before = taken(client)
    planned = [call("plan") for call in calls]
    assert taken(client) == before
    assert routed == planned
    assert routed[6:] == [2, 1, 0]


def test_a_group_that_was_destroyed_and_created_is_read_again_from_its_start(
    opened: Opener, engine: Engine
) -> None:
    written = filled(engine)
    client = warm(opened, engine)
    with client_of(engine) as other:
        other.xgroup_destroy("x", "g")
        with pytest.raises(braidstream.ResponseError, match="NOGROUP"):
            client.xreadgroup("g", "c", {"x": ">"}, count=2)
        other.xgroup_create("x", "g", written[17])
    [[_, page]] = client.xreadgroup("g", "c", {"x": ">"}, count=5)
    assert [entry for entry, _ in page] == written[18:]


def test_a_strand_that_appears_is_read_acknowledged_and_counted(opened: Opener, engine: Engine) -> None:
    """An entry with an ID that a user chose lies in a second strand."""
    written = filled(engine, 3)
    client = warm(opened, engine)
    with client_of(engine) as other:
        other.execute_command("CONFIG", "SET", "latency-tracking", "no")
        other.hset("bs:config", "id-mode", "liberal")
        ahead = written[-1].partition(b"-")[0] + b"9-5"
    with client_of(engine) as other:
        other.xadd("x", {"n": "chosen"}, id=ahead)
    [[_, page]] = client.xreadgroup("g", "c", {"x": ">"}, count=10)
    assert [entry for entry, _ in page] == [*written[1:], ahead]
    assert client.xlen("x") == 4
    assert client.xack("x", "g", *written, ahead) == 4


@pytest.mark.parametrize("change", ["delete", "rename", "recreate", "other type"])
def test_a_stream_that_changed_since_is_not_read_from_the_cache(
    opened: Opener, engine: Engine, change: str
) -> None:
    filled(engine)
    client = warm(opened, engine)
    with client_of(engine) as other:
        if change == "rename":
            other.rename("x", "y")
        else:
            other.delete("x")
        if change == "recreate":
            other.xadd("x", {"n": "new"})
            other.xgroup_create("x", "g", "0")
        elif change == "other type":
            other.set("x", "text")
    if change == "recreate":
        assert client.xlen("x") == 1
        [[_, page]] = client.xreadgroup("g", "c", {"x": ">"}, count=5)
        assert [fields for _, fields in page] == [{b"n": b"new"}]
        return
    error = "WRONGTYPE" if change == "other type" else "NOGROUP"
    with pytest.raises(braidstream.ResponseError, match=error):
        client.xreadgroup("g", "c", {"x": ">"}, count=5)
    if change == "other type":
        with pytest.raises(braidstream.ResponseError, match="WRONGTYPE"):
            client.xlen("x")
    else:
        assert client.xlen("x") == 0
        assert client.xack("x", "g", "1-1") == 0


def test_odd_words_are_left_to_the_plan(opened: Opener, engine: Engine) -> None:
    written = filled(engine)
    client = warm(opened, engine)
    assert client.xack("x", "g", written[0], written[0]) == 1
    assert client.xack("x", "nobody", written[0]) == 0
    for words in (("XACK", "x", "g", "one"), ("XACK", "x", "g"), ("XLEN",), ("XLEN", "x", "y")):
        with pytest.raises(braidstream.ResponseError):
            client.execute_command(*words)
    for count in ("-", "1.5"):
        with pytest.raises(braidstream.ResponseError, match="not an integer"):
            client.execute_command("XREADGROUP", "GROUP", "g", "c", "COUNT", count, "STREAMS", "x", ">")


def test_an_expired_stream_is_gone(opened: Opener, engine: Engine) -> None:
    filled(engine)
    client = warm(opened, engine)
    with client_of(engine) as other:
        other.pexpire("x", 1)
        while other.exists("x"):
            pass
    assert client.xlen("x") == 0
    with pytest.raises(braidstream.ResponseError, match="NOGROUP"):
        client.xreadgroup("g", "c", {"x": ">"}, count=5)


def test_entries_of_several_regions_are_acknowledged_and_counted(
    opened: Opener, make_world: Callable[..., World]
) -> None:
    world = make_world(2)
    written = [world[1 + n % 2].xadd("x", {"n": str(n)}) for n in range(6)]
    world[1].xgroup_create("x", "g", "0")
    world.sync()
    client = warm(opened, world.engines[0], decode_responses=True)
    client.xreadgroup("g", "c", {"x": ">"})
    before = taken(client)
    assert client.xlen("x") == 6
    assert client.xack("x", "g", written[0], written[1], "1-7") == 2
    assert client.xack("x", "g", written[0], written[3]) == 1
    assert client.xack("x", "g", *written[2:]) == 3
    assert taken(client) == before + 1
    client.xreadgroup("g", "d", {"x": ">"})
    world[2].xadd("x", {"n": "late"})
    world.sync()
    [[_, [(late, _)]]] = client.xreadgroup("g", "c", {"x": ">"})
    assert client.xack("x", "g", late) == 1
    assert taken(client) == before + 4
    assert client.xlen("x") == 7


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_a_log_is_written_by_routes(opened: Opener, engine: Engine, options: dict[str, Any]) -> None:
    become(engine)
    client = opened(engine.url, **options)
    written = [client.twrite("ledger", "tag", f"entry {number}") for number in range(3)]
    before = taken(client)
    written += [client.twrite("ledger", b"tag", "entry"), client.twrite(b"ledger", "tag", b"\xff")]
    written.append(client.execute_command("TWRITE", "ledger", 4, 1.5))
    assert written == [1, 2, 3, 4, 5, 6]
    assert taken(client) == before + 3
    with client_of(engine, decode_responses=False) as other:
        assert other.tread("ledger", 5, 2) == [(5, b"tag", b"\xff"), (6, b"4", b"1.5")]


def test_a_pipeline_of_appends_to_logs(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url, decode_responses=True)
    for _ in range(2):
        with client.pipeline(transaction=False) as pipe:
            for number in range(4):
                pipe.twrite("ledger", "tag", str(number))
                pipe.xadd("orders", {"n": number})
            pipe.get("plain")
            found = pipe.execute()
    assert found[:-1:2] == [5, 6, 7, 8]
    assert found[1:-1:2] == [entry for entry, _ in client.xrange("orders")[4:]]
    assert found[-1] is None
    with client.pipeline(transaction=False) as pipe:
        for number in range(3):
            pipe.twrite("ledger", "tag", str(number))
        assert pipe.execute() == [9, 10, 11]


def test_a_log_whose_settings_change_keeps_them(opened: Opener, engine: Engine) -> None:
    become(engine)
    client = opened(engine.url)
    client.twrite("ledger", "tag", "1")
    client.twrite("ledger", "tag", "2")
    client.tcfgset("ledger", backlog=100)
    for _ in range(1001):
        client.twrite("ledger", "tag", "more")
    first, last = client.tread("ledger", 0, 0, withinfo=True)[0]
    assert 1 < first < 1000 < last


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_log_that_was_deleted_or_has_moved_is_looked_up_again(
    opened: Opener, make_world: Callable[..., World], pipelined: bool
) -> None:
    def write(number: int) -> list[Any]:
        if not pipelined:
            return [client.twrite("ledger", "tag", str(number))]
        with client.pipeline(transaction=False) as pipe:
            for _ in range(3):
                pipe.twrite("ledger", "tag", str(number))
            found: list[Any] = pipe.execute(raise_on_error=False)
            return found

    world = make_world(2)
    client = opened(world.engines[0].url, decode_responses=True)
    first = [*write(1), *write(2)]
    assert first == [*range(1, len(first) + 1)]
    world[1].delete("ledger")
    assert write(3)[0] == len(first) + 1
    world.sync()
    [*_, written] = write(3)
    world.sync()
    home = log_upkeep.home_of(world[1].run_plan(log_upkeep.read_log(b"ledger")))
    world[1].run_plan(log_upkeep.end_epoch(b"ledger", home, 2, force=False))
    world.sync()
    if pipelined:
        assert all("region 2" in str(each) for each in write(4))
    else:
        with pytest.raises(braidstream.ResponseError, match="region 2"):
            write(4)
    assert world[2].tread("ledger", 0, 0, withinfo=True)[0][1] >= written


@pytest.mark.parametrize("options", [SHAPES[0], SHAPES[3]], ids=str)
@pytest.mark.parametrize(
    "writers", [(1,), (1, 2, 3), (1, 1, 1, 1, 1, 1, 1, 2, 3)], ids=["one", "even", "uneven"]
)
def test_any_position_and_count_is_read_as_by_the_plan(
    opened: Opener,
    make_world: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    writers: tuple[int, ...],
    options: dict[str, Any],
) -> None:
    dice = random.Random(repr((writers, options)))
    world = make_world(3)
    for number in range(300):
        world[dice.choice(writers)].xadd("x", {"n": number, "\u00e9": b"\xc3\xa9"})
    world.sync()
    client = opened(world.engines[0].url, **options)
    entries = [entry for entry, _ in client.xrange("x")]
    client.xread({"x": "0"})
    before = taken(client)
    asked = [
        (dice.choice(["0", "0-1", *dice.sample(entries, 3), entries[-1], "99999999999999-5"]), count)
        for count in (None, 1, 2, 7, 9, 50, 100, 299, 300, 301, 5000)
        for _ in range(3)
    ]
    found = [client.xread({"x": since}, count=count) for since, count in asked]
    found += [client.xread({b"x": since}, count=count, block=1) for since, count in asked]
    assert taken(client) - before > len(asked)
    monkeypatch.setattr(routes, "ROUTED", frozenset())
    monkeypatch.setattr("braidstream.clients.shared.ROUTED", frozenset())
    assert found == 2 * [client.xread({"x": since}, count=count) for since, count in asked]


def test_a_read_of_a_stream_that_changed_is_not_from_the_cache(opened: Opener, engine: Engine) -> None:
    filled(engine)
    client = opened(engine.url, decode_responses=True)
    [[_, page]] = client.xread({"x": "0"})
    before = taken(client)
    assert client.xread({"x": page[-1][0]}) == []
    assert taken(client) == before + 1
    with client_of(engine) as other:
        other.delete("x")
        assert client.xread({"x": "0"}) == []
        other.xadd("x", {"n": "again"})
    [[_, [(_, fields)]]] = client.xread({"x": "0"}, count=5)
    assert fields == {"n": "again"}
    for words in (("x",), ("x", "y", "0"), ("x", ">"), ("x", "one")):
        with pytest.raises(braidstream.ResponseError):
            client.execute_command("XREAD", "STREAMS", *words)


@pytest.mark.parametrize("count", [1, 3, None])
@pytest.mark.parametrize("options", [SHAPES[0], SHAPES[3]], ids=str)
def test_a_group_over_several_writers_is_read_once_and_in_the_order_of_each(
    opened: Opener, make_world: Callable[..., World], count: int | None, options: dict[str, Any]
) -> None:
    dice = random.Random(count)
    world = make_world(3)
    world[1].xgroup_create("x", "g", "0", mkstream=True)
    world.sync()
    clients = [opened(world.engines[0].url, **options) for _ in range(2)]
    written, given = list[Any](), list[Any]()

    def write(entries: int) -> None:
        for _ in range(entries):
            entry = world[dice.choice([1, 2, 2, 3, 3, 3])].xadd("x", {"n": len(written)})
            written.append(entry.encode())
        world.sync()

    def read() -> int:
        reply = dice.choice(clients).xreadgroup("g", "c", {"x": ">"}, count=count)
        page = [] if not reply else reply["x"][0] if isinstance(reply, dict) else reply[0][1]
        found = [entry if isinstance(entry, bytes) else entry.encode() for entry, _ in page]
        assert found == sorted(found, key=number)
        assert count is None or len(found) <= count
        given.extend(found)
        return len(found)

    for _ in range(12):
        write(dice.choice([0, 1, 3, 20]))
        for _ in range(dice.choice([1, 3, 10])):
            assert read() or len(given) == len(written)
    while read():
        pass
    assert sorted(given, key=number) == sorted(written, key=number)
    for writer in (1, 2, 3):
        mine = [entry for entry in given if number(entry)[1] % 1024 == writer]
        assert mine == sorted(mine, key=number)
    assert sum(map(taken, clients)) > 10


def number(entry: bytes) -> tuple[int, int]:
    ms, _, seq = entry.partition(b"-")
    return int(ms), int(seq)


@pytest.mark.parametrize("end", ["entry", "TIMEOUT", "ERROR"])
def test_a_consumer_waits_natively_until_an_entry_comes_or_it_is_unblocked(
    opened: Opener, engine: Engine, end: str
) -> None:
    filled(engine, 3)
    client = warm(opened, engine)
    client.xreadgroup("g", "c", {"x": ">"}, count=10)
    before = taken(client)
    with client_of(engine) as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.xreadgroup, "g", "c", {"x": ">"}, count=10, block=5000)
        blocked = lambda: [each for each in other.client_list() if "b" in each["flags"]]  # noqa: E731
        eventually(blocked, within_s=4, why="the read should wait")
        if end == "entry":
            written = other.xadd("x", {"n": "new"})
        else:
            other.client_unblock(int(blocked()[0]["id"]), error=end == "ERROR")
        if end == "ERROR":
            with pytest.raises(braidstream.ResponseError, match="unblocked via CLIENT UNBLOCK"):
                waiting.result(4)
            return
        found = waiting.result(4)
    assert found == ([] if end == "TIMEOUT" else [[b"x", [(written, {b"n": b"new"})]]])
    assert taken(client) == before + 1


def test_a_strand_that_appears_while_a_consumer_waits_is_read(
    opened: Opener, make_world: Callable[..., World]
) -> None:
    world = make_world(2)
    world[1].xadd("x", {"n": "1"})
    world[1].xgroup_create("x", "g", "0")
    client = warm(opened, world.engines[0], decode_responses=True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.xreadgroup, "g", "c", {"x": ">"}, count=10, block=5000)
        blocked = lambda: world[1].info("clients")["blocked_clients"]  # noqa: E731
        eventually(blocked, within_s=4, why="the read should wait")
        world.sync()
        late = world[2].xadd("x", {"n": "2"})
        world.sync()
        [[_, page]] = waiting.result(10)
    assert [entry for entry, _ in page] == [late]

"""Group reads while something else happens: what was taken is given, what is a region's own stays there."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

import braidstream
from braidstream.clients.shared import spec_of
from braidstream.commands.xreadgroup import read_group
from braidstream.engine.redis_py import resp2
from braidstream.errors import ReplyError
from braidstream.plan.gather import Queued, pipeline
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import Carriage
from tests.support.gateways import Served
from tests.support.servers import Engine
from tests.support.world import World


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    with Engine() as other:
        made = World([engine, other], id_mode="liberal")
        yield made
        made.close()


def drive(client: Any, plan: Plan[Any], before: Callable[[Batch], None]) -> Any:
    """Run a plan; `before` is what another client does just before a batch is sent."""
    step, value = plan.send, None
    while True:
        try:
            batch = step(value)
        except StopIteration as end:
            return end.value
        before(batch)

        def one(batch: Batch = batch) -> Plan[Any]:
            try:
                return (yield batch)
            except ReplyError as error:
                return error

        heard = client.run_plan(one())
        step, value = (plan.throw if isinstance(heard, ReplyError) else plan.send), heard


def ringing(client: Any, name: str) -> Callable[[Batch], None]:
    """Once, before the first read of a stream: another group is made there."""
    left = [name]

    def before(batch: Batch) -> None:
        key = f"bs:1:s:{{{name}}}".encode()
        if left and any(words[0] == "XREADGROUP" and key in words for words in batch.commands):
            client.xgroup_create(left.pop(), "another", "0")

    return before


def test_what_was_taken_of_one_stream_is_given_though_the_next_has_changed(world: World) -> None:
    for name in ("a", "b"):
        world[1].xadd(name, {"of": name})
        world[1].xgroup_create(name, "g", "0")
    asked = [b"XREADGROUP", b"GROUP", b"g", b"me", b"STREAMS", b"a", b"b", b">", b">"]
    client: Any = world[1]
    got = drive(client, read_group(client.session.view(), asked), ringing(world[1], "b"))
    given = {bytes(name) for name, _ in got}
    for name in ("a", "b"):
        assert world[1].xpending(name, "g")["pending"] == (name.encode() in given)
    assert b"a" in given


@pytest.mark.parametrize("count", [(), (b"COUNT", b"5")])
def test_a_pipeline_delivers_nothing_that_was_handed_over_since_it_looked(
    world: World, count: tuple[bytes, ...]
) -> None:
    one: Any = world[1]
    one.xadd("x", {"n": "1"})
    one.execute_command("XGROUP CREATE", "x", "g", "0", "SCOPE", "ONCE")
    world.sync()
    left = [1]

    def hand_over(batch: Any) -> None:
        if left and any(words[0] == "XREADGROUP" for words in batch.commands):
            left.clear()
            world[2].execute_command("XGROUP GIVE", "x", "g", "REGION", 1, "TO", "REGION", 2)
            world.sync()

    argv = [b"XREADGROUP", b"GROUP", b"g", b"me", *count, b"STREAMS", b"x", b">"]
    queued = [Queued(argv, spec_of(argv), argv)]
    drive(one, pipeline(one.session.view(Carriage.PIPELINE), queued, resp2), hand_over)
    assert not left
    assert queued[0].result is None
    assert one.xpending("x", "g")["pending"] == 0
    assert len(world[2].xreadgroup("g", "other", {"x": ">"})[0][1]) == 1


READS = {
    "all": "STREAMS x >",
    "COUNT 2": "COUNT 2 STREAMS x >",
    "COUNT 1": "COUNT 1 STREAMS x >",
    "COUNT 1 BLOCK": "COUNT 1 BLOCK 1500 STREAMS x >",
    "BLOCK": "COUNT 4 BLOCK 1500 STREAMS x >",
    "MAXCOUNT": "MAXCOUNT 1 BLOCK 1500 STREAMS x >",
    "two streams": "COUNT 1 STREAMS y x > >",
    "CLAIM": "CLAIM 500000 STREAMS x >",
}


@pytest.mark.parametrize("forgets", ["session", "name"])
@pytest.mark.parametrize("there", [0, 1], ids=["nothing new", "an entry"])
@pytest.mark.parametrize("read", READS)
def test_a_read_keeps_what_it_knows_when_others_make_the_client_forget(
    world: World, read: str, there: int, forgets: str
) -> None:
    """A gateway's clients share one cache, and a new login clears it."""
    client: Any = world[1]
    for name in ("x", "y"):
        world[1].xadd(name, {"n": 0})
        world[2].xadd(name, {"n": 0})
        world[1].xgroup_create(name, "g", "$")
    world.sync()
    world[1].xreadgroup("g", "me", {"x": ">", "y": ">"}, noack=True)
    for _ in range(there):
        world[1].xadd("x", {"n": 1})

    def forget(_: Batch) -> None:
        if forgets == "session":
            client.session.cache.forget_all()
        else:
            client.session.view().forget(b"x")

    asked = [b"XREADGROUP", b"GROUP", b"g", b"me", *READS[read].encode().split()]
    got = drive(client, read_group(client.session.view(), asked), forget)
    assert sum(len(entries) for _, entries in got or []) == there


@pytest.mark.parametrize("read", READS)
def test_a_read_looks_again_as_long_as_the_bell_rings(world: World, read: str) -> None:
    client: Any = world[1]
    for name in ("x", "y"):
        world[1].xadd(name, {"n": 0})
        world[2].xadd(name, {"n": 0})
        world[1].xgroup_create(name, "g", "$")
    world.sync()
    world[1].xreadgroup("g", "me", {"x": ">", "y": ">"}, noack=True)
    world[1].xadd("x", {"n": 1})
    left = ["first", "second", "third"]

    def ring(batch: Batch) -> None:
        if left and any(words[0] == "XREADGROUP" for words in batch.commands):
            world[1].xgroup_create("x", left.pop(), "0")

    asked = [b"XREADGROUP", b"GROUP", b"g", b"me", *READS[read].encode().split()]
    got = drive(client, read_group(client.session.view(), asked), ring)
    assert sum(len(entries) for _, entries in got or []) == 1
    assert not left


DURING = [
    "XREADGROUP GROUP g me STREAMS x >",
    "XREADGROUP GROUP g me COUNT 1 STREAMS x >",
    "XREADGROUP GROUP g me BLOCK 1500 STREAMS x >",
    "XREADGROUP GROUP g me STREAMS x 0",
    "XREADGROUP GROUP g me CLAIM 0 STREAMS x >",
    "XPENDING x g",
    "XPENDING x g - + 10",
    "XCLAIM x g me 0 1-1",
    "XAUTOCLAIM x g me 0 0",
    "XNACK x g FAIL IDS 1 1-1",
    "XINFO CONSUMERS x",
    "XGROUP CREATECONSUMER x g you",
    "XGROUP DELCONSUMER x g me",
    "XGROUP SETID x g 0",
]


@pytest.mark.parametrize("strands", [1, 2])
@pytest.mark.parametrize("words", DURING)
def test_no_error_shows_the_key_of_a_strand_when_the_group_is_destroyed_meanwhile(
    world: World, words: str, strands: int
) -> None:
    client: Any = world[1]
    for region in range(1, strands + 1):
        world[region].xadd("x", {"n": 0})
    world[1].xgroup_create("x", "g", "0")
    world.sync()
    if "1-1" in words:
        [[_, [[first, _], *_]]] = world[1].xreadgroup("g", "old", {"x": ">"})
        words = words.replace("1-1", first if isinstance(first, str) else first.decode())
    argv = words.replace("CONSUMERS x", "CONSUMERS x g").encode().split()
    left = [1]

    def destroy(batch: Batch) -> None:
        texts = {word for command in batch.commands for word in command if isinstance(word, bytes)}
        if left and any(key.startswith(b"bs:1:s:") for key in texts):
            left.clear()
            world[1].xgroup_destroy("x", "g")

    spec = spec_of(argv)
    assert spec is not None
    with pytest.raises(ReplyError, match="^NOGROUP .*'x'") as told:
        drive(client, spec.plan(client.session.view(), argv), destroy)
    assert "bs:" not in told.value.text
    assert not left


@pytest.mark.parametrize("how", ["alone", "pipeline", "MULTI", "gateway"])
@pytest.mark.parametrize("block", [None, 100])
def test_a_strand_that_lost_its_group_gets_it_back_from_the_registry(
    region: Any, engine: Engine, how: str, block: int | None
) -> None:
    region.xadd("x", {"n": 0})
    region.xgroup_create("x", "g", "0")
    with engine.client() as operator:
        operator.xgroup_destroy("bs:1:s:{x}", "g")
    with ExitStack() as stack:
        reader = region
        if how == "gateway":
            served = stack.enter_context(Served(engine.url))
            reader = stack.enter_context(redis.Redis(port=served.port))
        elif how != "alone":
            reader = stack.enter_context(region.pipeline(transaction=how == "MULTI"))

        def read() -> None:
            found = reader.xreadgroup("g", "me", {"x": ">"}, block=block)
            getattr(found, "execute", list)()

        read()
    assert region.xpending("x", "g")["pending"] == 1


@pytest.mark.parametrize("lost", ["bell", "chosen", "strands"])
def test_a_group_is_read_though_the_server_lost_a_part_of_the_stream(world: World, lost: str) -> None:
    world[1].xadd("x", {"n": "a"})
    world[1].execute_command("XADD", "x", "99999999999999-0", "n", "b")
    world[1].xgroup_create("x", "jobs", "0")
    world[1].xreadgroup("jobs", "ann", {"x": ">"})
    generated = world[1].xadd("x", {"n": "c"})
    world.sync()
    with world.engines[0].client() as engine:
        if lost == "chosen":
            engine.delete("bs:1:c:{x}")
        else:
            engine.hdel("bs:meta:{x}", *(["bell"] if lost == "bell" else ["s1", "s2", "c1"]))
    with braidstream.Redis.from_url(world.engines[0].url, decode_responses=True) as reader:
        if lost == "strands":
            with pytest.raises(redis.ResponseError, match="lacks the consumer group 'jobs'"):
                reader.xreadgroup("jobs", "bob", {"x": ">"})
            world.links = {pair: world.link(*pair) for pair in world.links}
            world.sync()
        [[_, page]] = reader.xreadgroup("jobs", "bob", {"x": ">"})
    assert generated in [entry for entry, _ in page]


def test_what_was_claimed_is_given_though_the_group_was_rung(world: World) -> None:
    world[1].xadd("k", {"n": 1})
    world[1].xgroup_create("k", "g", "0")
    [[_, [[first, _]]]] = world[1].xreadgroup("g", "old", {"k": ">"})
    world[1].xclaim("k", "g", "old", 0, [first], idle=1_000_000)
    world[1].xadd("k", {"n": 2})
    asked = [b"XREADGROUP", b"GROUP", b"g", b"me", b"CLAIM", b"500000", b"STREAMS", b"k", b">"]
    client: Any = world[1]
    [[_, got]] = drive(client, read_group(client.session.view(), asked), ringing(world[1], "k"))
    mine = [row["message_id"] for row in world[1].xpending_range("k", "g", "-", "+", 10)]
    assert [bytes(entry[0]) for entry in got] == [
        each.encode() if isinstance(each, str) else each for each in mine
    ]


def test_a_position_set_in_one_region_skips_nothing_in_another(world: World) -> None:
    world[1].xadd("s", {"n": 1})
    world[1].xgroup_create("s", "g", "0")
    world.sync()
    world[1].xgroup_setid("s", "g", "9999999999999-0")
    world.sync()
    late = world[2].xadd("s", {"n": 2}, id="5000000000000-7")  # the first of a strand that region 1 has not
    world.sync()
    [[_, entries]] = world[2].xreadgroup("g", "c", {"s": ">"})
    assert late in [entry for entry, _ in entries]


def test_full_memory_hinders_no_deletion_and_no_move_of_a_group_with_peers(world: World) -> None:
    one = world[1].xadd("o", {"n": 1})
    two = world[2].xadd("o", {"n": 2})
    world.sync()
    world[1].xgroup_create("o", "g", "0")
    world[1].xreadgroup("g", "c", {"o": ">"})
    with world.engines[0].client() as plain:
        plain.config_set("maxmemory", 1)
        try:
            assert world[1].xgroup_setid("o", "g", "0")
            assert world[1].xgroup_delconsumer("o", "g", "c") == 2
            assert world[1].xdel("o", one, two) == 2
        finally:
            plain.config_set("maxmemory", 0)

"""What a client or a gateway remembers may be forgotten at any moment, also in the middle of a command."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import braidstream
from braidstream.commands.table import TABLE
from braidstream.errors import ReplyError
from braidstream.model.strand import Strand
from braidstream.plan.cache import StreamCache
from braidstream.plan.plan import Plan
from braidstream.plan.view import View
from tests.support.gateways import Line, Served
from tests.support.proxy import Proxy
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine
from tests.support.world import World

ROUNDS = 100
COMMANDS = [
    "XADD s 4102444800000 f v",
    "XADD new 4102444800000 f v",
    "XADD s 4102444800000-7 f v",
    "XADD s MAXLEN 3 4102444800000-7 f v",
    "XADD s IDMP p 1 * f v",
    "XSETID s 4102444800000-7",
    "XLEN s",
    "XRANGE s - +",
    "XRANGE s - + COUNT 60",
    "XREVRANGE s + - COUNT 2",
    "XREAD COUNT 2 STREAMS s 0",
    "XREAD STREAMS s +",
    "XREAD BLOCK 20 STREAMS s $",
    "XREADGROUP GROUP g me STREAMS s >",
    "XREADGROUP GROUP g me COUNT 1 STREAMS s >",
    "XREADGROUP GROUP g me COUNT 3 STREAMS s >",
    "XREADGROUP GROUP g me COUNT 3 MAXSIZE 200 STREAMS s >",
    "XREADGROUP GROUP g me CLAIM 0 COUNT 3 STREAMS s >",
    "XREADGROUP GROUP g other COUNT 3 STREAMS s 0",
    "XREADGROUP GROUP all me COUNT 1 BLOCK 20 STREAMS s >",
    "XREADGROUP GROUP all me BLOCK 20 STREAMS s >",
    "XREADGROUP GROUP gone me STREAMS s >",
    "XACK s g 1-1 1-1026",
    "XACKDEL s g DELREF IDS 2 1-1 1-1026",
    "XNACK s g FAIL IDS 1 1-1",
    "XPENDING s g",
    "XPENDING s g - + 10",
    "XCLAIM s g me 0 1-1 1-1026 JUSTID",
    "XAUTOCLAIM s g me 0 0 COUNT 2",
    "XDEL s 1-1 1-1026",
    "XDELEX s ACKED IDS 2 1-1 1-1026",
    "XTRIM s MAXLEN 2",
    "XTRIM s MINID 2",
    "XTRIM s MAXLEN 2 ACKED",
    "XINFO STREAM s",
    "XINFO STREAM s FULL",
    "XINFO GROUPS s",
    "XINFO CONSUMERS s g",
    "XGROUP CREATE s h 0",
    "XGROUP SETID s g 0",
    "XGROUP DESTROY s g",
    "XGROUP CREATECONSUMER s g new",
    "XGROUP DELCONSUMER s g other",
    "XCFGSET s IDMP-DURATION 5",
    "RENAME s t",
    "COPY s t",
    "DEL s",
    "EXISTS s",
    "TYPE s",
]


def _fill(client: braidstream.Redis) -> None:
    """A stream of two regions with a chosen ID, and two groups; one has entries pending."""
    client.xgroup_create("s", "all", "$", mkstream=True)
    client.run_plan(apply(Strand(b"s", "s", 1), [((n, 0), [b"f", b"1"]) for n in range(1, 5)]))
    client.run_plan(apply(Strand(b"s", "s", 2), [((n, 1), [b"f", b"2"]) for n in range(1, 5)]))
    client.xadd("s", {"f": "3"}, id="9-9")
    client.xgroup_create("s", "g", "0")
    client.xreadgroup("g", "other", {"s": ">"}, count=2)
    client.xgroup_setid("s", "all", "$")


def forgetful(plan: Plan[Any], cache: StreamCache) -> Plan[Any]:
    """The plan, while everything is forgotten before and after each of its round trips."""
    step: Callable[[Any], Any] = plan.send
    value: Any = None
    while True:
        try:
            batch = step(value)
        except StopIteration as end:
            return end.value
        cache.forget_all()
        try:
            step, value = plan.send, (yield batch)
        except ReplyError as error:
            step, value = plan.throw, error
        cache.forget_all()


def _answer(engine: Engine, command: str, run: Callable[[Plan[Any], StreamCache], Plan[Any]]) -> Any:
    engine.flush()
    become(engine, id_mode="liberal")
    argv = command.encode().split()
    with client_of(engine) as client:
        _fill(client)
        cache = client.session.cache
        client.xlen("s")  # the registry is known
        try:
            result = client.run_plan(run(TABLE[argv[0]].plan(View.of(cache), argv), cache))
        except braidstream.RedisError as error:
            result = str(error)
        return _without_times(result), _without_times(client.xrange("s")), client.exists("s", "t", "new")


def _without_times(value: Any) -> Any:
    """Idle times, the IDs of this moment and who wrote last differ from run to run."""
    if isinstance(value, list | tuple):
        pairs = {b"idle", b"inactive", b"seen-time", b"active-time"}
        if len(value) == 4 and type(value[2]) is int and type(value[3]) is int:
            value = [*value[:2], "idle", value[3]]
        drop = {at + 1 for at, each in enumerate(value) if isinstance(each, bytes) and each in pairs}
        return [_without_times(each) for at, each in enumerate(value) if at not in drop]
    if isinstance(value, int) and value > 1_600_000_000_000:
        return "a time"
    return b"a new ID" if isinstance(value, bytes) and value.startswith((b"17", b"18")) else value


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_gives_the_same_though_everything_is_forgotten_in_its_middle(
    engine: Engine, command: str
) -> None:
    undisturbed = _answer(engine, command, lambda plan, cache: plan)
    assert _answer(engine, command, forgetful) == undisturbed


def _while_forgetting(forget: Callable[[], None], work: Callable[[int], None]) -> None:
    """Do the work while another thread forgets everything, again and again."""
    done = False

    def forgetting() -> int:
        times = 0
        while not done:
            forget()
            times += 1
        return times

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(forgetting)
        try:
            for n in range(ROUNDS):
                work(n)
        finally:
            done = True
        assert other.result() > 10


def test_a_gateway_that_forgets_under_load_answers_every_command(engine: Engine) -> None:
    """A gateway once answered `ERR syntax error`: its memory was cleared between two steps of a read."""
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        _fill(client)
    with Served(engine.url) as gateway, Line(gateway.port) as line:

        def work(n: int) -> None:
            replies = line.pipeline(
                f"XADD s * f {n}",
                f"XADD s * f {n}",
                "XRANGE s - + COUNT 60",
                "XREADGROUP GROUP all me COUNT 1 STREAMS s >",
                "XREADGROUP GROUP all me COUNT 3 STREAMS s >",
                "XINFO GROUPS s",
            )
            replies += [line.say("XREADGROUP GROUP all me COUNT 2 BLOCK 1 STREAMS s >"), line.say("XLEN s")]
            assert not [reply for reply in replies if reply.startswith(b"-")]

        _while_forgetting(gateway.forget, work)


def test_a_client_that_forgets_under_load_sends_every_pipeline(region: braidstream.Redis) -> None:
    """Threads share a client: one that finds a strand gone forgets for all of them."""

    def work(n: int) -> None:
        with region.pipeline(transaction=n % 2 == 0) as pipe:
            for at in range(20):
                pipe.xadd(f"s{at % 7}", {"n": n})
            assert len(pipe.execute()) == 20

    _while_forgetting(region.session.cache.forget_all, work)
    assert sum(region.xlen(f"s{at}") for at in range(7)) == ROUNDS * 20


def test_clients_that_share_a_pool_each_notice_that_the_address_leads_to_another_region(
    make_world: Callable[..., World],
) -> None:
    world = make_world(2)
    with Proxy(world.engines[0].port) as proxy, braidstream.Redis.from_url(proxy.url) as one:
        other = braidstream.Redis(connection_pool=one.connection_pool)
        for client in (one, other):
            client.xadd("x", {"n": 1})
            client.xadd("x", {"n": 1})
        world.sync()
        proxy.point(world.engines[1].port)
        entries = [client.xadd("x", {"n": 2}) for client in (one, other)]
        assert [int(entry.split(b"-")[1]) % 1024 for entry in entries] == [2, 2]

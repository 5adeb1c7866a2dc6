"""Reads and acknowledgements by a route (clients/routes.py) answer a client as their plans do."""

from collections.abc import Iterator, Sequence

import pytest

from braidstream.gateway import router
from braidstream.model import ids
from braidstream.model.strand import Strand
from braidstream.operations.membership import meet
from tests.support.gateways import Line, Served, Word
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine


@pytest.fixture
def gateway(engine: Engine) -> Iterator[Served]:
    become(engine)
    with Served(engine.url) as served:
        yield served


def filled(engine: Engine, *, groups: Sequence[str], strands: int = 1) -> list[str]:
    """30 entries of several writers in turn, and groups that read them from the start."""
    written = list[str]()
    with client_of(engine) as client:
        client.run_plan(meet([*range(1, strands + 1)]))
        for writer in range(1, strands + 1):
            strand = Strand(b"x", "s", writer)
            natives = [(1_700_000_000_000 + n, 0) for n in range(writer, 31, strands)]
            client.run_plan(apply(strand, [(native, [b"n", b"%d" % native[0]]) for native in natives]))
            written += [ids.text(strand.user(native)).decode() for native in natives]
        for group in groups:
            client.xgroup_create("x", group, "0")
    return sorted(written)


def routed(served: Served) -> int:
    return served.gateway.hub.metrics.routed


@pytest.mark.parametrize("strands", [1, 3])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_route_and_its_plan_answer_with_the_same_bytes(
    gateway: Served, engine: Engine, monkeypatch: pytest.MonkeyPatch, protocol: int, strands: int
) -> None:
    written = filled(engine, groups=("warm", "a", "b"), strands=strands)
    first, second, third = written[:3]
    commands: list[tuple[Word, ...]] = [
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", 100, "STREAMS", "x", ">"),
        ("XREADGROUP", "GROUP", "g", "c", "COUNT", 5, "STREAMS", "x", ">"),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "x", ">"),
        ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 1, "STREAMS", "x", ">"),
        ("XACK", "x", "g", first, second),
        ("XACK", "x", "g", first, third),
        ("XACK", "x", "g", "1-1"),
        ("XACK", "x", "g", "no ID"),
        ("XLEN", "x"),
        ("XREAD", "COUNT", 7, "STREAMS", "x", first),
        ("XREAD", "COUNT", 7, "STREAMS", "x", written[-1]),
    ]
    with Line(gateway.port) as line:
        line.say("HELLO", protocol)
        line.say("XREADGROUP", "GROUP", "warm", "c", "COUNT", 1, "STREAMS", "x", ">")
        line.say("XLEN", "x")

        def answers(group: str) -> list[bytes]:
            line.say("XREADGROUP", "GROUP", group, "c", "COUNT", 1, "STREAMS", "x", ">")
            return [line.say(*(group if word == "g" else word for word in words)) for words in commands]

        before = routed(gateway)
        by_route = answers("a")
        assert routed(gateway) >= before + 7
        monkeypatch.setattr(router, "_ROUTED", {})
        before = routed(gateway)
        assert answers("b") == by_route
        assert routed(gateway) == before


def test_a_user_without_the_right_gets_the_engines_error(gateway: Served, engine: Engine) -> None:
    filled(engine, groups=("g",))
    with client_of(engine) as admin:
        admin.execute_command("ACL", "SETUSER", "eve", "on", ">pw", "%R~bs:config", "~other", "+@all")
    with Line(gateway.port) as line, Line(gateway.port) as eve:
        for _ in range(2):
            line.say("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "x", ">")
            line.say("XLEN", "x")
        before = routed(gateway)
        eve.say("AUTH", "eve", "pw")
        assert eve.say("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "x", ">").startswith(
            b"-NOPERM"
        )
        assert eve.say("XACK", "x", "g", "1-1").startswith(b"-NOPERM")
        assert eve.say("XLEN", "x").startswith(b"-NOPERM")
        assert routed(gateway) == before


def test_a_stream_that_another_client_changed_is_read_as_it_is_now(gateway: Served, engine: Engine) -> None:
    filled(engine, groups=("g",), strands=3)
    read = ("XREADGROUP", "GROUP", "g", "c", "COUNT", 2, "STREAMS", "x", ">")
    with Line(gateway.port) as line, client_of(engine) as other:
        line.say(*read)
        line.say(*read)
        other.xgroup_destroy("x", "g")
        assert line.say(*read).startswith(b"-NOGROUP")
        other.xgroup_create("x", "g", "$")
        entry = other.xadd("x", {"n": "new"})
        assert entry in line.say(*read)
        other.delete("x")
        assert line.say("XLEN", "x") == b":0\r\n"
        other.set("x", "text")
        assert line.say("XLEN", "x").startswith(b"-WRONGTYPE")
        assert line.say("XREAD", "COUNT", 1, "STREAMS", "x", "0").startswith(b"-WRONGTYPE")


def test_commands_inside_multi_and_under_watch_take_their_plans(gateway: Served, engine: Engine) -> None:
    filled(engine, groups=("g",))
    read = ("XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "x", ">")
    with Line(gateway.port) as line:
        line.say(*read)
        line.say(*read)
        before = routed(gateway)
        line.say("WATCH", "x")
        line.say("XLEN", "x")
        line.say("MULTI")
        assert line.say("XLEN", "x") == b"+QUEUED\r\n"
        assert line.say("EXEC") == b"*1\r\n:30\r\n"
        assert routed(gateway) == before

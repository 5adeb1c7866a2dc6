"""Long pages are sent as the bytes that were read, and arrive as if they had been parsed."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from braidstream.engine.address import parse_address
from braidstream.errors import ReplyError
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.link import batches
from braidstream.replication.link.link import Link
from braidstream.replication.link.pages import Pages
from tests.support.matrix import on_every_engine
from tests.support.observed import observed
from tests.support.rolling_back import bring_back, snapshot
from tests.support.world import World

T = TypeVar("T")
flavour = on_every_engine
EVEN, MIXED = "bs_strand_apply_even", "bs_strand_apply"


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(3)


class Target(Endpoint):
    """Notes the function that appends each batch."""

    calls: list[str]

    async def run(self, plan: Plan[T]) -> T:
        return await super().run(observed(plan, self._note))

    def _note(self, batch: Batch) -> None:
        function = batch.commands[0][1] if len(batch.commands[0]) > 1 else ""
        if function in (EVEN, MIXED):
            self.calls.append(str(function))


def linked(world: World, work: Callable[[Link], Awaitable[object]], *, user: str = "") -> list[str]:
    """Run work with a new link from region 1 to 2, as a daemon has it. Returns which functions it called."""

    async def run() -> list[str]:
        home = Endpoint(parse_address(world.engines[0].url.replace("://", f"://{user}")))
        target = Target(parse_address(world.engines[1].url))
        target.calls = []
        for end in (home, target):
            await end.connect()
        there = world.region(2)
        try:
            await work(Link(home, target, here=world.region(1), there=there, pages=Pages.of_home(home)))
        finally:
            for end in (home, target):
                end.close()
        return target.calls

    return asyncio.run(run())


def write(world: World, entries: list[dict[str, bytes | str]]) -> None:
    pipe = world[1].pipeline(transaction=False)
    for fields in entries:
        pipe.execute_command("XADD", "m", "*", *(word for pair in fields.items() for word in pair))
    pipe.execute()


def alike(count: int) -> list[dict[str, bytes | str]]:
    return [{"n": str(number), "text": "x" * (number % 30)} for number in range(count)]


def raw(world: World, region: int) -> list[object]:
    with world.engines[region - 1].client() as engine:
        return engine.execute_command("XRANGE", "bs:1:s:{m}", "-", "+")  # type: ignore[no-any-return]


def test_a_long_stream_is_spliced(world: World) -> None:
    write(world, alike(5_000))
    functions = linked(world, lambda link: link.sync(b"m"))
    assert raw(world, 2) == raw(world, 1)
    assert functions.count(EVEN) >= 8
    write(world, alike(3))
    assert linked(world, lambda link: link.sync(b"m")) == [MIXED]  # too few
    assert raw(world, 2) == raw(world, 1)


def test_the_first_page_of_a_stream_is_spliced(world: World) -> None:
    """Streams of some hundred entries have only one page."""
    write(world, alike(100))
    assert linked(world, lambda link: link.sync(b"m")) == [EVEN]
    assert raw(world, 2) == raw(world, 1)


ODD: dict[str, dict[str, bytes | str]] = {
    "a line break": {"n": "a\r\nb", "text": ""},
    "what looks like an entry": {"n": "\r\n*2\r\n$3\r\n5-5\r\n*2\r\n$1\r\na\r\n$1\r\nb", "text": "$3"},
    "one field more": {"n": "1", "text": "2", "more": "3"},
    "no text": {"": "", "text": ""},
    "any byte": {"n": bytes(range(256)), "text": b"\xff"},
    "a large value": {"n": "x" * 50_000, "text": ""},
    "a very large value": {"n": "x" * 5_000_000, "text": ""},
    "more fields than Lua takes": {str(number): "" for number in range(batches.WIDEST // 2 + 1)},
}


@pytest.mark.parametrize("has_numpy", [True, False])
def test_odd_entries_among_many_arrive_as_they_are(
    world: World, monkeypatch: pytest.MonkeyPatch, has_numpy: bool
) -> None:
    if not has_numpy:
        for name in ("braidstream.replication.link.splice", "braidstream.engine.reply_lines"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, "numpy", None)
    for fields in ODD.values():
        write(world, [*alike(700), fields])
    write(world, alike(2_000))
    functions = linked(world, lambda link: link.sync(b"m"))
    assert raw(world, 2) == raw(world, 1)
    assert set(functions) == ({EVEN, MIXED} if has_numpy else {MIXED})


def test_a_daemon_that_may_not_ping_replicates(world: World) -> None:
    write(world, alike(3_000))
    with world.engines[0].client() as operator:
        operator.execute_command("ACL", "SETUSER", "link", "on", ">secret", "~*", "+@all", "-ping")
    functions = linked(world, lambda link: link.sync(b"m"), user="link:secret@")
    assert set(functions) == {MIXED}
    assert raw(world, 2) == raw(world, 1)


def test_a_gap_is_refused_and_then_filled(world: World) -> None:
    """The copy loses its end while the link believes that it has it."""
    write(world, alike(1_000))

    async def work(link: Link) -> None:
        await link.sync(b"m")
        earlier = snapshot(world.engines[1])
        write(world, alike(1_000))
        await link.sync(b"m")
        bring_back(world.engines[1], earlier)
        write(world, alike(3_000))
        await link.follow(b"m")
        await link.sync(b"m")

    linked(world, work)
    assert raw(world, 2) == raw(world, 1)


def test_a_reply_that_is_an_error_fails_the_link_as_before(world: World) -> None:
    write(world, alike(3_000))

    async def work(link: Link) -> None:
        await link.sync(b"m")
        with world.engines[0].client() as engine:
            engine.delete("bs:1:s:{m}")
            engine.set("bs:1:s:{m}", "text")
        await link.follow(b"m")

    with pytest.raises(ReplyError, match="WRONGTYPE"):
        linked(world, work)

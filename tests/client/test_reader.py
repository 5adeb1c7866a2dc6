"""`client.reader()`: every entry once, also what arrives late; its position is stored and given back.

Every test runs on the sync client and on its asyncio twin.
"""

import inspect
import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from braidstream.model.ids import ZERO, Id
from braidstream.model.strand import Strand
from braidstream.operations.adoption import release
from braidstream.operations.membership import meet
from tests.support.clients import Opener, blocked
from tests.support.native_streams import adopt_here, bare_client
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

HOME, FAR = 5, 700
Take = Callable[[Any], list[str]]


@pytest.fixture
def client(engine: Engine, opened: Opener) -> Any:
    become(engine, region=HOME, name="home", id_mode="liberal")
    return opened(engine.url, decode_responses=True)


@pytest.fixture
def take(opened: Opener) -> Take:
    """The IDs that a reader gives until it ends."""

    async def gather(reader: Any) -> list[str]:
        return [entry async for entry, _ in reader]

    def take(reader: Any) -> list[str]:
        if opened.runner is None:
            return [entry for entry, _ in reader]
        return list(opened.runner.run(gather(reader)))

    return take


def _page(opened: Opener, reader: Any) -> list[str]:
    found = reader.read()
    if inspect.isawaitable(found):
        assert opened.runner is not None
        found = opened.runner.run(found)
    return [entry for entry, _ in found]


class Far:
    """Region 700, whose entries a link brings."""

    def __init__(self, client: Any, kind: Any = "s") -> None:
        self.client, self.strand, self.end = client, Strand(b"x", kind, FAR), ZERO

    def brings(self, *mss: int) -> list[str]:
        batch: list[tuple[Id, list[bytes]]] = [((ms, 0), [b"by", b"far"]) for ms in mss]
        self.client.run_plan(apply(self.strand, batch, self.end))
        self.end = batch[-1][0]
        return [f"{ms}-{FAR}" if self.strand.has_generated_ids else f"{ms}-0" for ms in mss]


def test_what_arrives_late_is_read_once_where_xread_skips_it(client: Any, take: Take) -> None:
    client.xadd("x", {"n": 1}, id="110-0")
    reader = client.reader("x")
    assert take(reader) == ["110-0"]
    late = Far(client).brings(100)
    assert client.xread({"x": "110-0"}) == []
    assert take(reader) == late
    assert take(reader) == []


def test_the_position_goes_on_after_the_last_entry_that_was_given(
    client: Any, take: Take, opened: Opener
) -> None:
    for ms in (110, 120, 130):
        client.xadd("x", {"n": ms}, id=f"{ms}-0")
    far = Far(client)
    far.brings(115, 125)
    reader = client.reader("x", count=2)
    assert reader.position == "0"
    assert _page(opened, reader) == ["110-0", f"115-{FAR}"]
    assert json.loads(reader.position) == {"x": {"c5": "110-0", "s700": "115-0"}}
    far.brings(126)
    assert take(client.reader("x", reader.position)) == ["120-0", f"125-{FAR}", f"126-{FAR}", "130-0"]
    assert take(client.reader("x", "120-0")) == [f"125-{FAR}", f"126-{FAR}", "130-0"]


def test_an_entry_that_was_read_ahead_is_not_in_the_position(client: Any, opened: Opener, take: Take) -> None:
    for ms in (110, 120, 130):
        client.xadd("x", {"n": ms}, id=f"{ms}-0")
    reader = client.reader("x")
    if opened.runner is None:
        assert next(reader)[0] == "110-0"
    else:
        assert opened.runner.run(anext(reader))[0] == "110-0"
    assert take(client.reader("x", reader.position)) == ["120-0", "130-0"]
    assert _page(opened, reader) == ["120-0", "130-0"]


def test_from_the_end_on_only_what_comes_is_read_late_or_not(client: Any, take: Take) -> None:
    client.xadd("x", {"n": 1}, id="110-0")
    far = Far(client)
    far.brings(90)
    reader = client.reader("x", "$")
    assert (reader.position, take(reader)) == ("$", [])
    stored = reader.position
    client.xadd("x", {"n": 2}, id="120-0")
    wanted = far.brings(100) + ["120-0"]
    assert take(reader) == wanted
    assert take(client.reader("x", stored)) == wanted
    new = Far(client, "c").brings(50)
    assert take(reader) == new, "a strand that did not exist is read from its start"


def test_a_reader_waits_and_a_new_strand_wakes_it(
    engine: Engine, client: Any, opened: Opener, background: ThreadPoolExecutor
) -> None:
    client.run_plan(meet([HOME, FAR]))
    reader = client.reader("x", block=10_000)
    waiting = background.submit(_page, opened, reader)
    blocked(engine)
    with client_of(engine) as writer:
        late = Far(writer).brings(7)
    assert waiting.result(timeout=10) == late
    assert _page(opened, client.reader("x", reader.position, block=50)) == []


def test_a_connection_that_is_lost_while_a_new_reader_waits_skips_nothing(
    engine: Engine, client: Any, opened: Opener, background: ThreadPoolExecutor
) -> None:
    client.xadd("x", {"n": 1}, id="110-0")
    reader = client.reader("x", "$", block=10_000)
    waiting = background.submit(_page, opened, reader)
    blocked(engine)
    with bare_client(engine) as bare:
        bare.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    with pytest.raises(redis.ConnectionError):
        waiting.result(timeout=10)
    with client_of(engine, decode_responses=True) as writer:
        entry = writer.xadd("x", {"n": 2}, id="120-0")
    assert _page(opened, reader) == [entry]


def test_a_start_may_be_bytes_or_a_number(client: Any, take: Take) -> None:
    client.xadd("x", {"n": 1}, id="110-0")
    for start in (b"0", 0, 109):
        assert take(client.reader("x", start)) == ["110-0"]


def test_whatever_arrives_in_which_order_each_entry_is_given_once(
    client: Any, opened: Opener, take: Take
) -> None:
    dice = random.Random(36)
    regions = [Far(client), Far(client, "c")]
    wanted, seen, position, ms = set[str](), list[str](), "0", [0, 0, 0]
    for _ in range(60):
        who = dice.randrange(4)
        if who == 3:
            reader = client.reader("x", position, count=dice.randrange(1, 6))
            seen += _page(opened, reader)
            position = reader.position
            continue
        ms[who] += dice.randrange(1, 9)
        if who == 2:
            wanted.add(client.xadd("x", {"n": 1}, id=f"{ms[who]}-1"))
        else:
            wanted.update(regions[who].brings(ms[who]))
    seen += take(client.reader("x", position, count=3))
    assert sorted(seen) == sorted(wanted)


def test_a_stream_that_was_deleted_and_written_again_is_read_on(client: Any, take: Take) -> None:
    reader = client.reader("x")
    client.xadd("x", {"n": 1}, id="110-0")
    client.xadd("x", {"n": 1})
    assert len(take(reader)) == 2
    client.delete("x")
    assert take(reader) == []
    again = [client.xadd("x", {"n": 2}, id="5-0"), client.xadd("x", {"n": 2})]
    assert take(reader) == again


def test_a_native_stream_is_read_on_when_it_is_adopted_and_when_that_is_undone(
    engine: Engine, client: Any, take: Take
) -> None:
    with bare_client(engine) as bare:
        entries = [bare.xadd("x", {"n": at}) for at in range(4)]
        reader = client.reader("x")
        assert take(reader) == entries
        stored, entries = reader.position, [bare.xadd("x", {"n": 5})]
        adopt_here(client, "x")
        entries += [client.xadd("x", {"n": 6})]
        assert take(reader) == entries
        assert take(client.reader("x", stored)) == entries
        assert client.run_plan(release(b"x")).problem == ""
        assert take(reader) == []
        assert take(client.reader("x", stored)) == entries
        assert [client.xadd("x", {"n": 7})] == take(reader)


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("last", "'last' is not '0', '\\$', an ID, or the position of a reader"),
        ('{"x": {"s1": "?"}}', "is not '0'"),
        ('{"x": 1}', "is not '0'"),
        ("[]", "is not '0'"),
        ('{"y": {"s1": "1-1"}}', "a position in y, not in x"),
    ],
)
def test_a_start_that_is_none_is_refused(client: Any, start: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        client.reader("x", start)


def test_a_log_and_a_plain_key_are_refused(client: Any, opened: Opener) -> None:
    client.twrite("mylog", "a", "b")
    with pytest.raises(redis.ResponseError, match="this is a log: read it by offsets, with TREAD"):
        _page(opened, client.reader("mylog"))
    client.set("plain", "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        _page(opened, client.reader("plain"))


def test_replies_are_bytes_unless_the_client_decodes(engine: Engine, opened: Opener, client: Any) -> None:
    client.xadd("x", {"n": "1"}, id="110-0")
    plain = opened(engine.url)
    found = plain.reader(b"x").read()
    assert (opened.runner.run(found) if opened.runner else found) == [(b"110-0", {b"n": b"1"})]

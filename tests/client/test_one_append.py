"""The plain append by every carrier: the same bytes arrive at the engine, the same entries come of them.

plan/append.py has one form of it for each carrier, for speed. They may not differ (docs/decisions/0004).
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

import braidstream
import braidstream.asyncio
from braidstream.clusters.bulk import Server
from braidstream.engine.resp import Limits, Parser, Words
from braidstream.model import keys
from braidstream.model.strand import Strand
from braidstream.spark.sink import ledger
from braidstream.spark.sink.encode import Layout, commands
from tests.support.gateways import Line, Served, packed, value_of
from tests.support.proxy import Proxy
from tests.support.regions import become, client_of
from tests.support.servers import Engine

EXAMPLES = 40
Fields = list[bytes]
# A result is an ID, or the text of an error.
Send = Callable[[list[Words]], list[bytes | str | None]]

# A name with a hash tag of its own, names whose plain key lies in another slot, and one that looks like RESP.
names = st.sampled_from([b"orders", b"a{tag}b", b"}odd", b"", b"x\r\n$1\r\n*\r\n"])
# Field names are text, so that Spark can carry them. A value of 5000 bytes is too long for a splice.
field_names = st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace"))
values = st.one_of(st.binary(max_size=20), st.sampled_from([b"", b"\r\n", b"$4\r\nXADD\r\n", b"v" * 5000]))


@st.composite
def plain_appends(draw: st.DrawFn) -> tuple[bytes, list[Fields]]:
    """Several appends to one stream, most often of one shape, so that a gateway can splice them."""
    pairs = st.tuples(field_names, values).map(list)
    number = draw(st.integers(1, 3))
    sizes = st.just(number) if draw(st.booleans()) else st.integers(1, 3)
    shape = sizes.flatmap(lambda size: st.lists(pairs, min_size=size, max_size=size))
    entries = draw(st.lists(shape, min_size=1, max_size=5))
    return draw(names), [[word for pair in entry for word in pair] for entry in entries]


@dataclass
class Carrier:
    """send: takes command lines, returns results. proxy: what it sends to the engine passes here."""

    send: Send
    proxy: Proxy

    def sent(self) -> list[list[bytes]]:
        """What it has sent since the last call: the appends, and what creates strands."""
        found = list[list[bytes]]()
        for heard in self.proxy.requests:
            data, heard[:] = bytes(heard), b""
            lines = Parser(Limits()).feed(data)
            assert b"".join(packed(*line) for line in lines) == data  # so equal words are equal bytes
            found += [
                line for line in lines if line[0] == b"XADD" or line[:2] == [b"FCALL", b"bs_strand_ensure"]
            ]
        return found


def _one_by_one(lines: list[Words], send: Callable[..., Any]) -> list[Any]:
    found = list[Any]()
    for line in lines:
        try:
            found.append(send(*_arguments(line)))
        except redis.RedisError as error:
            found.append(error)
    return _results(found)


def _results(found: list[Any]) -> list[Any]:
    return [str(each).removeprefix("ERR ") if isinstance(each, Exception) else each for each in found]


def _arguments(line: Words) -> list[Any]:
    """As redis-py's own xadd() passes them."""
    return [word.decode() if at in (0, 2) else word for at, word in enumerate(line)]


@contextmanager
def carriers(engine: Engine) -> Iterator[dict[str, Carrier]]:
    with ExitStack() as stack:

        def tapped() -> Proxy:
            return stack.enter_context(Proxy(engine.port))

        made = dict[str, Carrier]()
        proxy = tapped()
        client = stack.enter_context(braidstream.Redis.from_url(proxy.url))
        made["client"] = Carrier(lambda lines: _one_by_one(lines, client.execute_command), proxy)

        for kind, transaction in (("pipeline", False), ("transaction", True)):
            proxy = tapped()
            other = stack.enter_context(braidstream.Redis.from_url(proxy.url))
            made[kind] = Carrier(lambda lines, one=other, multi=transaction: _piped(one, lines, multi), proxy)

        proxy = tapped()
        runner = stack.enter_context(asyncio.Runner())
        waiting = braidstream.asyncio.Redis.from_url(proxy.url)
        stack.callback(lambda: runner.run(waiting.aclose()))
        made["asyncio"] = Carrier(
            lambda lines: _one_by_one(lines, lambda *args: runner.run(waiting.execute_command(*args))), proxy
        )

        for kind in ("gateway parsed", "gateway alone", "gateway spliced"):
            proxy = tapped()
            gateway = stack.enter_context(Served(proxy.url))
            spoken = stack.enter_context(Line(gateway.port))
            made[kind] = Carrier(lambda lines, to=spoken, how=kind: _spoken(to, lines, how), proxy)

        proxy = tapped()
        server = Server(proxy.url)
        stack.callback(server.close)
        made["spark"] = Carrier(lambda lines: _from_spark(server, lines), proxy)
        yield made


def _piped(client: braidstream.Redis, lines: list[Words], transaction: bool) -> list[Any]:
    with client.pipeline(transaction=transaction) as pipe:
        for line in lines:
            pipe.execute_command(*_arguments(line))
        return _results(pipe.execute(raise_on_error=False))


def _spoken(to: Line, lines: list[Words], how: str) -> list[Any]:
    if how == "gateway parsed":  # only capitals are spliced
        replies = [to.say(line[0].lower(), *line[1:]) for line in lines]
    elif how == "gateway alone":
        replies = [to.say(*line) for line in lines]
    else:
        to.socket.sendall(b"".join(packed(*line) for line in lines))
        replies = [to.read() for _ in lines]
    return [
        value.removeprefix("ERR ") if isinstance(value := value_of(reply), str) else value
        for reply in replies
    ]


def _from_spark(server: Server, lines: list[Words]) -> list[Any]:
    """Rows of a column of maps, as the sink encodes and appends them. Spark returns no IDs."""
    name = lines[0][1]
    pairs = [list(zip(line[3::2], line[4::2], strict=True)) for line in lines]
    rows = pa.array(
        [[(key.decode(), value) for key, value in row] for row in pairs], pa.map_(pa.string(), pa.binary())
    )
    strand = ledger.target(server, name)
    encoded = commands(
        Layout(name, None, "fields", ()), strand.key, pa.record_batch([rows], names=["fields"])
    )
    chunk = b"".join(each.as_py() for each in encoded)
    with server.wire(strand.key) as wire:
        assert ledger.append(wire, strand, chunk)
    return []


@pytest.fixture
def made(engine: Engine) -> Iterator[dict[str, Carrier]]:
    become(engine)
    with carriers(engine) as found:
        yield found


def _stored(bare: Line, name: bytes) -> list[tuple[bytes, Fields]]:
    """The entries of region 1, read from the engine itself, with the IDs that users see."""
    found = list[tuple[bytes, Fields]]()
    for native, fields in value_of(bare.say("XRANGE", Strand(name, "s", 1).key, "-", "+")):
        ms, _, n = native.partition(b"-")
        found.append((b"%b-%d" % (ms, int(n) << 10 | 1), fields))
    return found


@given(appends=plain_appends())
@settings(max_examples=EXAMPLES)
def test_every_carrier_sends_the_same_plain_append(
    made: dict[str, Carrier], engine: Engine, appends: tuple[bytes, list[Fields]]
) -> None:
    name, entries = appends
    strand = Strand(name, "s", 1)
    lines = [[b"XADD", name, b"*", *fields] for fields in entries]
    native = [[b"XADD", strand.key, b"NOMKSTREAM", b"*", *fields] for fields in entries]
    plain = [name] if keys.shares_slot(name) else []
    where = [keys.meta(name), strand.key, *plain]
    ensure = [b"FCALL", b"bs_strand_ensure", b"%d" % len(where), *where, b"s1", b"", b"known"]
    with Line(engine.port) as bare:
        for kind, carrier in made.items():
            carrier.send(lines)  # from now on it knows the strand
            before = len(_stored(bare, name))
            carrier.sent()
            results, sent = carrier.send(lines), carrier.sent()
            appended = _stored(bare, name)[before:]
            rows = [[b"XADD", strand.key, b"*", *fields] for fields in entries]
            assert [line for line in sent if line[0] == b"XADD"] == (rows if kind == "spark" else native), (
                kind
            )
            alone = kind in ("client", "asyncio", "gateway parsed", "gateway alone") or (
                kind == "gateway spliced" and len(lines) == 1
            )
            calls = [] if alone else [ensure] * (2 if kind == "spark" else 1)  # Spark: also before the MULTI
            assert [line for line in sent if line[0] == b"FCALL"] == calls, kind
            assert [fields for _, fields in appended] == entries, kind
            assert kind == "spark" or results == [entry for entry, _ in appended], kind


@given(appends=plain_appends())
@settings(max_examples=EXAMPLES // 2)
def test_every_carrier_creates_a_strand_that_is_gone(
    made: dict[str, Carrier], engine: Engine, appends: tuple[bytes, list[Fields]]
) -> None:
    name, entries = appends
    lines = [[b"XADD", name, b"*", *fields] for fields in entries]
    with Line(engine.port) as bare, client_of(engine) as user:
        for kind, carrier in made.items():
            carrier.send(lines)
            user.delete(name)
            results = carrier.send(lines)
            found = _stored(bare, name)
            assert [fields for _, fields in found] == entries, kind
            assert kind == "spark" or results == [entry for entry, _ in found], kind


ALMOST = [
    b"XADD name *",
    b"XADD name * field",
    b"XADD name * field value field",
    b"XADD name ** field value",
    b"XADD name NOMKSTREAM * field value",
    b"XADD name MAXLEN 1 * field value",
    b"XADD name MAXLEN * field value",
    b"XADD name 5-5 field value",
    b"xadd name * field value",
    b"XADD name * * *",
]


@given(lines=st.lists(st.sampled_from(ALMOST).map(bytes.split), min_size=1, max_size=4))
@settings(max_examples=EXAMPLES // 2)
def test_what_is_almost_a_plain_append_is_the_same_to_every_carrier(
    made: dict[str, Carrier], engine: Engine, lines: list[Words]
) -> None:
    """Spark appends rows only; a MULTI refuses all of it when one command cannot be queued."""
    seen = dict[str, Any]()
    with Line(engine.port) as bare, client_of(engine) as user:
        for kind in made.keys() - {"spark", "transaction"}:
            user.delete("name")
            results = made[kind].send(lines)
            errors = [each if isinstance(each, str) else type(each) for each in results]
            seen[kind] = errors, [fields for _, fields in _stored(bare, b"name")]
    assert all(each == seen["client"] for each in seen.values()), seen

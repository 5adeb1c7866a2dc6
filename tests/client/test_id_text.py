"""What counts as an ID, and which: `ids.parse` agrees with the engine on any text."""

import redis
from hypothesis import example, given
from hypothesis import strategies as st

from braidstream.commands.arguments import INVALID_ID, parse_interval
from braidstream.errors import ReplyError
from braidstream.model import ids
from tests.support.servers import Engine

_numbers = st.one_of(
    st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64, 2**64 + 1, 10**19, 10**20]),
    st.integers(0, 10**21),
    st.integers(0, 99),
).map(lambda number: b"%d" % number)
_blanks = st.text(" \t\n\v\f\r", max_size=3).map(str.encode)
_odd = st.sampled_from([b"", b"", b"", b"0", b"00", b"\0", b"*", b"x", b" ", b"+", b"-", b"(", b"\xff", b"."])
_signs = st.sampled_from([b"", b"", b"+", b"-", b"--", b"+-"])
_near_number = st.tuples(_blanks, _signs, _odd, _numbers, _odd).map(b"".join)
_near_id = st.one_of(
    _near_number,
    st.tuples(_near_number, st.just(b"-"), _near_number).map(b"".join),
    st.tuples(_numbers, st.just(b"-"), _numbers).map(b"".join),
    st.tuples(st.integers(100, 130), _numbers).map(lambda pair: pair[1].rjust(pair[0], b"0")),
    st.text("0123456789-+ \0*", max_size=24).map(str.encode),
    st.binary(max_size=24),
)


def _is_symbol(text: bytes) -> bool:
    """`-`, `+` and `(id`: XRANGE has its own words besides IDs. Like IDs they end at a NUL."""
    return text.split(b"\0", 1)[0] in (b"-", b"+") or (len(text) > 1 and text.startswith(b"("))


def _said(client: redis.Redis, *command: bytes | str) -> object:
    """A reply, or the text of an error reply."""
    with client.pipeline(transaction=False) as pipe:
        pipe.execute_command(*command)
        [reply] = pipe.execute(raise_on_error=False)
    return f"ERR {reply}" if isinstance(reply, redis.ResponseError) else reply


@given(_near_id)
@example(b"")
@example(b"-0")
@example(b" -0")
@example(b"-9223372036854775808-1")
@example(b"-9223372036854775809-1")
@example(b"1- -1")
@example(b"1-\0" + b"x" * 100)
@example(b"0" * 127)
@example(b"0" * 128)
def test_parse_takes_what_the_engine_takes(engine: Engine, text: bytes) -> None:
    if _is_symbol(text):
        return
    with engine.client() as client:
        said = _said(client, "XRANGE", "orders", text, "+")
    assert said == ([] if ids.parse(text) is not None else INVALID_ID)


@given(_near_id)
@example(b" +7-\t-1")
@example(b"007-0008")
def test_parse_reads_what_the_engine_reads(engine: Engine, text: bytes) -> None:
    found = ids.parse(text)
    if found is None or found == ids.ZERO:
        return
    with engine.client() as client:
        client.delete("orders")
        assert client.execute_command("XADD", "orders", text, "v", "a") == ids.text(found)


@given(_near_id)
def test_a_range_may_end_at_milliseconds_alone(engine: Engine, text: bytes) -> None:
    end = ids.parse(text, ids.MAX)
    if _is_symbol(text) or end in (None, ids.ZERO):
        return
    with engine.client() as client:
        client.delete("orders")
        client.execute_command("XADD", "orders", ids.text(end), "v", "a")
        assert client.execute_command("XRANGE", "orders", "-", text) == [(ids.text(end), {b"v": b"a"})]


_symbols = st.sampled_from([b"-", b"+", b"(", b"(-", b"(+", b"-\0", b"+\0x", b"((1-1", b"(0-0", b"( 1-1"])
_ends = st.one_of(_near_id, _near_id.map(lambda text: b"(" + text), _symbols)


@given(_ends, _ends, st.booleans())
@example(b"(18446744073709551615-18446744073709551615", b"+", False)
@example(b"-", b"(0-0", False)
@example(b"-", b"(0", False)
@example(b"-\0x", b"+", False)
def test_an_interval_ends_where_the_engine_lets_it_end(
    engine: Engine, first: bytes, second: bytes, reverse: bool
) -> None:
    command = b"XREVRANGE" if reverse else b"XRANGE"
    try:
        start, end, _ = parse_interval([command, b"orders", first, second], reverse=reverse)
        refused = None
    except ReplyError as error:
        refused = error.text
    with engine.client() as client:
        said = _said(client, command, "orders", first, second)
        assert said == refused if refused else isinstance(said, list)
        for inside in {start, end} - {ids.ZERO} if refused is None and start <= end else ():
            client.delete("orders")
            client.execute_command("XADD", "orders", ids.text(inside), "v", "a")
            assert len(client.execute_command(command, "orders", first, second)) == 1
            for outside in (ids.before(start), ids.after(end)):
                if outside not in (None, ids.ZERO):
                    client.delete("orders")
                    client.execute_command("XADD", "orders", ids.text(outside), "v", "a")
                    assert client.execute_command(command, "orders", first, second) == []

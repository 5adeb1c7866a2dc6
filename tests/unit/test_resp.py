"""What clients say and engines answer, torn at every place, hostile or not."""

import random
import time
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidstream.engine.resp import Limits, Parser, Scanner, Words, elements, encode, split_words
from braidstream.model.ids import user_text
from braidstream.model.strand import COUNTS, Strand, bulk
from braidstream.plan.append import Home, packed_reply, splice, uniform_appends

LIMITS = Limits(bulk=5000, words=300, buffered=30_000)
# Words with line ends in them, words larger than the short way takes, empty words.
# Six of the largest are within the limits: what a client may say comes out, whatever else.
words = st.one_of(st.binary(max_size=12), st.sampled_from([b"", b"\r\n", b"*1\r\n$1\r\na\r\n", b"x" * 4096]))
commands = st.lists(st.lists(words, min_size=1, max_size=6), max_size=5)
hostile = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"*",
                b"$",
                b"\r\n",
                b"\n",
                b"-1",
                b"0",
                b"1",
                b"3",
                b"99999999999",
                b"*2\r\n$3\r\nGET\r\n",
                b'"',
                b"'",
            ]
        ),
        st.sampled_from(
            [b"*1\r\n$4\r\nPING\r\n", b"*3\r\n", b"$5\r\nabcde\r\n", b"PING\r\n", b"+OK\r\n", b":1\r\n"]
        ),
        st.binary(max_size=8),
    ),
    max_size=12,
).map(b"".join)


def packed(words: Words) -> bytes:
    return bytes(hiredis.pack_command(tuple(words)))  # type: ignore[arg-type]


def fed(data: bytes, cuts: list[int], limits: Limits = LIMITS) -> tuple[list[Words], str | None]:
    parser, found, begin = Parser(limits), list[Words](), 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        found += parser.feed(data[begin:end])
        begin = end
    return found, parser.error


@given(commands, st.lists(st.integers(0, 10**6), max_size=6))
def test_commands_come_out_as_they_were_packed_however_torn(said: list[Words], cuts: list[int]) -> None:
    assert fed(b"".join(map(packed, said)), cuts) == (said, None)


@given(hostile, st.lists(st.integers(0, 10**6), max_size=6))
def test_hostile_bytes_mean_the_same_however_torn(data: bytes, cuts: list[int]) -> None:
    # Limits so small that the short way is not taken are the reference.
    slow = Limits(bulk=4000, words=200, buffered=30_000)
    whole = fed(data, [], slow)
    assert fed(data, cuts, slow) == whole
    assert fed(data, cuts, LIMITS) == whole


@given(hostile)
def test_what_is_kept_of_hostile_bytes_is_bounded(data: bytes) -> None:
    parser = Parser(LIMITS)
    for _ in range(50):
        parser.feed(data)
        assert len(parser._rest) <= 70_000
        assert sum(map(len, parser._words)) <= LIMITS.buffered
        if parser.error is not None:
            assert parser.feed(b"*1\r\n$4\r\nPING\r\n") == []
            return


values = st.recursive(
    st.one_of(st.binary(max_size=8), st.integers(-9, 9), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.binary(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.lists(values, max_size=5), st.lists(st.integers(0, 10**6), max_size=6), st.sampled_from([2, 3]))
def test_replies_end_where_they_end_however_torn(said: list[Any], cuts: list[int], resp: int) -> None:
    raw = [encode(each, resp, b"_\r\n" if resp == 3 else b"$-1\r\n") for each in said]
    data, scanner, ends, begin = b"".join(raw), Scanner(), list[int](), 0
    for end in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        ends += [begin + at for at, _ in scanner.feed(data[begin:end])]
        begin = end
    assert [data[a:b] for a, b in zip([0, *ends], ends, strict=False)] == raw
    assert scanner.at_end
    assert elements(b"*%d\r\n" % len(raw) + data) == raw


def test_every_kind_of_reply_has_an_end() -> None:
    kinds = [
        b"+OK\r\n",
        b"-ERR x\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"$3\r\na\r\n\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"_\r\n",
        b",1.5\r\n",
        b"#t\r\n",
        b"(123\r\n",
        b"=7\r\ntxt:abc\r\n",
        b"!5\r\nERR a\r\n",
        b"~2\r\n:1\r\n*1\r\n_\r\n",
        b"%1\r\n*1\r\n:1\r\n$1\r\na\r\n",
        b">2\r\n+a\r\n:1\r\n",
        b"|1\r\n+a\r\n+b\r\n:1\r\n",
    ]
    for step in (1, 2, 3, 1000):
        data, scanner, found = b"".join(kinds), Scanner(), 0
        for at in range(0, len(data), step):
            found += len(scanner.feed(data[at : at + step]))
        assert found == len(kinds)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"SET k v", [b"SET", b"k", b"v"]),
        (b"  \"a b\"\t'c d' ", [b"a b", b"c d"]),
        (rb'"\x41\n\"\q"', [b'A\n"q']),
        (rb"'it\'s \n'", [rb"it's \n"]),
        (b'a"b"', [b"ab"]),
        (b'"a"b', None),
        (b'"open', None),
        (b"", []),
    ],
)
def test_lines_are_split_as_the_engine_does(line: bytes, said: list[bytes] | None) -> None:
    assert split_words(line) == said


def test_a_million_hostile_cases_take_seconds_not_hours() -> None:
    """A short form of `make fuzz`, to notice a case that is slow: the square of the input, say."""
    dice = random.Random(1)
    parser = Parser(Limits())
    parser.feed(b"*1000000\r\n")
    for _ in range(2_000):
        parser.feed(b"$10\r\n" + dice.randbytes(10) + b"\r\n")
    assert len(parser._words) == 2_000
    big = Parser(Limits())
    big.feed(b"*1\r\n$100000000\r\n")
    for _ in range(500):
        big.feed(b"x" * 100_000)
    assert big.error is None


@pytest.mark.parametrize(
    ("said", "commands"),
    [
        (b"\r\n", 0),
        (b"PING\r\n", 1),
        (packed([b"SET", b"k", b"a\r\nb"]), 1),
        (packed([b"SET", b"k", b"v" * 5000]), 1),
    ],
    ids=["blank", "inline", "line ends", "large"],
)
def test_many_commands_at_once_cost_in_proportion(said: bytes, commands: int) -> None:
    """300 kB take a moment. By the square of it they take minutes, and one client stops all others."""
    times = 300_000 // len(said)
    parser, began = Parser(Limits()), time.monotonic()
    found = parser.feed(said * times)
    assert len(found) == commands * times
    assert time.monotonic() - began < 20


# Uniform appends are recognised by columns; the parser must agree.

TRICKY = [b"", b"a", b"*5", b"*7", b"$4", b"XADD", b"$1", b"*", b"orders", b"\r\n", b"x\r\n$1", b"v" * 5000]


def uniform(data: bytes) -> tuple[bytes, bytes, int, int] | None:
    """With the number of words."""
    tokens = data.split(b"\r\n")
    words = COUNTS.get(tokens[0], 0)
    found = uniform_appends(data, tokens, words) if words >= 5 and words % 2 else None
    return None if found is None else (*found[:2], words, found[2])


@given(
    name=st.sampled_from([b"orders", b"", b"*", b"$1", b"a\r\nb"]),
    rows=st.lists(st.lists(st.sampled_from(TRICKY), min_size=2, max_size=6), min_size=1, max_size=5),
    command=st.sampled_from([b"XADD", b"xadd", b"XDEL"]),
    entry=st.sampled_from([b"*", b"*", b"*", b"1"]),
    torn=st.integers(0, 3),
)
def test_appends_told_by_columns_are_those_that_the_parser_finds(
    name: bytes, rows: list[list[bytes]], command: bytes, entry: bytes, torn: int
) -> None:
    commands = [[command, name, entry, *fields] for fields in rows]
    data = b"".join(map(packed, commands))
    data = data[: len(data) - torn]
    found = uniform(data)
    if found is None:
        return
    start, seen, words, count = found
    parsed = Parser(Limits()).feed(data)
    assert parsed == commands
    assert (seen, words, count) == (name, len(commands[0]), len(commands))
    begin = b"*%d\r\n$4\r\nXADD\r\n$3\r\nkey\r\n$10\r\nNOMKSTREAM\r\n" % (words + 1)
    told = [[b"XADD", b"key", b"NOMKSTREAM", *each[2:]] for each in commands]
    assert Parser(Limits()).feed(data.replace(start, begin)) == told


def test_appends_alike_are_told_from_what_only_looks_like_them() -> None:
    one = packed([b"XADD", b"orders", b"*", b"f", b"v"])
    assert uniform(one * 3) == (b"*5\r\n$4\r\nXADD\r\n$6\r\norders\r\n", b"orders", 5, 3)
    odd = packed([b"XADD", b"orders", b"*", b"f*7", b"XADD", b"orders", b"v"])
    assert uniform(odd * 2) is None
    for data in (
        one,
        one * 2 + b"*",
        one + one[:-1],
        one + one.replace(b"XADD", b"XDEL"),
        b"",
        b"PING\r\n" * 30,
    ):
        assert uniform(data) is None


@given(
    words=st.lists(st.sampled_from([b"XADD", b"orders", b"*", *TRICKY]), max_size=4).flatmap(
        lambda odd: st.sampled_from([[b"XADD", b"orders", b"*", *odd], [b"xadd", b"orders", b"*", *odd], odd])
    ),
    changed=st.sampled_from([b"", b"*", b"$4", b"$6", b"\r\n"]),
    torn=st.integers(-3, 3),
)
def test_one_append_is_spliced_to_what_the_parser_finds(
    words: list[bytes], changed: bytes, torn: int
) -> None:
    data = packed(words) if words else b""
    data = data.replace(changed, b"$5", 1) if changed else data
    data = data + b"*1\r\n"[:-torn] if torn < 0 else data[: len(data) - torn]
    home = Home(Strand(b"orders", "s", 1))
    found = splice(data, {b"orders": home})
    whole = words[:3] == [b"XADD", b"orders", b"*"] and len(words) >= 5 and len(words) % 2 == 1
    assert found or changed or torn or not whole or any(len(word) > 4000 or b"\r\n" in word for word in words)
    if found is not None:
        key, out, count = found
        [parsed] = Parser(Limits()).feed(data)
        assert (key, count) == (home.key, 1)
        assert Parser(Limits()).feed(out) == [[b"XADD", home.key, b"NOMKSTREAM", *parsed[2:]]]


@given(native=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 3000)), writer=st.integers(1, 1023))
def test_the_reply_to_an_append_is_its_user_id(native: tuple[int, int], writer: int) -> None:
    text = b"%d-%d" % native
    assert packed_reply(text, writer) == bulk(user_text(text, writer))

"""Splicing: the bytes of a page become the bytes of a call, or the page is parsed. Never a wrong byte."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidstream.engine.connection import RawReplies, new_mark
from braidstream.replication.link import batches, pages, splice
from tests.support.pages import Entry, bulk, check, page

# Pieces that could be mistaken for RESP, and anything else.
awkward = st.sampled_from(
    [
        b"",
        b"\n",
        b"\r",
        b"\r\n",
        b"*2",
        b"*2\r\n",
        b"$3\r\n",
        b"$0\r\n\r\n",
        b"5-5\r\n*2\r\n$1\r\na",
        b"$-1",
        b"0",
    ]
)
words = st.lists(st.one_of(awkward, st.binary(max_size=5)), max_size=3).map(b"".join)
natives = st.one_of(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), st.just((5, 5))).map(
    lambda native: b"%d-%d" % native
)
plain = st.binary(max_size=12).map(lambda word: word.replace(b"\n", b"."))


def of_width(word: st.SearchStrategy[bytes], width: int) -> st.SearchStrategy[Entry]:
    return st.tuples(natives, st.lists(word, min_size=width, max_size=width))


def alike(word: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[Entry]]:
    widths = st.integers(1, 3).map(lambda pairs: 2 * pairs)
    return widths.flatmap(lambda width: st.lists(of_width(word, width), min_size=1, max_size=6))


mixed = st.lists(st.tuples(natives, st.lists(words, max_size=5)), max_size=5)
entries = st.one_of(alike(plain), alike(words), mixed)


@pytest.fixture(scope="module", autouse=True)
def short_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splice, "LEAST_ENTRIES", 1)
        patch.setattr(batches, "BATCH_ENTRIES", 4)
        patch.setattr(batches, "BATCH_BYTES", 200)
        yield


@given(entries)
def test_a_page_is_spliced_to_what_resp_says(found: list[Entry]) -> None:
    check(page(found))


@given(alike(plain))
def test_entries_of_equal_width_without_line_breaks_are_spliced(found: list[Entry]) -> None:
    assert check(page(found))


@given(entries, st.data())
def test_a_damaged_page_is_refused_or_is_what_resp_says(found: list[Entry], data: st.DataObject) -> None:
    reply = page(found)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(reply)))
        upto = data.draw(st.integers(at, min(len(reply), at + 3)))
        reply[at:upto] = data.draw(st.one_of(awkward, st.binary(max_size=3), st.just(bytes(reply[:upto]))))
    check(reply)


LONG = [(b"5-%d" % number, [b"n", b"x" * size]) for number, size in enumerate((3, 9_999, 10_000, 0, 123_456))]


def test_long_values_are_spliced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splice, "MOST_BYTES", 100_000)
    assert check(page(LONG))
    for wrong in (b"$010000\r\n", b"$10001\r\n", b"$+10000\r\n", b"$1000\r\n", b"+10000\r\n"):
        assert not check(bytearray(bytes(page(LONG)).replace(b"$10000\r\n", wrong)))


def test_large_or_few_entries_are_parsed() -> None:
    assert not check(page(LONG))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splice, "LEAST_ENTRIES", 3)
        assert not check(page(LONG[:1] * 2))
        assert check(page(LONG[:1] * 3))


@pytest.mark.parametrize(
    "reply", [b"", b"*", b"*0\r\n", b"*-1\r\n", b"*1\r\n", b"-ERR\r\n", b"*1\r\n\n\n\n\n\n\n\n\n"]
)
def test_what_is_no_page_is_refused(reply: bytes) -> None:
    assert not check(bytearray(reply))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b"$3\r\n5-1", b"$03\r\n5-1"),
        (b"5-1", b"5_1"),
        (b"5-1", b"+-1"),
        (b"*2\r\n$3", b"*3\r\n$3"),
        (b"*1", b"*01"),
    ],
)
def test_a_page_that_another_parser_could_read_otherwise_is_refused(right: bytes, wrong: bytes) -> None:
    reply = bytes(page([(b"5-1", [b"n", b"1"])]))
    assert check(bytearray(reply))
    assert not check(bytearray(reply.replace(right, wrong, 1)))


def test_without_numpy_pages_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pages.find_splice() is splice.splice
    for name in ("braidstream.replication.link.splice", "braidstream.engine.reply_lines"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert pages.find_splice() is None


# Raw replies


@given(st.lists(st.tuples(st.booleans(), words), max_size=6), st.lists(st.integers(1, 60), min_size=1))
def test_raw_replies_are_taken_out_wherever_the_bytes_are_cut(
    replies: list[tuple[bool, bytes]], cuts: list[int]
) -> None:
    """A raw reply may be empty, or end with what looks like the start of a mark."""
    sent, raw, stream, for_parser = RawReplies(), list[bytes](), b"", b""
    for is_raw, word in replies:
        if is_raw:
            sent.expect(mark := new_mark())
            raw.append(word + bulk(mark)[: len(word) % 39])
            stream += bulk(mark) + raw[-1] + bulk(mark)
            for_parser += 2 * bulk(mark)
        else:
            stream += bulk(word)
            for_parser += bulk(word)
    parts, at = list[bytes | bytearray](), 0
    while at < len(stream):
        size = cuts[len(parts) % len(cuts)]
        parts += sent.split(stream[at : at + size])
        at += size
    assert [part for part in parts if isinstance(part, bytearray)] == raw
    assert b"".join(part for part in parts if isinstance(part, bytes)) == for_parser
    assert not sent

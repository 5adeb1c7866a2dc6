"""Pages become columns by their line breaks; whatever is in them, the result is what RESP says."""

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, MapType, StringType, StructType

from braidstream.model.strand import Strand
from braidstream.spark.source import columns
from braidstream.spark.source.rows import META, Rows, Shape

Entry = tuple[tuple[int, int], list[tuple[bytes, bytes]]]

# Pieces that could be mistaken for RESP, and anything else.
awkward = st.sampled_from(
    [
        b"",
        b"\n",
        b"\r\n",
        b"*2\r\n",
        b"$3\r\n",
        b"\r\n*0\r\n",
        b"5-5\r\n*2\r\n$1\r\na\r\n$1\r\nb",
        b"-1",
        b"$-1",
    ]
)
words = st.lists(st.one_of(awkward, st.binary(max_size=5)), max_size=3).map(b"".join)
positions = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)) | st.tuples(
    st.integers(1_700_000_000_000, 1_700_000_000_100), st.integers(0, 3)
)
pairs = st.lists(st.tuples(words, words), min_size=1, max_size=3)
alike = st.lists(st.tuples(positions, st.tuples(words, words)), max_size=6).map(
    lambda found: [(entry, [(b"n", first), (b"m", second)]) for entry, (first, second) in found]
)
entries = alike | st.lists(st.tuples(positions, pairs), max_size=5)


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(word), word)


def reply(found: list[Entry]) -> bytearray:
    """What the engine answers to XRANGE."""
    body = bytearray(b"*%d\r\n" % len(found))
    for (ms, seq), fields in found:
        body += b"*2\r\n" + bulk(b"%d-%d" % (ms, seq)) + b"*%d\r\n" % (2 * len(fields))
        for name, value in fields:
            body += bulk(name) + bulk(value)
    return body


def seen(page: columns.Page) -> list[Any]:
    if isinstance(page, columns.Irregular):
        return page.entries
    lists = [page.column(name).to_pylist() for name in page.names]
    return [
        (*page.id(at), {name: column[at] for name, column in zip(page.names, lists, strict=True)})
        for at in range(len(page))
    ]


@given(entries)
def test_a_page_is_what_resp_says(found: list[Entry]) -> None:
    page = columns.parse(reply(found))
    assert seen(page) == [(*entry, dict(fields)) for entry, fields in found]
    assert list(page.sizes) == [sum(len(a) + len(b) for a, b in dict(fields).items()) for _, fields in found]


@given(entries)
def test_the_extent_of_a_page_is_certain_or_not_told(found: list[Entry]) -> None:
    known = columns.extent(reply(found))
    plain = all(b"*" not in word for _, fields in found for pair in fields for word in pair)
    assert known == ((len(found), found[-1][0]) if found and plain else None)


def test_entries_that_are_alike_become_columns() -> None:
    found: list[Entry] = [((1_700_000_000_000 + n, n), [(b"n", b"%d" % n), (b"m", b"x")]) for n in range(50)]
    page = columns.parse(reply(found))
    assert isinstance(page, columns.Regular)
    assert page.names == (b"n", b"m")


@given(entries, pairs)
def test_a_reply_before_the_page_is_cut_off_exactly(
    found: list[Entry], fields: list[tuple[bytes, bytes]]
) -> None:
    head, page = reply([((5, 5), fields)]), reply(found)
    both = head + page
    assert columns.take_first(both)
    assert both == page
    nothing = reply([]) + page
    assert not columns.take_first(nothing)
    assert nothing == page


@given(entries, st.sampled_from([Strand(b"orders", "p", 0), Strand(b"orders", "s", 7)]))
def test_rows_are_the_same_by_columns_and_one_by_one(found: list[Entry], strand: Strand) -> None:
    rows = Rows(Shape.of(META, "PERMISSIVE", "_corrupt_record"), strand)
    by_page = pa.RecordBatch.to_pylist(rows.batch(columns.parse(reply(found))), maps_as_pydicts="strict")
    singly = [
        row
        for entry in found
        for row in pa.RecordBatch.to_pylist(
            rows.batch(columns._irregular(reply([entry]))), maps_as_pydicts="strict"
        )
    ]
    assert by_page == singly


def test_minted_ids_are_those_that_users_see() -> None:
    found: list[Entry] = [((1_700_000_000_000, n), [(b"n", b"1")]) for n in range(3)]
    rows = Rows(Shape.of(META, "PERMISSIVE", ""), Strand(b"orders", "s", 7))
    batch = rows.batch(columns.parse(reply(found)))
    assert batch.column("id").to_pylist() == [f"1700000000000-{n * 1024 + 7}" for n in range(3)]
    assert batch.column("region").to_pylist() == [7, 7, 7]


def test_a_users_schema_with_columns_of_our_own() -> None:
    schema = StructType().add("m", StringType()).add("n", IntegerType()).add("_stream", StringType())
    schema = schema.add("_fields", MapType(StringType(), BinaryType()))
    rows = Rows(Shape.of(schema, "PERMISSIVE", ""), Strand(b"orders", "p", 0))
    [row] = rows.batch(columns.parse(reply([((1, 1), [(b"n", b"5")])]))).to_pylist()
    assert (row["m"], row["n"], row["_stream"], row["_fields"]) == (None, 5, "orders", [("n", b"5")])

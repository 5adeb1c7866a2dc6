"""Fields of entries as typed columns: what fits is in its column, everything else is in `_rescued`."""

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from braidstream.errors import OptionError
from braidstream.spark.lake.typed_columns import MOST, RESCUED, Typer, Typing, new_columns
from braidstream.spark.source.rows import ENTRIES

Entry = list[tuple[str, bytes]]


def batch_of(*entries: Entry) -> pa.RecordBatch:
    rows = [
        {"id": "1-0", "position": b"", "place": "p", "fields": [{"name": n, "value": v} for n, v in each]}
        for each in entries
    ]
    return pa.RecordBatch.from_pylist(rows, ENTRIES)


def typed(schema: str, *entries: Entry) -> list[dict[str, Any]]:
    """The typed columns of each entry, with `_rescued` parsed."""
    made = Typer(Typing.parse(schema)).typed(batch_of(*entries)).to_pylist()
    return [
        {
            name: json.loads(value) if name == RESCUED and value else value
            for name, value in row.items()
            if name not in ENTRIES.names
        }
        for row in made
    ]


def test_values_that_fit_are_in_their_columns() -> None:
    schema = "n long, x double, t timestamp, d date, b boolean, c decimal(10, 2), s string, y binary"
    entry = [("n", b"7"), ("x", b"1.50"), ("t", b"2026-11-16T01:02:03Z"), ("d", b"2026-11-16")]
    entry += [("b", b"true"), ("c", b"12.34"), ("s", "wörd".encode()), ("y", b"\xff\0")]
    [row] = typed(schema, entry)
    assert row.pop(RESCUED) is None
    assert [str(each) for each in row.values()] == [
        "7",
        "1.5",
        "2026-11-16 01:02:03+00:00",
        "2026-11-16",
        "True",
        "12.34",
        "wörd",
        repr(b"\xff\0"),
    ]


def test_a_value_that_does_not_fit_is_rescued_and_others_are_not() -> None:
    rows = typed(
        "n int, s string",
        [("n", b"1"), ("s", b"a")],
        [("n", b"twelve"), ("s", b"b")],
        [("n", b"3000000000"), ("s", b"c")],
        [("n", b""), ("s", b"\xff")],
        [("s", b"e")],
        [],
    )
    assert rows == [
        {"n": 1, "s": "a", RESCUED: None},
        {"n": None, "s": "b", RESCUED: {"n": "twelve"}},
        {"n": None, "s": "c", RESCUED: {"n": "3000000000"}},
        {"n": None, "s": None, RESCUED: {"n": "", "s": "base64:/w=="}},
        {"n": None, "s": "e", RESCUED: None},
        {"n": None, "s": None, RESCUED: None},
    ]


def test_a_number_that_is_too_large_is_not_infinite() -> None:
    rows = typed("x double, y float", *([("x", each), ("y", each)] for each in (b"1e400", b"-inf", b"1e39")))
    assert rows == [
        {"x": None, "y": None, RESCUED: {"x": "1e400", "y": "1e400"}},
        {"x": float("-inf"), "y": float("-inf"), RESCUED: None},
        {"x": 1e39, "y": None, RESCUED: {"y": "1e39"}},
    ]


@pytest.mark.parametrize("others", [[], [b"n/a"]], ids=["alone", "beside one that does not fit"])
def test_times_that_are_not_of_the_years_1_to_9999_are_rescued(others: list[bytes]) -> None:
    """Whatever else is in their page. Spark and Python have no other years."""
    far = [b"0001-01-01T00:00:00+01:00", b"9999-12-31T23:59:59-05:00", b"0000-01-01T00:00:00Z", *others]
    near = [b"0001-01-01T00:00:00Z", b"9999-12-31T23:59:59.999999Z"]
    rows = typed("at timestamp", *([("at", each)] for each in far + near))
    assert [row[RESCUED] for row in rows] == [*({"at": each.decode()} for each in far), None, None]
    years = [row["at"] and row["at"].year for row in rows]
    assert years == [*(None for _ in far), 1, 9999]
    days = [b"0000-12-31", b"0001-01-01", b"9999-12-31", *others]
    rows = typed("on date", *([("on", each)] for each in days))
    assert [row["on"] for row in rows] == [None, date.min, date.max, *(None for _ in others)]
    assert rows[0][RESCUED] == {"on": "0000-12-31"}


def test_a_decimal_with_very_many_places_is_rescued() -> None:
    """Arrow crashes at some of them."""
    tiny = [b"1e-999999999", b"1E-45", b"0e-100", b"0." + b"0" * 50 + b"1", b"1.5e-3", b"1e999999999"]
    rows = typed(
        "c decimal(10, 2)", *([("c", each)] for each in (*tiny, b"1.5e-1", b"2.50", b"15e1", b"-.5"))
    )
    assert [row[RESCUED] for row in rows] == [*({"c": each.decode()} for each in tiny), *[None] * 4]
    assert [str(row["c"]) for row in rows[len(tiny) :]] == ["0.15", "2.50", "150.00", "-0.50"]
    [row] = typed("c decimal(38, 30)", [("c", b"1.25e-19")])
    assert row["c"] == Decimal("1.25e-19")


def test_a_hexadecimal_text_is_no_integer() -> None:
    for kind in ("long", "int", "short", "byte"):
        rows = typed(f"n {kind}", [("n", b"0x1F")], [("n", b"31")], [("n", b"-0X1")], [])
        assert [row["n"] for row in rows] == [None, 31, None, None]
        assert [row[RESCUED] for row in rows] == [{"n": "0x1F"}, None, {"n": "-0X1"}, None]


def test_of_a_repeated_field_the_last_value_is_in_the_column_and_all_are_rescued() -> None:
    rows = typed(
        "tag string, n long",
        [("tag", b"a"), ("n", b"1"), ("tag", b"b"), ("tag", b"b")],
        [("tag", b"c"), ("n", b"2")],
        [("n", b"3"), ("n", b"x")],
    )
    assert rows == [
        {"tag": "b", "n": 1, RESCUED: {"tag": ["a", "b", "b"]}},
        {"tag": "c", "n": 2, RESCUED: None},
        {"tag": None, "n": None, RESCUED: {"n": ["3", "x"]}},
    ]


def test_fields_without_a_column_are_rescued_also_if_they_look_encoded() -> None:
    [row] = typed("n long", [("note", b"base64:x"), ("", b"1"), ("n", b"2"), ("a b", "é".encode())])
    assert row == {"n": 2, RESCUED: {"note": "base64:YmFzZTY0Ong=", "": "1", "a b": "é"}}


def test_fields_named_like_columns_of_every_table_get_an_underscore() -> None:
    assert typed("id_ long, Day_ date", [("id", b"7"), ("Day", b"2026-01-02"), ("id_", b"8")]) == [
        {"id_": 7, "Day_": date(2026, 1, 2), RESCUED: {"id_": "8"}}
    ]
    assert new_columns(["id", "ID_", "_rescued", "a b", "", "x"], pa.schema([])).names == [
        "ID__",
        "_rescued_",
        "id_",
        "x",
    ]


def test_an_open_schema_asks_for_columns_of_new_fields() -> None:
    typer = Typer(Typing.parse("n long, *"))
    typer.typed(batch_of([("n", b"1"), ("tag", b"x"), ("N", b"2"), ("a=b", b"3")]))
    assert typer.new_fields == {"tag"}  # N differs in case alone, a=b cannot be a column
    closed = Typer(Typing.parse("n long"))
    closed.typed(batch_of([("tag", b"x")]))
    assert not closed.new_fields


def test_a_table_has_a_bounded_number_of_columns() -> None:
    found = new_columns([f"f{n:04}" for n in range(2 * MOST)] + ["F0000"], pa.schema([("n", pa.int64())]))
    assert len(found) == MOST - 1
    full = Typer(Typing(pa.schema([*found, ("n", pa.int64())]), is_open=True))
    [row] = full.typed(batch_of([("more", b"x")])).to_pylist()
    assert not full.new_fields
    assert json.loads(row[RESCUED]) == {"more": "x"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("order", "is not a column"),
        ("", "is not a column"),
        ("id long", "The column of the field id is id_"),
        ("Timestamp timestamp", "is taken"),
        ("n long, N int", "twice"),
        ("n map<string,string>", "cannot be map"),
        ("n decimal(39, 1)", "cannot be"),
        ("`a b` long", "a character"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Typing.parse(text)


def test_a_schema_is_written_as_for_spark() -> None:
    found = Typing.parse("order BIGINT, `a:b` decimal( 5 , 2 ), price: double , *")
    assert found.is_open
    assert [(each.name, str(each.type)) for each in found.columns] == [
        ("order", "int64"),
        ("a:b", "decimal128(5, 2)"),
        ("price", "double"),
    ]

"""Typed columns of a table, in addition to those that every table of a lake has.

    schema    order long, amount double, tag string
    fields    order 7, amount twelve, tag a, tag b, note hello
    row       order 7, amount null, tag b, _rescued {"amount":"twelve","tag":["a","b"],"note":"hello"}

`_rescued` is a JSON object with the fields that are not in a column as they are: the value does not fit the
type, the field is repeated (a list of all its values; its column has the last), or there is no such column.
A name or value that is not UTF-8, or begins with "base64:", is "base64:..." there. It is null if there is
nothing to rescue. `fields` still has the whole entry.

A field has the column of its name. `id` and other names of a lake's own columns get an underscore: `id_`.
Names of columns differ in more than case; of `Tag` and `tag` the second is rescued.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from braidstream.errors import OptionError
from braidstream.model.frontier import name_text
from braidstream.spark.source.rows import ENTRIES, _cast, _Faults

RESCUED: Final = "_rescued"
MOST: Final = 500  # typed columns of a table; further fields are rescued
OWN: Final = frozenset(["stream", "day", RESCUED, *ENTRIES.names])
_SAFE: Final = re.compile(r"(?!base64:)[^\s,;{}()=\\\"`\x00-\x1f\x7f]{1,128}\Z")
_COLUMN: Final = re.compile(r"(?:`([^`]+)`|([^\s:`]+))(?:\s*:\s*|\s+)(.+)\Z", re.DOTALL)
_DECIMAL: Final = re.compile(r"decimal\s*\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)\Z")
_TYPES: Final = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@dataclass(frozen=True, slots=True)
class Typing:
    """Which typed columns a table has. is_open: a new field becomes a new column, of type string."""

    columns: pa.Schema
    is_open: bool = False

    @staticmethod
    def parse(text: str) -> "Typing":
        """A schema as Spark writes it: 'order long, amount double'. A `*` opens it."""
        parts = [each.strip() for each in re.split(r",(?![^(]*\))", text)]
        columns = pa.schema([_column(each) for each in parts if each != "*"])
        taken = [each.lower() for each in columns.names]
        for name in columns.names:
            if taken.count(name.lower()) > 1:
                raise OptionError("schema", f"column {name} is there twice")
        if len(columns) > MOST:
            raise OptionError("schema", f"has {len(columns)} columns; a table has at most {MOST}")
        return Typing(columns, "*" in parts)


def _column(text: str) -> pa.Field:
    found = _COLUMN.match(text)
    if found is None:
        raise OptionError("schema", f"{text!r} is not a column. Write NAME TYPE, like 'order long', or *")
    name, wanted = found[1] or found[2], found[3].strip().lower()
    if name.lower() in OWN:
        raise OptionError(
            "schema",
            f"column {name} is taken: every table has one. The column of the field {name} is {name}_",
        )
    if not _SAFE.match(name):
        raise OptionError(
            "schema",
            f"column {name!r} has a character that names of columns cannot have. The field is in {RESCUED}",
        )
    decimal = _DECIMAL.match(wanted)
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
        return pa.field(name, pa.decimal128(int(decimal[1]), int(decimal[2])))
    if wanted not in _TYPES:
        raise OptionError(
            "schema",
            f"column {name} cannot be {wanted}. Types: {', '.join(_TYPES)}, decimal(p, s). A field is a text "
            "or bytes: keep JSON as string.",
        )
    return pa.field(name, _TYPES[wanted])


def _is_like_own(name: str) -> bool:
    return name.lower().rstrip("_") in OWN


def column_of(field: str) -> str | None:
    """The column of a field; None if a column cannot have such a name."""
    if not _SAFE.match(field):
        return None
    return f"{field}_" if _is_like_own(field) else field


def _field_of(column: str) -> str:
    return column[:-1] if _is_like_own(column) else column


def new_columns(fields: Iterable[str], columns: pa.Schema) -> pa.Schema:
    """Columns of type string for new fields, as many as a table may have."""
    taken, found = {each.lower() for each in columns.names}, list[pa.Field]()
    for name in filter(None, map(column_of, sorted(fields))):
        if name.lower() not in taken and len(taken) < MOST:
            taken.add(name.lower())
            found.append(pa.field(name, pa.string()))
    return pa.schema(found)


class Typer:
    """Adds typed columns to batches of entries. new_fields: fields that should get a column first."""

    def __init__(self, typing: Typing) -> None:
        self.typing = typing
        self.new_fields = set[str]()
        self._of_field = {_field_of(each.name): each for each in typing.columns}
        self._known = set[str]()  # fields without a column that were seen before

    def typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        pairs = _Pairs(batch.column("fields"))
        made = dict[str, pa.Array]()
        for name, at in pairs.by_name():
            column = self._of_field.get(name)
            if column is not None:
                made[column.name] = pairs.take_column(at, column.type)
            elif self.typing.is_open and name not in self._known:
                self._known.add(name)
                if len(new_columns([name], self.typing.columns)):
                    self.new_fields.add(name)
        columns = [made.get(each.name) for each in self.typing.columns]
        for number, each in enumerate(self.typing.columns):
            if columns[number] is None:
                columns[number] = pa.nulls(len(batch), each.type)
        schema = pa.schema([*batch.schema, *self.typing.columns, pa.field(RESCUED, pa.string())])
        return pa.RecordBatch.from_arrays([*batch.columns, *columns, pairs.rescued()], schema=schema)


class _Pairs:
    """The fields of a batch as flat columns: the row of each field, its name, its value."""

    def __init__(self, fields: pa.ListArray) -> None:
        self.count = len(fields)
        pairs, lengths = fields.flatten(), fields.value_lengths().to_numpy(zero_copy_only=False)
        self.names, self.values = pairs.field(0), pairs.field(1)
        self.rows = np.repeat(np.arange(self.count), lengths)
        self.left = np.ones(len(self.rows), bool)  # not in a column

    def by_name(self) -> Iterable[tuple[str, Any]]:
        """(name, where it is), for each name."""
        codes = self.names.dictionary_encode()
        which = codes.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(which, kind="stable")
        ends = np.cumsum(np.bincount(which, minlength=len(codes.dictionary)))
        return zip(codes.dictionary.to_pylist(), np.split(order, ends[:-1]), strict=True)

    def take_column(self, at: Any, kind: pa.DataType) -> pa.Array:
        """The values of one field in the rows' order, cast; the last value of a row counts."""
        rows = self.rows[at]
        place = np.full(self.count, -1)
        place[rows] = at
        values = self.values.take(pa.array(place, pa.int64(), mask=place < 0))
        faults = _Faults(self.count)
        made = _cast(values, kind, faults)
        if pa.types.is_floating(kind):
            made = _finite(made, values, faults)
        fits = np.bincount(rows, minlength=self.count) == 1
        self.left[at] = ~(fits & ~faults.bad)[rows]
        return made

    def rescued(self) -> pa.Array:
        """The fields that are left, as JSON for each row."""
        at = np.flatnonzero(self.left)
        names, values = (each.take(pa.array(at)).to_pylist() for each in (self.names, self.values))
        texts: list[str | None] = [None] * self.count
        for row, pairs in groupby(zip(self.rows[at].tolist(), names, values, strict=True), itemgetter(0)):
            found = dict[str, list[str]]()
            for _, name, value in pairs:
                found.setdefault(name, []).append(encode_basestring(name_text(value)))
            texts[row] = _json(found)
        return pa.array(texts, pa.string())


def _finite(made: pa.Array, values: pa.Array, faults: _Faults) -> pa.Array:
    """Without numbers that became infinite because they are too large, like 1e400."""
    at = np.flatnonzero(np.isinf(made.to_numpy(zero_copy_only=False)))
    texts = values.take(pa.array(at)).to_pylist()
    large = at[[b"inf" not in text.lower() for text in texts]] if len(at) else at
    if not len(large):
        return made
    bad = np.zeros(len(made), bool)
    bad[large] = True
    faults.add(bad)
    return pc.if_else(pa.array(bad), pa.scalar(None, made.type), made)


def _json(fields: dict[str, list[str]]) -> str:
    """An object of texts, which are quoted already; `json.dumps` would take three times as long."""
    parts = [
        f"{encode_basestring(name)}:{values[0] if len(values) == 1 else '[' + ','.join(values) + ']'}"
        for name, values in fields.items()
    ]
    return "{" + ",".join(parts) + "}"

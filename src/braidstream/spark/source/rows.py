"""Rows of the source: the columns Spark gets for a page of entries.

Without a schema of the user's own:

    stream string, id string, region int, timestamp timestamp, fields map<string, binary>

Of logs (the option `logs`):

    stream string, offset bigint, tag binary, entry binary

With a schema of the user's own, each column is the field of its name, cast to its type; `_stream`, `_id`,
`_offset`, `_region`, `_timestamp` and `_fields` are the above, `tag` and `entry` those of a log. A value that
does not fit makes the entry malformed: PERMISSIVE sets null (and puts the entry into `_corrupt_record`, if
the schema has it), DROPMALFORMED leaves the entry out, FAILFAST fails. A missing field is null, and the entry
is not malformed, unless the column is NOT NULL: Spark would read a null there as another value, so PERMISSIVE
fails too.

In a map, a field name that is not UTF-8 is "base64:...", like the name of a stream. Of a repeated field the
last value counts.
"""

import json
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from braidstream.errors import MalformedError, OptionError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text, name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.registry import ENTRY, TAG
from braidstream.model.strand import Strand
from braidstream.spark.compat import arrow_schema
from braidstream.spark.options import Mode
from braidstream.spark.source.columns import Irregular, Page, Regular

META: Final = StructType(
    [
        StructField("stream", StringType(), False),
        StructField("id", StringType(), False),
        StructField("region", IntegerType(), True),
        StructField("timestamp", TimestampType(), True),
        StructField("fields", MapType(StringType(), BinaryType(), False), False),
    ]
)
LOG_META: Final = StructType(
    [
        StructField("stream", StringType(), False),
        StructField("offset", LongType(), True),
        StructField("tag", BinaryType(), True),
        StructField("entry", BinaryType(), True),
    ]
)
# The same with valueType=string.
META_TEXT: Final = StructType(
    [*META.fields[:-1], StructField("fields", MapType(StringType(), StringType(), False), False)]
)
LOG_META_TEXT: Final = StructType(
    [*LOG_META.fields[:2], *(StructField(name, StringType(), True) for name in ("tag", "entry"))]
)
_OFFSET: Final = LOG_META["offset"]
_OWN: Final = frozenset([*META.names, _OFFSET.name])  # not fields of an entry
_LOG_FIELDS: Final = {"tag": TAG, "entry": ENTRY}
_CASTABLE: Final = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType,
    ShortType, StringType, TimestampType,
)  # fmt: skip
LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999, where Spark's timestamps end
# Up to 38 decimal places; 19, and 19 more by the exponent. See https://github.com/apache/arrow/issues/50964
_DECIMAL: Final = r"^[+-]?\d*(\.\d{0,38}|(\.\d{0,19})?[eE](\+?\d{1,3}|-1?\d))?$"
_FIRST_TIME: Final = datetime.min.replace(tzinfo=UTC)
_LAST_TIME: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Shape:
    """The schema of rows, and how to handle malformed entries. It is pickled for the tasks."""

    schema: StructType
    mode: Mode
    corrupt: str

    @property
    def is_default(self) -> bool:
        """Whether the columns have their own names, without an underscore."""
        return self.schema.names in (META.names, LOG_META.names)

    def own_column(self, name: str) -> str | None:
        """Which of our own columns a column of the schema is, like `id` for `_id`; None if it is a field."""
        own = name if self.is_default else name.removeprefix("_")
        return own if own in _OWN and (self.is_default or name != own) else None

    @property
    def fields(self) -> dict[bytes, pa.DataType]:
        """The columns that are fields of an entry, and their types."""
        columns = {each.name: each.type for each in arrow_schema(self.schema)}
        own = [name for name in columns if self.own_column(name) is not None or name == self.corrupt]
        return {name.encode(): kind for name, kind in columns.items() if name not in own}

    @staticmethod
    def of(schema: StructType, mode: Mode, corrupt: str) -> "Shape":
        if not any(_is_like(schema, each) for each in (META, META_TEXT, LOG_META, LOG_META_TEXT)):
            for each in schema:
                _check(each, corrupt)
        return Shape(schema, mode, corrupt)


def _is_like(schema: StructType, other: StructType) -> bool:
    return [(each.name, each.dataType) for each in schema] == [(each.name, each.dataType) for each in other]


def _check(column: StructField, corrupt: str) -> None:
    meta = {f"_{each.name}": each.dataType for each in (*META, _OFFSET)}
    wanted: DataType | None = StringType() if column.name == corrupt else meta.get(column.name)
    if column.name == "_fields" and column.dataType.simpleString() == "map<string,string>":
        wanted = column.dataType
    if wanted is not None and column.dataType.simpleString() != wanted.simpleString():
        raise OptionError("schema", f"column {column.name} must be {wanted.simpleString()}")
    if wanted is None and not isinstance(column.dataType, _CASTABLE):
        raise OptionError(
            "schema",
            f"column {column.name} cannot be {column.dataType.simpleString()}: a field is a text or bytes. "
            "Read it as string and use from_json.",
        )


class Rows:
    """Converts pages of one strand to record batches."""

    def __init__(self, shape: Shape, strand: Strand) -> None:
        self.shape, self.strand = shape, strand
        self.arrow: pa.Schema = arrow_schema(shape.schema)
        self._name = name_text(strand.name)
        self._made_keys: tuple[tuple[bytes, ...], pa.Array] = ((), pa.array([], pa.string()))
        self._plain = shape.is_default
        self._own = {name: shape.own_column(name) for name in shape.schema.names}

    def of(self, strand: Strand) -> "Rows":
        """The same for another strand. Cheaper than a new one."""
        made = copy(self)
        made.strand, made._name = strand, name_text(strand.name)
        return made

    def batch(self, page: Page) -> pa.RecordBatch:
        keep = _Faults(len(page))
        columns = [self._column(field, page, keep) for field in self.arrow]
        self._check_nulls(columns, page, keep)
        if self.shape.corrupt in self.arrow.names and not self._plain:
            columns[self.arrow.names.index(self.shape.corrupt)] = self._corrupt(page, keep)
        made = pa.RecordBatch.from_arrays(columns, schema=self.arrow)
        if not keep.any:
            return made
        if self.shape.mode == "FAILFAST":
            raise MalformedError(self._complaint(page, keep))
        return made.filter(pa.array(~keep.bad)) if self.shape.mode == "DROPMALFORMED" else made

    def _check_nulls(self, columns: list[pa.Array], page: Page, faults: "_Faults") -> None:
        for field, column in zip(self.arrow, columns, strict=True):
            if field.nullable or not column.null_count:
                continue
            nulls = column.is_null().to_numpy(zero_copy_only=False)
            if self.shape.mode == "PERMISSIVE":
                entry = self._id(page)[int(np.argmax(nulls))].as_py()
                raise MalformedError(
                    f"stream {self._name}, entry {entry}: has no value for column {field.name}, which is NOT "
                    "NULL. Make the column nullable, or set mode to DROPMALFORMED."
                )
            faults.add(nulls)

    def _column(self, field: pa.Field, page: Page, faults: "_Faults") -> pa.Array:
        own = self._own[field.name]
        if own is not None:
            return getattr(self, f"_{own}")(page)
        if field.name == self.shape.corrupt:
            return pa.nulls(len(page), field.type)
        named = _LOG_FIELDS.get(field.name) if self.strand.is_of_log else None
        values = self._values(page, named or field.name.encode())
        if self._plain and pa.types.is_string(field.type):
            return as_text(values)
        return values if values.type == field.type else _cast(values, field.type, faults)

    def _values(self, page: Page, name: bytes) -> pa.Array:
        """One field of every entry; null if an entry has none."""
        if isinstance(page, Irregular):
            return pa.array([fields.get(name) for *_, fields in page.entries], pa.binary())
        return page.column(name) if name in page.names else pa.nulls(len(page), pa.binary())

    def _stream(self, page: Page) -> pa.Array:
        return pa.repeat(pa.scalar(self._name, pa.string()), len(page))

    def _region(self, page: Page) -> pa.Array:
        writer = self.strand.writer if not self.strand.is_plain else None
        return pa.repeat(pa.scalar(writer, pa.int32()), len(page))

    def _offset(self, page: Page) -> pa.Array:
        if not self.strand.is_of_log:
            return pa.nulls(len(page), pa.int64())
        found = [seq for _, seq, _ in page.entries] if isinstance(page, Irregular) else page.seq
        return pa.array(found, pa.int64())

    def _timestamp(self, page: Page) -> pa.Array:
        kind = pa.timestamp("us", tz="UTC")
        if self.strand.is_of_log:
            return pa.nulls(len(page), kind)
        if isinstance(page, Irregular):
            return pa.array([ms * 1000 if ms <= LAST_MS else None for ms, _, _ in page.entries], kind)
        return pa.array(page.ms * 1000, pa.int64(), mask=page.ms > LAST_MS).cast(kind)

    def _id(self, page: Page) -> pa.Array:
        if isinstance(page, Irregular):
            users = [self.strand.user((ms, seq)) for ms, seq, _ in page.entries]
            return pa.array([ids.text(user).decode() for user in users], pa.string())
        if not self.strand.has_generated_ids:
            return page.ids().cast(pa.string())
        if not len(page):
            return pa.array([], pa.string())
        return pc.binary_join_element_wise(page.moments().cast(pa.string()), self._sequences(page), "-")

    def _sequences(self, page: Regular) -> pa.Array:
        """The users' sequences, in digits. They are small and repeat, so each is formatted once."""
        most = int(page.seq.max())
        if most >= len(page):
            return pa.array(ids.user_seq(page.seq, self.strand.writer)).cast(pa.string())
        written = pa.array(ids.user_seq(np.arange(most + 1), self.strand.writer)).cast(pa.string())
        return written.take(pa.array(page.seq))

    def _fields(self, page: Page) -> pa.Array:
        kind = self.arrow.field("fields" if self._plain else "_fields").type
        if isinstance(page, Irregular):
            show = shown if pa.types.is_string(kind.item_type) else bytes
            pairs = [
                [(name_text(name), show(value)) for name, value in fields.items()]
                for *_, fields in page.entries
            ]
            return pa.array(pairs, kind)
        if not len(page):
            return pa.array([], kind)
        offsets = pa.array(np.arange(0, len(page) + 1, dtype=np.int32) * np.int32(len(page.names)))
        values = as_text(page.values()) if pa.types.is_string(kind.item_type) else page.values()
        return pa.MapArray.from_arrays(offsets, self._keys(page), values, type=kind)

    def _keys(self, page: Regular) -> pa.Array:
        """The field names, repeated for each entry. Cached: pages of one strand mostly have the same."""
        wanted = len(page) * len(page.names)
        if self._made_keys[0] != page.names or len(self._made_keys[1]) < wanted:
            names = pa.array([name_text(name) for name in page.names], pa.string())
            order = np.arange(wanted, dtype=np.int32) % np.int32(len(page.names))
            self._made_keys = page.names, names.take(pa.array(order))
        return self._made_keys[1][:wanted]

    def _corrupt(self, page: Page, faults: "_Faults") -> pa.Array:
        if not faults.any:
            return pa.nulls(len(page), pa.string())
        return pa.array(
            [self._text(page, at) if bad else None for at, bad in enumerate(faults.bad)], pa.string()
        )

    def _text(self, page: Page, at: int) -> str:
        """An entry as text."""
        fields: Iterable[tuple[bytes, bytes]]
        if isinstance(page, Irregular):
            fields = page.entries[at][2].items()
        else:
            fields = [(name, page.column(name)[at].as_py()) for name in page.names]
        return json.dumps({shown(name): shown(value) for name, value in fields})

    def _complaint(self, page: Page, faults: "_Faults") -> str:
        at = int(np.argmax(faults.bad))
        entry = self._id(page)[at].as_py()
        return (
            f"stream {self._name}, entry {entry}: {self._text(page, at)[:500]} does not fit the schema. "
            "Set mode to PERMISSIVE or DROPMALFORMED to continue, or correct the schema."
        )


class _Faults:
    """Which entries of a page are malformed."""

    def __init__(self, rows: int) -> None:
        self.rows, self.any = rows, False

    @cached_property
    def bad(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return np.zeros(self.rows, bool)

    def add(self, which: Any) -> None:
        if which.any():
            self.any = True
            np.logical_or(self.bad, which, out=self.bad)


def shown(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")


def as_text(values: pa.Array) -> pa.Array:
    """Bytes as text; those that are not UTF-8 appear as \\xNN."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if each is None else shown(each) for each in values.to_pylist()], pa.string())


def _cast(values: pa.Array, kind: pa.DataType, faults: _Faults) -> pa.Array:
    """Cast to the type of a column: the whole page at once, or value by value if one does not fit."""
    if pa.types.is_binary(kind):
        return values
    try:
        texts = values.cast(pa.string())
        return texts if pa.types.is_string(kind) else _whole(texts, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    made = [_one(value, kind) for value in values.to_pylist()]
    faults.add(
        np.array(
            [value is not None and one is None for value, one in zip(values.to_pylist(), made, strict=True)]
        )
    )
    return pa.array(made, kind)


def _whole(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(texts)
    if pa.types.is_decimal(kind):
        _check_places(trimmed)
    if pa.types.is_integer(kind) and pc.any(pc.match_substring(trimmed, "x", ignore_case=True)).as_py():
        raise pa.ArrowInvalid("a hexadecimal number, which Spark does not read")
    if pa.types.is_timestamp(kind):
        trimmed = pc.replace_substring_regex(trimmed, r"(\.\d{6})\d+", r"\1")  # as Spark: microseconds
    if pa.types.is_timestamp(kind) and kind.tz is not None and _naive(trimmed):
        trimmed = trimmed.cast(pa.timestamp("us"))
    made = trimmed.cast(kind)
    if pa.types.is_temporal(kind):
        _check_years(made)
    return made


def _check_places(texts: pa.Array) -> None:
    """Arrow reads beyond a table, and may crash, if a text has many more than 38 decimal places."""
    if pc.any(pc.invert(pc.match_substring_regex(texts, _DECIMAL))).as_py():
        raise pa.ArrowInvalid("too many decimal places, or not a number")


def _check_years(times: pa.Array) -> None:
    """Arrow parses the year 0, and a time zone may lead out of the year 1 or 9999. Spark has neither."""
    ends = (date.min, date.max) if pa.types.is_date(times.type) else (_FIRST_TIME, _LAST_TIME)
    low, high = (pa.scalar(each, times.type) for each in ends)
    if pc.any(pc.or_(pc.less(times, low), pc.greater(times, high))).as_py():
        raise pa.ArrowInvalid("a year before 1 or after 9999")


def _naive(texts: pa.Array) -> bool:
    return not pc.any(pc.match_substring_regex(texts, r"(Z|[+-]\d\d:?\d\d|:\d\d(\.\d+)?[+-]\d\d)$")).as_py()


def _one(value: bytes | None, kind: pa.DataType) -> Any:
    """One value, or None if it does not fit."""
    if value is None:
        return None
    try:
        text = pa.array([value], pa.binary()).cast(pa.string())
        return text[0].as_py() if pa.types.is_string(kind) else _whole(text, kind)[0].as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


# ----------------------------------------------------------------------------------------------------
#
# Entries as a lake has them: nothing is lost, and a column sorts like the IDs.
#
# id, region, timestamp      the columns of the source
# position  16 bytes, the user ID as two big-endian numbers: sorts like IDs, also in Parquet's statistics
# place     the strand of an entry: s1, c1.2, p
# fields    list of (name, value) as the entry has them: repeated names and their order are kept. A name
# that is
#           not UTF-8 is "base64:..."

PAIR: Final = pa.struct([pa.field("name", pa.string(), False), pa.field("value", pa.binary(), False)])
ENTRIES: Final = pa.schema(
    [
        pa.field("id", pa.string(), False),
        pa.field("position", pa.binary(), False),
        pa.field("region", pa.int32()),
        pa.field("place", pa.string(), False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("fields", pa.list_(pa.field("element", PAIR, False)), False),
    ]
)


def position(entry: Id) -> bytes:
    return entry[0].to_bytes(8) + entry[1].to_bytes(8)


def entry_of(where: bytes) -> Id:
    return int.from_bytes(where[:8]), int.from_bytes(where[8:])


def split(positions: bytes) -> list[bytes]:
    """Split concatenated positions."""
    return [positions[at : at + 16] for at in range(0, len(positions), 16)]


class LakeRows(Rows):
    """Pages of a strand as rows of the lake."""

    def __init__(self, strand: Strand) -> None:
        super().__init__(Shape(META, "PERMISSIVE", "_corrupt_record"), strand)

    def batch(self, page: Page) -> pa.RecordBatch:
        place = pa.repeat(pa.scalar(place_text(self.strand), pa.string()), len(page))
        columns = [self._id(page), self._position(page), self._region(page), place, self._timestamp(page)]
        return pa.RecordBatch.from_arrays([*columns, self._pairs(page)], schema=ENTRIES)

    def _position(self, page: Page) -> pa.Array:
        if isinstance(page, Irregular):
            users = (self.strand.user((ms, seq)) for ms, seq, _ in page.entries)
            return pa.array([position(user) for user in users], pa.binary())
        pair = np.empty((len(page), 2), ">u8")
        pair[:, 0] = page.ms
        pair[:, 1] = ids.user_seq(page.seq, self.strand.writer) if self.strand.has_generated_ids else page.seq
        return pa.Array.from_buffers(pa.binary(16), len(page), [None, pa.py_buffer(pair.tobytes())]).cast(
            pa.binary()
        )

    def _pairs(self, page: Page) -> pa.Array:
        """The fields as they are, also repeated ones."""
        if isinstance(page, Irregular):
            each = [page.pairs(at) for at in range(len(page))]
            flat = [pair for pairs in each for pair in pairs]
            names = pa.array([name_text(name) for name, _ in flat], pa.string())
            values = pa.array([value for _, value in flat], pa.binary())
            offsets = np.cumsum([0, *map(len, each)], dtype=np.int32)
        else:
            names, values = self._keys(page), page.values()
            offsets = np.arange(0, len(page) + 1, dtype=np.int32) * np.int32(len(page.names))
        pairs = pa.StructArray.from_arrays([names, values], fields=list(PAIR))
        return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=ENTRIES.field("fields").type)


class StoredRows(Rows):
    """Converts batches of a lake to rows, by columns. A batch may have typed columns instead of `fields`."""

    def __init__(self, shape: Shape, strand: Strand, typed: Mapping[bytes, str]) -> None:
        """strand: any of the stream. typed: the columns of fields, by the names of the fields."""
        super().__init__(shape, strand)
        self._typed = typed

    def _id(self, page: Any) -> pa.Array:
        return page.column("id")

    def _region(self, page: Any) -> pa.Array:
        return page.column("region")

    def _timestamp(self, page: Any) -> pa.Array:
        return page.column("timestamp")

    def _offset(self, page: Any) -> pa.Array:
        if not self.strand.is_of_log:
            return pa.nulls(len(page), pa.int64())
        return pa.array([entry_of(each)[1] for each in page.column("position").to_pylist()], pa.int64())

    def _fields(self, page: Any) -> pa.Array:
        kind = self.arrow.field("fields" if self._plain else "_fields").type
        made = as_map(page.column("fields"))
        if pa.types.is_string(kind.item_type):
            made = pa.MapArray.from_arrays(made.offsets, made.keys, as_text(made.items))
        return made.cast(kind)

    def _values(self, page: Any, name: bytes) -> pa.Array:
        """A typed column if the batch has it, else the last value of a field."""
        column = self._typed.get(name)
        if column in page.schema.names:
            return page.column(column)
        fields = page.column("fields")
        pairs = pa.MapArray.from_arrays(fields.offsets, fields.values.field(0), fields.values.field(1))
        return pc.map_lookup(pairs, pa.scalar(name_text(name), pa.string()), "last")

    def _text(self, page: Any, at: int) -> str:
        if "fields" not in page.schema.names:  # they fit
            return "a null in a column that is NOT NULL"
        pairs = page.column("fields")[at].as_py()
        return json.dumps({shown(name_of_text(each["name"])): shown(each["value"]) for each in pairs})


def as_map(fields: pa.ListArray) -> pa.MapArray:
    """Fields as a map. Of a repeated field the last value counts, at the place of the first."""
    pairs, lengths = fields.flatten(), fields.value_lengths().to_numpy(zero_copy_only=False)
    names, values = pairs.field(0), pairs.field(1)
    codes = names.dictionary_encode()
    which = codes.indices.to_numpy(zero_copy_only=False)
    if not _are_alike(which, lengths):
        places = np.repeat(np.arange(len(fields)), lengths) * len(codes.dictionary) + which
        unique, first = np.unique(places, return_index=True)
        if len(unique) < len(places):
            last = len(places) - 1 - np.unique(places[::-1], return_index=True)[1]
            order = np.argsort(first)
            names, values = names.take(pa.array(first[order])), values.take(pa.array(last[order]))
            lengths = np.bincount(unique // len(codes.dictionary), minlength=len(fields))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def _are_alike(which: Any, lengths: Any) -> bool:
    """Whether all entries have the same fields, each once: then nothing needs to be sorted."""
    if not len(which) or (lengths != lengths[0]).any():
        return False
    rows = which.reshape(-1, lengths[0])
    return bool((rows == rows[0]).all()) and len(set(rows[0].tolist())) == len(rows[0])

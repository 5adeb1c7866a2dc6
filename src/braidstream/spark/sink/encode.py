"""Encodes rows as XADD commands, a whole record batch at once.

    *7 $4 XADD $14 bs:1:s:{orders} $1 * $5 order $1 7 $6 amount $5 12.50
    `- header: from the number of fields -'       `- body: the pairs, joined -'

Each column is a field; a null leaves it out. Or one map column has all fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    NullType,
    StringType,
    StructType,
    VariantType,
)

from braidstream.errors import OptionError, SinkError
from braidstream.model.frontier import name_of_text
from braidstream.model.registry import ENTRY, TAG
from braidstream.plan.append import LOG_ROW_WORDS, ROW_WORDS, log_row_start, row_start
from braidstream.spark.options import SinkOptions
from braidstream.spark.source.rows import LOG_META, META

_NESTED: Final = (ArrayType, MapType, StructType, NullType, VariantType)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column has the stream's name, which columns are fields. mapped: the map column, if there is
    one. is_log: the columns are tag and entry."""

    stream: bytes | None
    stream_column: str | None
    mapped: str | None
    columns: tuple[str, ...]
    is_log: bool = False

    @staticmethod
    def of(schema: StructType, options: SinkOptions) -> "Layout":
        names = schema.names
        if options.is_log:
            return _log_layout(schema, options)
        column = options.stream_column if options.stream is None else None
        if column is not None and column not in names:
            raise OptionError(
                "stream", f"missing, and there is no column {column} that would name the stream"
            )
        if column is not None and not isinstance(schema[column].dataType, StringType):
            raise OptionError("streamColumn", f"column {column} must be a string")
        mapped = options.fields_column
        if mapped in names and isinstance(schema[mapped].dataType, MapType):
            _check_map(schema[mapped].dataType, mapped)
            others = set(names) - {mapped, options.stream_column} - set(META.names)
            if others:
                raise OptionError(
                    "fieldsColumn", f"column {mapped} has the fields, so {sorted(others)} must go"
                )
            return Layout(options.stream, column, mapped, ())
        fields = tuple(name for name in names if name != column)
        for name in fields:
            if isinstance(schema[name].dataType, _NESTED):
                raise SinkError(f"column {name}: a field is a text or bytes. Write it as to_json({name}).")
        if not fields:
            raise SinkError("there is no column that would be a field: an entry needs one at least")
        return Layout(options.stream, column, None, fields)


def _log_layout(schema: StructType, options: SinkOptions) -> Layout:
    wanted = ("tag", "entry")
    for name in wanted:
        if name not in schema.names or isinstance(schema[name].dataType, _NESTED):
            raise OptionError("log", f"needs a column {name}, a text or bytes")
    others = set(schema.names) - {*wanted, *LOG_META.names}
    if others:
        raise OptionError("log", f"an entry of a log has a tag and an entry, so {sorted(others)} must go")
    return Layout(options.stream, None, None, wanted, is_log=True)


def _check_map(kind: Any, column: str) -> None:
    if not all(isinstance(each, StringType | BinaryType) for each in (kind.keyType, kind.valueType)):
        raise OptionError(
            "fieldsColumn", f"column {column} must be a map of string or binary to string or binary"
        )


def by_stream(layout: Layout, batch: pa.RecordBatch) -> Iterator[tuple[bytes, pa.RecordBatch]]:
    """The rows of each stream, in their order."""
    if layout.stream_column is None:
        assert layout.stream is not None
        yield layout.stream, batch
        return
    names = batch.column(layout.stream_column)
    if names.null_count:
        raise SinkError(f"column {layout.stream_column} is null in a row: no stream to write to")
    distinct = names.unique()
    for name in distinct:
        yield (
            name_of_text(name.as_py()),
            batch if len(distinct) == 1 else batch.filter(pc.equal(names, name)),
        )


def commands(layout: Layout, key: bytes, batch: pa.RecordBatch) -> pa.BinaryArray:
    """One XADD for each row, as the engine reads it."""
    if layout.is_log:
        return _log_commands(key, batch)
    bodies, counts = _mapped(batch.column(layout.mapped)) if layout.mapped else _columns(layout, batch)
    if len(counts) and int(counts.min()) == 0:
        raise SinkError("a row has no field that is not null: an entry needs one at least")
    words = pa.array(ROW_WORDS + 2 * counts).cast(pa.string()).cast(pa.binary())
    return _join(b"*", words, b"\r\n" + row_start(key), bodies)


def _log_commands(key: bytes, batch: pa.RecordBatch) -> pa.BinaryArray:
    values = [as_bytes(batch.column(name)) for name in ("tag", "entry")]
    if any(each.null_count for each in values):
        raise SinkError("a row has no tag or no entry: a log needs both")
    pairs = [_pair(name, b"%d" % len(name), each) for name, each in zip((TAG, ENTRY), values, strict=True)]
    return _join(b"*%d\r\n" % (LOG_ROW_WORDS + 4) + log_row_start(key), *pairs)


def _join(*parts: Any) -> pa.BinaryArray:
    typed = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*typed, pa.scalar(b"", pa.binary()))


def _pair(name: Any, name_length: Any, values: pa.Array) -> pa.BinaryArray:
    lengths = pc.binary_length(values).cast(pa.string()).cast(pa.binary())
    return _join(b"$", name_length, b"\r\n", name, b"\r\n$", lengths, b"\r\n", values, b"\r\n")


def _columns(layout: Layout, batch: pa.RecordBatch) -> tuple[pa.BinaryArray, Any]:
    pairs, counts = list[pa.Array](), np.zeros(batch.num_rows, np.int64)
    for column in layout.columns:
        values, name = as_bytes(batch.column(column)), column.encode()
        pair = _pair(name, b"%d" % len(name), values)
        if values.null_count:
            pair = pc.fill_null(pair, pa.scalar(b"", pa.binary()))
            counts += values.is_valid().to_numpy(zero_copy_only=False)
        else:
            counts += 1
        pairs.append(pair)
    return _join(*pairs) if len(pairs) > 1 else pairs[0], counts


def _mapped(column: pa.MapArray) -> tuple[pa.BinaryArray, Any]:
    """Encode a map column. Its pairs are contiguous, so a row's body is a slice of them."""
    if column.null_count:
        raise SinkError("the map of fields is null in a row: an entry needs one field at least")
    offsets = column.offsets.to_numpy()
    keys = column.keys.slice(offsets[0], offsets[-1] - offsets[0])
    items = as_bytes(column.items.slice(offsets[0], offsets[-1] - offsets[0]))
    names = keys.cast(pa.binary())
    pairs = _pair(names, pc.binary_length(names).cast(pa.string()).cast(pa.binary()), items)
    valid = items.is_valid().to_numpy(zero_copy_only=False)
    pairs = pc.fill_null(pairs, pa.scalar(b"", pa.binary()))
    starts = np.frombuffer(pairs.buffers()[1], np.int32)[pairs.offset : pairs.offset + len(pairs) + 1]
    bounds = offsets - offsets[0]
    body_offsets = np.ascontiguousarray(starts[bounds]) if len(pairs) else np.zeros(len(bounds), np.int32)
    data = pairs.buffers()[2] or pa.py_buffer(b"")
    bodies = pa.BinaryArray.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(body_offsets), data])
    sums = np.concatenate([[0], np.cumsum(valid)])
    return bodies, sums[bounds[1:]] - sums[bounds[:-1]]


def as_bytes(values: pa.Array) -> pa.Array:
    """The value of a field: bytes unchanged, everything else as text."""
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return values.cast(pa.binary())
    if pa.types.is_timestamp(values.type):
        # Spark passes a timestamp in the session's zone; a timestamp_ntz has none and stays unchanged.
        zone, end = ("UTC", "Z") if values.type.tz else (None, "")
        values = pc.strftime(values.cast(pa.timestamp("us", zone)), format="%Y-%m-%dT%H:%M:%S" + end)
    return values.cast(pa.string()).cast(pa.binary())


def chunks(commands: pa.BinaryArray, rows: int, size: int) -> Iterator[tuple[bytes, int]]:
    """The commands in chunks of limited rows and about limited bytes: (bytes, rows)."""
    offsets = np.frombuffer(commands.buffers()[1], np.int32)[
        commands.offset : commands.offset + len(commands) + 1
    ]
    data, at = commands.buffers()[2], 0
    while at < len(commands):
        stop = min(at + rows, len(commands))
        fits = int(np.searchsorted(offsets, int(offsets[at]) + size, side="right")) - 1
        stop = max(at + 1, min(stop, fits))
        yield data[int(offsets[at]) : int(offsets[stop])].to_pybytes(), stop - at
        at = stop

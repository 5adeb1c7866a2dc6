"""Entries as a lake has them: nothing is lost, and a column sorts like the IDs.

id, region, timestamp      the columns of the source
position  16 bytes, the user ID as two big-endian numbers: sorts like IDs, also in Parquet's statistics
place     the strand of an entry: s1, c1.2, p
fields    list of (name, value) as the entry has them: repeated names and their order are kept. A name that is
          not UTF-8 is "base64:..."
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from braidstream.model import ids
from braidstream.model.frontier import name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.spark.source.columns import Irregular, Page
from braidstream.spark.source.rows import META, Rows, Shape

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

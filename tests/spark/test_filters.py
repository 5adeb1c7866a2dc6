"""Filters that Spark pushes down narrow what is read from the engine, and never too far."""

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from braidstream.model import ids
from braidstream.model.strand import Strand
from braidstream.spark.source.filters import Bounds, narrow
from braidstream.spark.source.rows import META, Shape

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MS = 1_767_225_600_000
OWN = StructType().add("n", "integer").add("stream", "string")
OWN = OWN.add("_timestamp", "timestamp").add("_region", "integer")


@pytest.mark.parametrize(
    ("pushed", "bounds"),
    [
        ([GreaterThan(("timestamp",), MOMENT)], Bounds(low_ms=MS)),
        ([GreaterThanOrEqual(("timestamp",), MOMENT.replace(tzinfo=None))], Bounds(low_ms=MS)),
        ([LessThan(("timestamp",), MOMENT), LessThanOrEqual(("timestamp",), MOMENT)], Bounds(high_ms=MS)),
        ([EqualTo(("id",), f"{MS}-7")], Bounds(low_ms=MS, high_ms=MS)),
        ([EqualTo(("id",), "no ID")], Bounds()),
        ([EqualTo(("region",), 2)], Bounds(regions=frozenset([2]))),
        ([In(("region",), [1, 2]), In(("region",), [2, 3])], Bounds(regions=frozenset([2]))),
        ([In(("stream",), ["a", "b"])], Bounds(streams=frozenset(["a", "b"]))),
        ([Not(EqualTo(("stream",), "a")), StringStartsWith(("id",), "1")], Bounds()),
        ([EqualTo(("fields", "n"), "1")], Bounds()),
    ],
)
def test_a_filter_becomes_bounds(pushed: list[Filter], bounds: Bounds) -> None:
    assert narrow(pushed, Shape.of(META, "PERMISSIVE", "")) == bounds


def test_with_a_schema_of_the_users_only_columns_of_our_own_are_bounds() -> None:
    pushed: list[Filter] = [
        EqualTo(("stream",), "a field of that name"),
        GreaterThan(("_timestamp",), MOMENT),
        EqualTo(("_region",), 2),
    ]
    wanted = Bounds(low_ms=MS, regions=frozenset([2]))
    assert narrow(pushed, Shape.of(OWN, "PERMISSIVE", "")) == wanted


def test_bounds_leave_out_strands_and_cut_ranges() -> None:
    ours, theirs, plain = (
        Strand(b"orders", "s", 1),
        Strand(b"orders", "s", 2),
        Strand(b"orders", "p", 0),
    )
    everything = (ids.ZERO, (2 * MS, 0))
    assert Bounds(regions=frozenset([2])).narrow(ours, *everything) is None
    assert Bounds(regions=frozenset([2])).narrow(plain, *everything) is None
    assert Bounds(streams=frozenset(["other"])).narrow(theirs, *everything) is None
    low, high = Bounds(low_ms=MS, high_ms=MS).narrow(theirs, *everything) or pytest.fail("nothing is left")
    assert low < (MS, 0) <= (MS, ids.MAX) <= high
    assert Bounds(low_ms=MS).narrow(theirs, ids.ZERO, (MS - 1, 0)) is None

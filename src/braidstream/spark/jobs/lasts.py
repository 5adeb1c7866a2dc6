"""Which entries a log compaction removes: pure functions on frames.

    id    1      2      3      4      5      6
    key   a      b      a      b      -      a
    value 1      1      2      none   x      3        4 is a tombstone: b was deleted

    1, 3  superseded: a has a later entry. Entries that arrive later do not change that.
    2     superseded by the tombstone.
    4     removed after a grace time, once no entry of b is before it: else that one would be the last.
    5     has no key: kept. 6 is the last of its key: kept.

A copy that is not free (copies.py) is *held* for a later round.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

SUPERSEDED, TOMBSTONE, HELD = "superseded", "tombstone", "held"


def key_of(field: str, sql: str) -> Column:
    """The key of an entry: one of its fields, or an SQL expression on the columns of the source."""
    return f.expr(sql) if sql else f.col("fields")[field]


def is_tombstone(field: str, sql: str) -> Column:
    """By an SQL condition; without one, where the key is a field: the entry has no other field."""
    if sql:
        return f.coalesce(f.expr(sql), f.lit(False))
    return f.size("fields") == 1 if field else f.lit(False)


def keyed(copies: DataFrame, key: Column, tombstone: Column) -> DataFrame:
    """The columns for a verdict. at: sorts in the order of the stream, and by strand for entries with the
    same chosen ID."""
    region = f.coalesce("region", f.lit(0)).alias("region")
    at = f.struct("position", region, "place").alias("at")
    return copies.select("stream", "path", at, key.alias("key"), tombstone.alias("tombstone"), "free")


def verdicts(copies: DataFrame, settled: bytes) -> DataFrame:
    """stream, path, place, position, verdict of each copy that is removed or held.

    settled: remove tombstones before this position. A tombstone is held as long as an entry before it is.
    """
    # `stays`: the first copy of a key that is not free.
    lasts = (
        copies.where("key is not null")
        .groupBy("stream", "key")
        .agg(f.max("at").alias("last"), f.min(f.when(~f.col("free"), f.col("at"))).alias("stays"))
    )
    at, last = f.col("at"), f.col("last")
    is_old = (at == last) & f.col("tombstone") & (f.col("at.position") < f.lit(settled))
    is_alone = f.coalesce(f.col("stays") >= last, f.lit(True))
    verdict = (
        f.when((at < last) & f.col("free"), SUPERSEDED)
        .when(at < last, HELD)
        .when(is_old & f.col("free") & is_alone, TOMBSTONE)
        .when(is_old, HELD)
    )
    joined = copies.join(lasts, ["stream", "key"]).withColumn("verdict", verdict)
    return joined.where("verdict is not null").select("stream", "path", "at.place", "at.position", "verdict")

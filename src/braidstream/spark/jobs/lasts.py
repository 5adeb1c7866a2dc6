"""Which entries a log compaction takes away: pure functions from frame to frame.

    id    1      2      3      4      5      6
    key   a      b      a      b      -      a
    value 1      1      2      none   x      3        4 is a tombstone: it says that b is gone

    1, 3  superseded: a has a later entry. That stays true whatever arrives later, from whichever region.
    2     superseded by the tombstone.
    4     goes after a grace time, once nothing of b is before it: else the older entry would come back.
    5     has no key, so it stays. 6 is the last of its key: it stays.

Where a copy is not free (copies.py), it is *held* for another time.
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
    """What a verdict needs of each copy. `at`: in the order of the stream; one strand's before another's
    where users chose the same ID twice."""
    region = f.coalesce("region", f.lit(0)).alias("region")
    at = f.struct("position", region, "place").alias("at")
    return copies.select("stream", "path", at, key.alias("key"), tombstone.alias("tombstone"), "free")


def verdicts(copies: DataFrame, settled: bytes) -> DataFrame:
    """stream, path, place, position, verdict of each copy that goes or is held.

    settled: tombstones before this position go. A key's tombstone is held as long as anything before it is.
    """
    # A copy that is not free stays for now, wherever it is: what is before the last of them is not all gone.
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

"""Writes the classes of Spark that a JVM loads at its start to a file that later JVMs map into memory.

Tests start dozens of JVMs; with the file each needs about half the CPU until its first job ("class data
sharing"). A JVM that cannot use it, because it is another Java or Spark, starts without it.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
CLASSES: Final = ROOT / ".venv" / "spark-classes.jsa"
# Every JVM that a test starts ends soon: compiling more would cost more time than it saves.
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
OPTIONS: Final = f"{SHORT_LIVED} -XX:SharedArchiveFile={CLASSES} -Xlog:cds=off -Xlog:cds+dynamic=off"


def write() -> None:
    """Run a query, a Python worker and a stream, so that their classes are among them."""
    os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={CLASSES} -Xlog:cds=off"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession  # noqa: PLC0415  # after the options of its JVM are set

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.range(10).groupBy("id").count().collect()
    spark.range(10).rdd.map(lambda row: row.id).collect()
    with tempfile.TemporaryDirectory() as folder:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
        writer = source.writeStream.format("memory").queryName("rows").option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()
    jvm = spark.sparkContext._gateway.proc  # type: ignore[attr-defined]  # the only name of that process
    spark.stop()
    jvm.stdin.close()  # it ends, and writes the file
    jvm.wait(timeout=120)


if __name__ == "__main__":
    write()

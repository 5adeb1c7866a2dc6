"""A Spark application that copies a stream, as a process of its own that tests kill.

Reads lines of JSON: {"urls": [...], "checkpoint": ..., "shuffled": ...}. For each it runs the query until
nothing is left, and says `done`, or `failed` and why.
"""

import json
import os
import sys
from typing import Any

import redis
from pyspark.sql import SparkSession
from pyspark.sql.functions import rand

from tests.support.killing import CONTROL, KillingSource


def session() -> SparkSession:
    made = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    made.dataSource.register(KillingSource)
    return made


def copy(spark: SparkSession, job: dict[str, Any]) -> None:
    servers = {"url": job["urls"][0], "fallbackUrls": ",".join(job["urls"][1:])}
    frame = (
        spark.readStream.format("killing")
        .options(**servers, streams="in", maxEntriesPerTrigger="25", minPartitions="2")
        .load()
        .select("fields")
    )
    if job["shuffled"]:
        frame = frame.repartition(3, rand())
    writer = frame.writeStream.format("killing").options(**servers, stream="out", rowsPerStep="4")
    query = writer.option("checkpointLocation", job["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()


def main() -> None:
    spark = session()
    with redis.Redis.from_url(os.environ[CONTROL]) as control:
        jvm: Any = spark._jvm
        control.mset({"pid:driver": os.getpid(), "pid:jvm": jvm.java.lang.ProcessHandle.current().pid()})
    for line in sys.stdin:
        try:
            copy(spark, json.loads(line))
            print("done", flush=True)
        except Exception as error:
            print("failed", str(error).replace("\n", " ")[-2000:], flush=True)


if __name__ == "__main__":
    main()

"""A declarative pipeline: the stream `orders` becomes a table, and large orders go to another stream.

Run it with: spark-pipelines run --spec spark-pipeline.yml
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

URL = os.environ.get("BRAID_URL", "redis://localhost:6379/0")
spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    return (
        spark.readStream.format("braidstream")
        .schema("order long, amount double")
        .option("url", URL)
        .option("streams", "orders")
        .load()
    )


dp.create_sink("large_orders", "braidstream", {"url": URL, "stream": "large-orders"})


@dp.append_flow(target="large_orders", name="to_large_orders")
def to_large_orders() -> DataFrame:
    return spark.readStream.table("orders").where("amount > 10")

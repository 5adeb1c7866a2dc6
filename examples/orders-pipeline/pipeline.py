"""Two streaming queries over the orders of all regions: python pipeline.py FOLDER URL [OTHER URL...]

    orders ---> with the customer's country ---> revenue of ten minutes, by country ---> stream `revenue`
           `--> 990 and more -----------------------------------------------------> stream `alerts`

Each row is written once, also if this program is killed in the middle and runs again, or goes on in another
region: name that region first then. FOLDER keeps the checkpoints. It ends when it has read all orders;
without `availableNow` it would run for ever.
"""

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, sum, window

PLACE = Path(__file__).parent
ORDER = "order long, customer string, amount double, at timestamp"


def read_orders(spark: SparkSession, servers: dict[str, str]) -> DataFrame:
    return spark.readStream.format("braidstream").schema(ORDER).options(**servers, streams="orders").load()


def revenue(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """An order may be an hour late. After that its ten minutes are closed, and written."""
    return (
        orders.withWatermark("at", "1 hour")
        .join(customers, "customer")
        .groupBy(window("at", "10 minutes"), "country")
        .agg(count("*").alias("orders"), sum("amount").alias("amount"))
        .select(col("window.start").alias("from"), "country", "orders", "amount")
    )


def alerts(orders: DataFrame) -> DataFrame:
    return orders.where("amount >= 990").select("order", "customer", "amount")


def main(folder: str, url: str, others: list[str]) -> None:
    spark = SparkSession.builder.appName("orders").getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    spark.conf.set("spark.sql.shuffle.partitions", 4)  # the default, 200, is for clusters
    servers = {"url": url, "fallbackUrls": ",".join(others)}
    orders = read_orders(spark, servers)
    customers = spark.read.csv(str(PLACE / "customers.csv"), header=True)
    queries = [
        rows.writeStream.format("braidstream")
        .options(**servers, stream=stream, checkpointLocation=f"{folder}/{stream}")
        .trigger(availableNow=True)
        .start()
        for stream, rows in (("revenue", revenue(orders, customers)), ("alerts", alerts(orders)))
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])

"""stats: the same as a plain Python count of the entries."""

import json
from collections import Counter
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.jobs.stats import bucket_of
from braidstream.spark.options import Servers
from tests.support.regions import become, client_of
from tests.support.servers import Engine


def test_buckets_are_round_and_about_sixty() -> None:
    assert [bucket_of(0, span) for span in (0, 60, 3600, 86_400, 10**9)] == [1, 1, 60, 3600, 604_800]


def test_stats_of_lake_and_stream_are_those_of_a_plain_count(
    spark: SparkSession, engine: Engine, tmp_path: Path
) -> None:
    dice, lake = Random(5), str(tmp_path / "lake")
    become(engine, id_mode="liberal")
    sizes, keys, hours = 0, Counter[str](), Counter[int]()
    with client_of(engine) as client:
        for n in range(200):
            hour, tag = n // 8, dice.choice("abc")
            fields = {"tag": tag, "body": "x" * dice.randrange(50)}
            client.xadd("orders", fields, id=f"{hour * 3_600_000 + n}-1")
            sizes += sum(len(name) + len(value) for name, value in fields.items())
            keys[tag] += 1
            hours[hour] += 1
        client.xgroup_create("orders", "bills", "0")
        archiver = Archiver(None, Archive(lake, Servers((engine.url,), {}), (b"orders",), max_entries=120))
        archiver.round()
        archiver.close()
    png, page = tmp_path / "stats.png", tmp_path / "stats.html"
    words = [
        "spark",
        "stats",
        "--url",
        engine.url,
        "--lake",
        lake,
        "--streams",
        "orders",
        "--key",
        "tag",
        "--json",
    ]
    told = CliRunner().invoke(app, [*words, "--png", str(png), "--html", str(page)])
    assert told.exit_code == 0, told.output
    seen = json.loads(told.stdout)
    assert [(row["entries"], row["bytes"], row["region"]) for row in seen["streams"]] == [(200, sizes, 1)]
    assert {row["name"]: row["entries"] for row in seen["keys"]} == keys
    assert {row["name"]: row["entries"] for row in seen["fields"]} == {"tag": 200, "body": 200}
    assert [row["entries"] for row in seen["series"]] == list(hours.values())
    assert seen["lag"] == [{"stream": "orders", "group": "bills", "lag": 200, "pending": 0}]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "bills" in page.read_text()

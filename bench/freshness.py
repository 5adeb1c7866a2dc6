"""`python -m bench.freshness`: how long it takes from XADD until DuckDB can read the entry in its table.

    producer, 5,000 XADD a second -> region -> braid spark archive --follow --table -> delta_scan, in a loop

The reader asks DuckDB for the entries after the last one it saw. The time of an entry is from its ID, which
the engine gave it, to the end of the query that returned it. At the end the table must have every entry once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from multiprocessing import Process
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from duckdb_extensions import import_extension
from rich.console import Console
from rich.table import Table

from tests.support.regions import become, client_of
from tests.support.servers import Engine

RESULTS = Path(__file__).parent / "results" / "freshness.json"
SCHEMA = "order long, amount double, customer string, placed timestamp"
BATCH_S = 0.02


def produce(engine: Engine, rate: int, seconds: float) -> None:
    """So many XADD a second, evenly, by an application's client."""
    with client_of(engine) as client:
        began, sent = time.time(), 0
        while sent < rate * seconds:
            due = min(int((time.time() - began) * rate), int(rate * seconds))
            pipe = client.pipeline(transaction=False)
            for n in range(sent, due):
                fields = {"order": n, "amount": f"{n % 1000}.25", "customer": f"c{n % 5000}"}
                pipe.xadd("orders", {**fields, "placed": "2026-11-16T12:00:00Z"})
            pipe.execute()
            sent = due
            time.sleep(BATCH_S)


class Reader:
    """What DuckDB has seen. ages: milliseconds from XADD to readable, of each entry."""

    def __init__(self, table: str) -> None:
        import_extension("delta")
        self.session = duckdb.connect()
        self.session.execute("SET TimeZone = 'UTC'")
        self.table, self.last = table, b""
        self.ages, self.queries = list[Any](), list[float]()

    def look(self) -> int:
        began = time.time()
        found = self.session.execute(
            f"SELECT epoch_ms(timestamp) AS ms, position FROM delta_scan('{self.table}') WHERE position > ?",
            [self.last],
        ).fetchnumpy()
        now = time.time()
        self.queries.append(now - began)
        if len(found["ms"]):
            self.ages.append(now * 1000 - found["ms"].astype(np.int64))
            self.last = max(found["position"])
        return len(found["ms"])


def measure(rate: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, Engine() as engine:
        become(engine)
        with client_of(engine) as client:
            client.xgroup_create("orders", "readers", mkstream=True)
            client.xadd("orders", {"order": -1})
        table = f"{folder}/orders"
        words = ["spark", "archive", "--url", engine.url, "--table", table, "--schema", SCHEMA, "--follow"]
        follower = subprocess.Popen([sys.executable, "-m", "braidstream.cli.main", *words])
        try:
            while not Path(table, "_braid").exists():
                time.sleep(0.1)
                assert follower.poll() is None
            reader = Reader(table)
            reader.look()
            reader.ages.clear()
            producer = Process(target=produce, args=(engine, rate, seconds))
            producer.start()
            seen, deadline = 0, time.time() + seconds + 60
            while seen < int(rate * seconds):
                assert time.time() < deadline, f"only {seen} entries were readable"
                seen += reader.look()
            producer.join()
        finally:
            follower.terminate()
            follower.wait(60)
        assert follower.returncode == 0
        counted = 'SELECT count(*), count(DISTINCT id), count("order"), count(_rescued)'
        [counts] = reader.session.sql(f"{counted} FROM delta_scan('{table}')").fetchall()
        assert counts == (seen + 1, seen + 1, seen + 1, 0), counts
        files = len(list(Path(table).glob("day=*/*.parquet")))
    ages = np.concatenate(reader.ages) / 1000
    p50, p99 = (round(float(each), 2) for each in np.percentile(ages, [50, 99]))
    return {
        "entries": seen,
        "rate": rate,
        "p50_s": p50,
        "p99_s": p99,
        "max_s": round(float(ages.max()), 2),
        "query_s": round(float(np.median(reader.queries)), 3),
        "files_on_disk": files,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=60)
    given = parser.parse_args()
    found = measure(given.rate, given.seconds)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    table = Table(*found, title="from XADD to readable in DuckDB")
    table.add_row(*map(str, found.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

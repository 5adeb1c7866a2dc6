"""examples/orders-pipeline, the whole of it, with fewer orders."""

import importlib.util
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "orders-pipeline"
COUNT = 900


def _made() -> list[dict[str, str]]:
    found = importlib.util.spec_from_file_location("produce", FOLDER / "produce.py")
    assert found is not None
    assert found.loader is not None
    produce = importlib.util.module_from_spec(found)
    found.loader.exec_module(produce)
    orders: list[dict[str, str]] = produce.orders(COUNT)
    return orders


@pytest.mark.nightly("In CI: the jobs that it runs, each in a file of its own")
@pytest.mark.timeout(900)
def test_the_pipeline_runs_from_nothing(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", str(FOLDER / "run.sh"), str(COUNT), str(tmp_path)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    orders = _made()
    times = [datetime.fromisoformat(order["at"]) for order in orders]
    closed = [
        order
        for order, at in zip(orders, times, strict=True)
        if at - timedelta(minutes=at.minute % 10, seconds=at.second, microseconds=at.microsecond)
        <= max(times) - timedelta(hours=1, minutes=10)
    ]
    amount = sum(float(order["amount"]) for order in closed)
    alerts = len([order for order in orders if float(order["amount"]) >= 990])
    for region in (1, 2):
        [line] = [each for each in done.stdout.splitlines() if each.startswith(f"region {region}: ")]
        assert f"sums of {len(closed)} orders, {amount:,.2f}; {alerts} alerts of {alerts} orders" in line
    total = sum(float(order["amount"]) for order in orders)
    by_country = done.stdout.split("by DuckDB\n")[1].splitlines()[:4]
    assert sum(float(line.split()[-1].replace(",", "")) for line in by_country) == pytest.approx(total)
    assert (tmp_path / "revenue.png").read_bytes().startswith(b"\x89PNG")

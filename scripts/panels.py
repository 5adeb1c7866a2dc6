"""Draw panels of the dashboard from real data, for docs/guides/monitoring.md. `make panels`: three minutes.

It starts two regions and a Prometheus that scrapes them, writes and reads, pauses the second region's server
for a while, asks Prometheus for the panels' expressions, and draws the answers: docs/drawings/panel-*.svg.
"""

import json
import os
import signal
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import redis

from tests.deploy.test_prometheus import DEPLOY, prometheus
from tests.support.matrix import installed
from tests.support.servers import NEWEST
from tests.support.up import Up, braid_up

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "drawings"
# Panels in the docs: what one looks at first in a bad night.
SHOWN: Final = {
    "Links up": "panel-links.svg",
    "Entries that peers lack": "panel-lag.svg",
    "Lag of consumer groups": "panel-groups.svg",
    "Gateway latency": "panel-latency.svg",
}
SECONDS: Final = 150
PAUSE: Final = (50.0, 85.0)
COLOURS: Final = ("#1f6feb", "#d9480f", "#2b8a3e", "#9c36b5", "#e8590c", "#0b7285")


def main(seconds: int = SECONDS) -> None:
    with tempfile.TemporaryDirectory() as folder, braid_up(2, installed(NEWEST[0])) as up:
        targets = [*up.metrics.values(), *up.gateway_metrics.values()]
        with prometheus(Path(folder), targets) as where:
            began = time.time()
            _work(up, seconds)
            for panel in json.loads((DEPLOY / "grafana" / "braidstream.json").read_text())["panels"]:
                if panel["title"] in SHOWN:
                    _draw(panel, where, began, FOLDER / SHOWN[panel["title"]])


def _work(up: Up, seconds: int) -> None:
    """Writers in both regions, a slow consumer, and a server that is paused for a while."""
    stop = threading.Event()
    with up.client(1) as client:
        client.xgroup_create("orders", "billing", "0", mkstream=True)
    threads = [threading.Thread(target=_write, args=(up.gateways[number], stop)) for number in (1, 2)]
    threads.append(threading.Thread(target=_read, args=(up.gateways[1], stop)))
    for thread in threads:
        thread.start()
    engine = up.children("-server")[1]
    began = time.monotonic()
    for at, number in zip(PAUSE, (signal.SIGSTOP, signal.SIGCONT), strict=True):
        stop.wait(max(0.0, began + at * seconds / SECONDS - time.monotonic()))
        os.kill(engine, number)
    stop.wait(max(0.0, began + seconds - time.monotonic()))
    stop.set()
    for thread in threads:
        thread.join()


def _write(gateway: str, stop: threading.Event) -> None:
    client = redis.Redis.from_url(f"redis://{gateway}", socket_timeout=60)
    while not stop.wait(0.02):
        try:
            client.xadd("orders", {"order": 7, "amount": 15})
        except redis.RedisError:
            stop.wait(1)


def _read(gateway: str, stop: threading.Event) -> None:
    """It starts after a third of the time, and then catches up."""
    client, began = redis.Redis.from_url(f"redis://{gateway}", socket_timeout=60), time.monotonic()
    while not stop.wait(0.05):
        count = 1 if time.monotonic() - began < SECONDS / 3 else 20
        for _, entries in client.xreadgroup("billing", "c1", {"orders": ">"}, count=count):
            client.xack("orders", "billing", *(entry for entry, _ in entries))


def _range(where: str, expr: str, began: float) -> list[Any]:
    given = expr.replace("$__rate_interval", "15s").replace("$region", ".*")
    words = {"query": given, "start": began, "end": time.time(), "step": 1}
    url = f"http://{where}/api/v1/query_range?{urllib.parse.urlencode(words)}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        return list(json.load(reply)["data"]["result"])


def _draw(panel: Any, where: str, began: float, path: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "braidstream"
    figure, axes = plt.subplots(figsize=(7.2, 2.6), layout="constrained")
    lines = 0
    for target in panel["targets"]:
        for series in _range(where, target["expr"], began):
            points = [(float(at) - began, float(value)) for at, value in series["values"] if value != "NaN"]
            if not points:
                continue
            label = target["legendFormat"]
            for name, value in series["metric"].items():
                label = label.replace("{{" + name + "}}", value)
            axes.plot(*zip(*points, strict=True), label=label, color=COLOURS[lines % len(COLOURS)], lw=1.6)
            lines += 1
    assert lines, panel["title"]
    axes.set_title(panel["title"], loc="left", fontsize=11)
    axes.set_xlabel("seconds", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, color="#dddddd", lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(f"{path.name}: {lines} lines")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)

"""The dashboard and the alert rules in deploy/, against a real Prometheus that scrapes two regions.

Debian's package `prometheus` (installed by make setup) brings prometheus and promtool.
"""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from tests.support.cli import BRAID
from tests.support.matrix import installed
from tests.support.servers import NEWEST, free_port
from tests.support.up import Up, braid_up
from tests.support.waiting import eventually

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
WITHIN_S = 90

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no Debian package prometheus here: run make setup"
)


def test_the_rules_are_valid_and_fire_when_they_should() -> None:
    for words in (["check", "rules", str(RULES)], ["test", "rules", str(RULES.with_name("alerts_test.yml"))]):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, cwd=RULES.parent)
        assert done.returncode == 0, done.stdout + done.stderr


def panels() -> list[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "braidstream.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def rules() -> list[str]:
    """Each rule's expression without the comparison at its end: what it looks at must exist."""
    found = yaml.safe_load(RULES.read_text())
    return [re.sub(r"\s*(==|>|<)\s*[0-9.]+\s*$", "", rule["expr"]) for rule in found["groups"][0]["rules"]]


@contextmanager
def prometheus(folder: Path, targets: list[str]) -> Iterator[str]:
    config = folder / "prometheus.yml"
    jobs = f'[{{"job_name": "braidstream", "static_configs": [{{"targets": {json.dumps(targets)}}}]}}]'
    every = "{scrape_interval: 1s, evaluation_interval: 1s}"
    config.write_text(f"global: {every}\nrule_files: ['{RULES}']\nscrape_configs: {jobs}\n")
    where = f"127.0.0.1:{free_port()}"
    words = [
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={where}",
    ]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
    try:
        yield where
    finally:
        process.terminate()
        process.wait(20)


@contextmanager
def archive(up: Up, folder: Path) -> Iterator[str]:
    """An archive that follows, and where its metrics are."""
    where = f"127.0.0.1:{free_port()}"
    words = ["spark", "archive", "--url", up.urls[1], "--pattern", "*", "--lake", str(folder / "lake")]
    process = subprocess.Popen([*BRAID, *words, "--follow", "--metrics", where])
    try:
        yield where
    finally:
        process.terminate()
        process.wait(60)


def query(where: str, expr: str) -> list[Any]:
    given = expr.replace("$__rate_interval", "1m").replace("$region", ".*")
    url = f"http://{where}/api/v1/query?{urllib.parse.urlencode({'query': given})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return list(json.load(reply)["data"]["result"])
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{given}: {error.read().decode()}") from None
    except OSError:
        return []


def work(up: Up) -> None:
    """Something of everything: entries, groups, errors."""
    for region in (1, 2):
        host, port = up.gateways[region].split(":")
        with redis.Redis(host, int(port)) as client:
            for number in range(50):
                client.xadd("orders", {"n": number})
            with_group = client.xinfo_stream("orders")["groups"]
            if not with_group:
                client.xgroup_create("orders", "billing", "0")
            client.xreadgroup("billing", "c", {"orders": ">"}, count=3)
            client.get("plain")
            with pytest.raises(redis.ResponseError):
                client.xadd("orders", {"n": 1}, id="5-5")


def test_every_panel_and_every_rule_has_data_in_a_running_prometheus(tmp_path: Path) -> None:
    with braid_up(2, installed(NEWEST[0])) as up, archive(up, tmp_path) as lake_metrics:
        targets = [*up.metrics.values(), *up.gateway_metrics.values(), lake_metrics]
        with prometheus(tmp_path, targets) as where:
            wanted = [*panels(), *rules()]
            assert len(wanted) > 20

            def missing() -> list[str]:
                work(up)
                return [expr for expr in wanted if not query(where, expr)]

            eventually(lambda: not missing(), within_s=WITHIN_S, why="each expression returns data")
            assert missing() == []
            up_now = query(where, 'sum(up{job="braidstream"})')
            assert float(up_now[0]["value"][1]) == 5

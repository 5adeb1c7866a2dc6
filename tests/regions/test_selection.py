"""`include` and `exclude` in braid.toml: streams that regions exchange, and streams that stay local."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

import braidstream
from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WITHIN_S = 30


def write(path: Path, urls: dict[int, str], **patterns: str) -> Path:
    """patterns: further lines of region 1 and region 2, `one` and `two`."""
    lines = list[str]()
    for (number, url), word in zip(urls.items(), ("one", "two", "three"), strict=False):
        lines += ["[[region]]", f"id = {number}", f'name = "region-{number}"', f'url = "{url}"']
        lines.append(patterns.get(word, ""))
    path.write_text("\n".join([*lines, ""]))
    return path


def lengths(clients: list[braidstream.Redis], name: str) -> list[int]:
    return [client.xlen(name) for client in clients]


def lags(config: Path) -> list[int | None]:
    links = json.loads(braid("status", "--config", str(config), "--json").stdout)["links"]
    return [link["lag_entries"] for link in links]


def test_only_streams_that_both_regions_exchange_are_replicated_and_the_file_may_change(
    flavour: Flavour, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        urls = numbered(engines)
        config = write(tmp_path / "braid.toml", urls, one='exclude = ["*.tmp"]', two='include = ["orders*"]')
        clients = [
            stack.enter_context(braidstream.Redis.from_url(engine.url, decode_responses=True))
            for engine in engines
        ]
        for number in (1, 2):
            stack.enter_context(Daemon(config, number)).tells("daemon.ready")
        for name in ("orders", "orders.tmp", "payments"):
            for client in clients:
                client.xadd(name, {"n": "1"})
        eventually(lambda: lengths(clients, "orders") == [2, 2], within_s=WITHIN_S, why="both exchange it")
        clients[0].xadd("orders", {"n": "2"})
        eventually(lambda: lengths(clients, "orders") == [3, 3], within_s=WITHIN_S, why="both exchange it")
        assert lengths(clients, "orders.tmp") == lengths(clients, "payments") == [1, 1]

        eventually(lambda: lags(config) == [0, 0], within_s=WITHIN_S, why="what stays local is not a lag")
        shown = braid("status", "--config", str(config))
        assert "region-1 exchanges all streams, without *.tmp. Its other streams stay local." in shown.stdout
        assert "region-2 exchanges only orders*." in shown.stdout
        facts = json.loads(braid("status", "--config", str(config), "--json").stdout)
        assert [(each["include"], each["exclude"]) for each in facts["regions"]] == [
            ([], ["*.tmp"]),
            (["orders*"], []),
        ]

        write(config, urls, one='exclude = ["*.tmp"]')
        eventually(
            lambda: lengths(clients, "payments") == [2, 2], within_s=WITHIN_S, why="it is exchanged now"
        )
        write(config, urls, one='exclude = ["*.tmp", "orders"]')
        clients[1].xadd("payments", {"n": "2"})
        eventually(lambda: lengths(clients, "payments") == [3, 3], within_s=WITHIN_S, why="it goes on")

        def stays_local() -> bool:
            """Once the daemons have read the file."""
            before = clients[1].xlen("orders")
            clients[0].xadd("orders", {"n": "local"})
            clients[0].xadd("payments", {"n": "next"})
            eventually(
                lambda: clients[0].xlen("payments") == clients[1].xlen("payments"),
                within_s=WITHIN_S,
                why="later entries of the other stream arrive",
            )
            return clients[1].xlen("orders") == before

        eventually(stays_local, within_s=WITHIN_S, why="orders should stay local")
        clients[0].pexpire("orders", 1)
        eventually(
            lambda: not clients[0].exists("orders"), within_s=WITHIN_S, why="copies of region 2 end here too"
        )
        assert clients[1].exists("orders")


def test_a_region_that_joins_or_rejoins_gets_no_local_streams(flavour: Flavour, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        config = write(tmp_path / "braid.toml", numbered(engines[:1]), one='exclude = ["secret*"]')
        one, two = (
            stack.enter_context(braidstream.Redis.from_url(engine.url, decode_responses=True))
            for engine in engines
        )
        for name in ("orders", "payments", "secret"):
            one.xadd(name, {"n": "1"})
        add = (
            "region",
            "add",
            "--config",
            str(config),
            "--id",
            "2",
            "--name",
            "new",
            "--url",
            engines[1].url,
        )
        done = braid(*add, "--exclude", "pay*", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["streams"] == 1
        assert [two.exists(name) for name in ("orders", "payments", "secret")] == [1, 0, 0]
        assert 'exclude = ["pay*"]' in config.read_text()
        again = json.loads(braid(*add, "--json").stdout)  # with the patterns of the file
        assert again["streams"] == 1

        with engines[1].client() as bare:
            bare.flushall()
        done = braid("region", "rejoin", "new", "--config", str(config), "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert [two.exists(name) for name in ("orders", "payments", "secret")] == [1, 0, 0]


def test_a_log_does_not_move_to_a_region_that_does_not_exchange_it(flavour: Flavour, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        config = write(tmp_path / "braid.toml", numbered(engines), two='include = ["orders"]')
        with braidstream.Redis.from_url(engines[0].url) as client:
            client.twrite("ledger", entries=[("t", "1")])
        done = braid("log", "move", "ledger", "--to", "region-2", "--config", str(config))
        assert done.returncode == 1
        assert "log ledger stays local in region-2" in " ".join((done.stdout + done.stderr).split())

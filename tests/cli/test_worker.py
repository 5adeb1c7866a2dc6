"""`braid worker` runs consumers in processes: probes, signals, crashes, changed files."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import braidstream
from braidstream.consumers.process import find
from braidstream.errors import ConfigError
from tests.support.matrix import on_the_newest
from tests.support.servers import Engine, free_port
from tests.support.waiting import eventually

flavour = on_the_newest
WITHIN_S = 60

SHOP = """
import os
import time
import braidstream, braidstream.asyncio

r = braidstream.from_url(os.environ["REDIS_URL"], decode_responses=True)
later = braidstream.asyncio.from_url(os.environ["REDIS_URL"])
billing = braidstream.Consumer(r, "orders", group="billing", concurrency=1, prefetch=0, claim_after=1)
mail = braidstream.asyncio.Consumer(later, "orders", group="mail")

@billing.handler
def charge(message):
    r.xadd("begun", {"order": message["order"]})
    time.sleep(0.3)
    r.xadd("charged", {"order": message["order"], "process": os.getpid(), "version": 1})

@mail.handler
async def send(message):
    await later.xadd("sent", {"order": message["order"]})
"""


@contextmanager
def working(folder: Path, engine: Engine, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "braidstream.cli.main", "worker", *words]
    env = {**os.environ, "REDIS_URL": engine.url}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=env, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.communicate(timeout=WITHIN_S)
            finally:
                process.kill()


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=20) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""


def orders(region: braidstream.Redis, stream: str) -> list[str]:
    return sorted(fields["order"] for _, fields in region.xrange(stream))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


def test_processes_share_the_work_answer_probes_and_finish_what_they_have(
    folder: Path, engine: Engine, region: braidstream.Redis
) -> None:
    port = free_port()
    with working(folder, engine, "shop", "--processes", "2", "--metrics", f"127.0.0.1:{port}") as process:
        eventually(lambda: page(port, "readyz") == (200, "ready\n"), within_s=WITHIN_S, why="both join")
        assert page(port, "healthz")[0] == 200
        for order in range(4):
            region.xadd("orders", {"order": order})
        eventually(lambda: orders(region, "charged") == list("0123"), within_s=WITHIN_S, why="all charged")
        handled = 'braid_consumer_entries_total{group="billing",outcome="handled",stream="orders"} 4'
        eventually(lambda: handled in page(port, "metrics")[1], within_s=WITHIN_S, why="both are counted")
        assert "\nbraid_worker_processes 2\n" in page(port, "metrics")[1]
        for order in (4, 5):
            region.xadd("orders", {"order": order})
        eventually(lambda: len(orders(region, "begun")) == 6, within_s=WITHIN_S, why="both are begun")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=WITHIN_S)[1]
    assert process.returncode == 0, said
    assert len({fields["process"] for _, fields in region.xrange("charged")}) == 2
    assert orders(region, "charged") == orders(region, "sent") == list("012345")
    groups = {each["name"]: (each["pending"], each["consumers"]) for each in region.xinfo_groups("orders")}
    assert groups == {"billing": (0, 0), "mail": (0, 0)}


def test_a_process_that_is_killed_is_started_again_and_nothing_is_lost(
    folder: Path, engine: Engine, region: braidstream.Redis
) -> None:
    port = free_port()
    words = ("shop:billing", "--processes", "2", "--metrics", f"127.0.0.1:{port}")
    with working(folder, engine, *words) as process:
        for order in range(8):
            region.xadd("orders", {"order": order})
        eventually(lambda: orders(region, "charged"), within_s=WITHIN_S, why="work begins")
        eventually(lambda: page(port, "readyz")[0] == 200, within_s=WITHIN_S, why="both join")
        victim = region.xrange("charged")[0][1]["process"]
        os.kill(int(victim), signal.SIGKILL)
        eventually(
            lambda: set(orders(region, "charged")) == set("01234567"), within_s=WITHIN_S, why="all charged"
        )
        eventually(
            lambda: (
                page(port, "readyz")[0] == 200
                and "\nbraid_worker_restarts_total 1\n" in page(port, "metrics")[1]
            ),
            within_s=WITHIN_S,
            why="the process should be back",
        )
        process.terminate()
        said = process.communicate(timeout=WITHIN_S)[1]
    assert "worker.died" in said
    assert "killed by SIGKILL" in said
    assert region.xpending("orders", "billing")["pending"] == 0


def test_a_changed_file_starts_the_processes_again(
    folder: Path, engine: Engine, region: braidstream.Redis
) -> None:
    def versions() -> set[str]:
        region.xadd("orders", {"order": 1})
        return {fields["version"] for _, fields in region.xrange("charged")}

    with working(folder, engine, "shop:billing", "--reload"):
        eventually(lambda: versions() == {"1"}, within_s=WITHIN_S, why="the worker should start")
        (folder / "shop.py").write_text("not python")
        (folder / "shop.py").write_text(SHOP.replace('"version": 1', '"version": 2'))
        eventually(lambda: "2" in versions(), within_s=WITHIN_S, why="the new file should be used")


WRONG = {
    "no module": (["nosuch:billing"], 2, "error No module named 'nosuch'"),
    "an error of the module": (["broken"], 1, "ZeroDivisionError"),
    "one name for all": (["named", "--processes", "2"], 2, "each process needs another one"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_run_is_said_in_one_sentence(folder: Path, engine: Engine, name: str) -> None:
    words, code, text = WRONG[name]
    (folder / "broken.py").write_text("1 / 0\n")
    named = SHOP.replace('group="mail"', 'group="mail", name="mailer"')
    (folder / "named.py").write_text(named)
    with working(folder, engine, *words) as process:
        said = process.communicate(timeout=WITHIN_S)[1]
    assert process.returncode == code
    assert text in said
    assert ("Traceback" in said) == (code == 1)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("wrong_shop:orders", "wrong_shop has no consumer 'orders'. It has: billing, mail."),
        ("json", "json: no consumer there. Name one: shop.workers:consumer"),
    ],
)
def test_a_target_without_a_consumer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, text: str
) -> None:
    (tmp_path / "wrong_shop.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("REDIS_URL", "redis://localhost")
    with pytest.raises(ConfigError) as raised:
        find([target])
    assert str(raised.value) == text

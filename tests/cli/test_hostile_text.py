"""Whoever writes a stream, or runs a peer's server, chooses text that operators see. A terminal obeys it."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import braidstream
from braidstream.consumers.dead_letters import DeadLetter
from braidstream.observability.events import emit
from tests.support.cli import braid
from tests.support.daemons import write_config
from tests.support.matrix import on_the_newest
from tests.support.proxy import Proxy
from tests.support.regions import become, client_of
from tests.support.servers import Engine

flavour = on_the_newest

# Sets the title, clears the screen, begins a line that looks like a log's, and is no markup of rich.
EVIL = "\x1b]0;PWN\x07\x1b[2J\r\n2026-01-01T00:00:00Z ERROR region.lost \x9b[/x]"


def invisible(text: str) -> set[str]:
    return {each for each in text if not each.isprintable()} - {"\n"}


@pytest.fixture
def region(engine: Engine) -> Iterator[braidstream.Redis]:
    become(engine, name="region-1", id_mode="liberal")
    with client_of(engine) as client:
        yield client


@pytest.fixture
def config(engine: Engine, region: braidstream.Redis, tmp_path: Path) -> Path:
    """A region whose names and entries are hostile."""
    trace = f"Traceback\n{EVIL}"
    letter = DeadLetter("orders", EVIL, EVIL, EVIL, 1, f"ValueError: {EVIL}", (EVIL.encode(),) * 2, trace)
    region.execute_command("XADD", "orders.dead", "5-1", *letter.to_words())
    region.xadd("orders", {EVIL: EVIL})
    region.xadd(EVIL, {"n": "1"})
    for name in ("orders", EVIL):
        region.xgroup_create(name, EVIL, "0")
    region.execute_command("TWRITE", "ledger", EVIL, EVIL)
    region.hset(f"bs:meta:{{damaged{EVIL}}}", EVIL, EVIL)
    with engine.client() as native:
        native.xadd(f"native{EVIL}", {EVIL: EVIL})
    return write_config(tmp_path / "braid.toml", {1: engine.url})


VERBS = (
    "streams",
    "groups",
    "group scope once --streams * --group {evil}",
    "tail orders --no-follow",
    "dead list orders.dead",
    "dead show orders.dead 5-1",
    "dead retry orders.dead --all",
    "adopt * --dry-run",
    "status",
    "doctor",
)


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_prints_control_characters_of_others(engine: Engine, config: Path, verb: str) -> None:
    words = [EVIL if word == "{evil}" else word for word in verb.split()]
    done = braid(*words, "--url", engine.url)
    assert "Traceback (most recent call last)" not in done.stderr
    assert done.stdout
    assert invisible(done.stdout + done.stderr) == set()


def test_a_tail_of_a_log_prints_none_either(config: Path) -> None:
    done = braid("log", "tail", "ledger", "--from", "1", "--count", "1", "--config", str(config))
    assert done.stdout.startswith("1  \\x1b]0;PWN")
    assert invisible(done.stdout) == set()


def test_the_error_of_a_server_cannot_write_to_the_terminal(engine: Engine, config: Path) -> None:
    with Proxy(engine.port) as proxy:
        proxy.answer(b"bs:config", b"-ERR \x1b]0;PWN\x07\xc2\x9b no\r\n")
        for verb in ("streams", "status", "doctor"):
            done = braid(verb, "--url", proxy.url)
            assert "\\x1b]0;PWN" in done.stdout + done.stderr, verb
            assert invisible(done.stdout + done.stderr) == set(), verb


def test_the_report_of_a_daemon_cannot_either(engine: Engine, region: braidstream.Redis) -> None:
    """Who writes bs:status is a daemon, or a peer region, whose user may write all of bs:*."""
    [seconds, _] = region.time()
    link = {"state": EVIL, "since_ms": 1, "refusal": EVIL, "lag_entries": 4, "lag_ms": 4}
    told = {"at_ms": seconds * 1000, "started_ms": 1, "host": EVIL, "pid": 1, "version": EVIL}
    told |= {"durability": EVIL, "held_ms": 99_999, "held_why": EVIL, "file_error": EVIL}
    told |= {"functions_changed": EVIL, "links": {EVIL: link}}
    with engine.client() as peer:
        peer.hset("bs:status", "daemon", json.dumps(told))
    for verb in ("status", "doctor"):
        done = braid(verb, "--url", engine.url)
        assert "Traceback" not in done.stderr
        assert "PWN" in done.stdout or verb == "doctor"
        assert invisible(done.stdout + done.stderr) == set()


def test_a_traceback_in_the_log_cannot_look_like_an_event(caplog: pytest.LogCaptureFixture) -> None:
    emit("consumer.failed", stream="orders", why="ValueError", traceback=f"Traceback:\nValueError: {EVIL}")
    [record] = caplog.records
    first, *others = record.getMessage().splitlines()
    assert record.levelno == logging.WARNING
    assert first == "consumer.failed stream=orders why=ValueError"
    assert [line[:4].strip() for line in others] == [""] * 3
    assert invisible(record.getMessage()) == set()

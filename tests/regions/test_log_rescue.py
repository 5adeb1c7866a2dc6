"""Daemons rescue what a former home of a log wrote late: nobody types anything, nothing is lost or twice."""

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import braidstream
from braidstream.model.keys import LOG
from braidstream.model.strand import Strand
from braidstream.operations import log_upkeep
from braidstream.replication.log_homes import link_of
from tests.support.cli import braid
from tests.support.daemons import Daemon, all_replicating, numbered, replicating, write_config
from tests.support.forked import braid_process
from tests.support.proxy import Proxy
from tests.support.regions import client_of
from tests.support.replicas import Site, site
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually
from tests.support.world import Here

WITHIN_S = 120
OWN = Strand(b"log", LOG, 1)
ODD = (b"odd-1", b"odd-2", b"odd-3")


def rows_of(client: braidstream.Redis) -> list[Any]:
    rows = list[Any]()
    while page := client.tread("log", len(rows) + 1, 10_000):
        rows += page
    return rows


def bodies_of(client: braidstream.Redis) -> list[str]:
    return [row[2] for row in rows_of(client)]


def are_alike(*clients: braidstream.Redis) -> bool:
    one, *others = map(rows_of, clients)
    return all(each == one for each in others)


def entries_of_1(engine: Engine) -> list[str]:
    """What the strand of region 1 has there, also what is not part of the log."""
    with engine.client() as client:
        return [fields[b"e"].decode() for _, fields in client.xrange(OWN.key)]


def count_of_1(engine: Engine) -> int:
    with engine.client() as client:
        return int(client.xlen(OWN.key))


def write(client: braidstream.Redis, *entries: str) -> list[int]:
    return list(client.twrite("log", entries=[("t", entry) for entry in entries]))


def force(client: braidstream.Redis, to: int) -> int:
    epoch = log_upkeep.home_of(client.run_plan(log_upkeep.read_log(b"log")))
    return client.run_plan(log_upkeep.end_epoch(b"log", epoch, to, force=True))


def is_rescued(client: braidstream.Redis, offset: int) -> bool:
    """Whether that of region 1 was appended again."""
    return client.run_plan(log_upkeep.read_moved(b"log")).is_rescued(OWN, offset)


def wait_for(whole: list[str], *clients: braidstream.Redis) -> None:
    for client in clients:
        eventually(partial(has, whole, client), within_s=WITHIN_S, why="all is there once")


def has(whole: list[str], client: braidstream.Redis) -> bool:
    return bodies_of(client) == whole


@dataclass
class CutOff:
    """Three regions with daemons. While the line is cut, nobody but clients reaches region 1."""

    engines: list[Engine]
    clients: list[braidstream.Redis]
    daemons: list[Daemon]
    line: Proxy
    config: Path

    def cut(self) -> None:
        self.line.cut_off()


@pytest.fixture
def regions(flavour: Flavour, tmp_path: Path) -> Iterator[CutOff]:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(3)]
        line = stack.enter_context(Proxy(engines[0].port))
        daemons = stack.enter_context(all_replicating(tmp_path, {**numbered(engines), 1: line.url}))
        clients = [stack.enter_context(client_of(each, decode_responses=True)) for each in engines]
        write(clients[0], "1", "2")
        eventually(lambda: are_alike(*clients), within_s=WITHIN_S, why="the links should work")
        yield CutOff(engines, clients, daemons, line, tmp_path / "braid.toml")


@pytest.mark.nightly("In CI: kills at each step, test_log_kills.py")
def test_all_is_there_once_after_a_forced_move_under_traffic(regions: CutOff) -> None:
    """Two daemons of the old home are killed again and again, and an operator types the same."""
    one, two, _ = regions.clients
    stop, told, refused = threading.Event(), {1: dict[str, int](), 2: dict[str, int]()}, list[str]()

    def write_on(number: int, client: braidstream.Redis) -> None:
        at = 0
        while not stop.wait(0.005):
            names = [f"{number}.{at}.{each}" for each in range(100 if number == 1 else 2)]
            at += 1
            try:
                told[number].update(zip(names, write(client, *names), strict=True))
            except redis.ResponseError as error:
                refused.append(str(error))
                return

    regions.cut()
    with ExitStack() as stack:
        writers = [threading.Thread(target=write_on, args=each) for each in ((1, one), (2, two))]
        stack.callback(stop.set)
        writers[0].start()
        eventually(lambda: len(told[1]) > 1_000, within_s=WITHIN_S, why="region 1 is written")
        assert force(two, 2) == 3
        writers[1].start()
        eventually(lambda: len(told[1]) > 6_000, within_s=WITHIN_S, why="region 1 is still written")
        daemons = [regions.daemons[0], stack.enter_context(Daemon(regions.config, 1))]
        regions.line.open()
        for upto in (3, 2_000, 5_000):
            eventually(partial(is_rescued, two, upto), within_s=WITHIN_S, why="it is rescued")
            for daemon in daemons:
                daemon.kill()
                daemon.start()
        typed = braid("log", "rescue", "log", "--config", str(regions.config))
        assert typed.returncode == 0, typed.stderr
        stop.set()
        for writer in writers:
            writer.join()
        eventually(lambda: count_of_1(regions.engines[0]) == 2, within_s=WITHIN_S, why="all is rescued")
        lengths = lambda: {client.xlen("log") for client in regions.clients}  # noqa: E731
        eventually(lambda: len(lengths()) == 1, within_s=WITHIN_S, why="all have as many")
        eventually(lambda: are_alike(*regions.clients), within_s=WITHIN_S, why="all regions are alike")
    assert [error[:6] for error in refused] == ["HOME 2"]  # region 1 has learned that it is not the home
    rows = rows_of(two)
    assert None not in rows
    found = {row[2]: row[0] for row in rows}
    assert len(found) == len(rows)
    assert set(found) == {"1", "2", *told[1], *told[2]}
    assert {body: found[body] for body in told[2]} == told[2]


def test_the_log_can_be_moved_back_before_the_rescue(regions: CutOff) -> None:
    one, two, three = regions.clients
    regions.cut()
    write(one, "late 3", "late 4")
    force(two, 2)
    write(two, "3")
    regions.daemons[0].kill()
    regions.line.open()
    moved = braid("log", "move", "log", "--to", "region-1", "--config", str(regions.config))
    assert moved.returncode == 0, moved.stderr
    regions.daemons[0].start()
    wait_for(["1", "2", "3", "late 3", "late 4"], one, two, three)
    assert write(one, "6") == [6]


def test_two_regions_that_made_one_log_apart_are_rescued(flavour: Flavour, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        urls = numbered(engines)
        one, two = (stack.enter_context(client_of(each, decode_responses=True)) for each in engines)
        write(one, "one", "two")
        write(two, "1")
        for name in ODD:
            one.twrite(name, "t", "one")
            two.twrite(name, "t", "1")
            with engines[0].client() as bare:
                bare.xadd(Strand(name, LOG, 1).key, {"no": "entry"}, id="0-2")
        daemon, _ = stack.enter_context(all_replicating(tmp_path, urls))
        wait_for(["1", "one", "two"], one, two)  # odd logs stop no other
        said = lambda: all(f"rescue_refused stream={each.decode()}" in daemon.text for each in ODD)  # noqa: E731
        eventually(said, within_s=WITHIN_S, why="the daemon says which it cannot rescue")


# Failovers


@dataclass
class Deaf:
    """Region 1 wrote late; region 2, or 1, is a site whose replica hears nothing."""

    engine: Engine
    place: Site
    urls: dict[int, str]

    def client(self) -> braidstream.Redis:
        return braidstream.Redis.from_url(self.place.url, decode_responses=True)


@pytest.fixture
def home(flavour: Flavour, tmp_path: Path) -> Iterator[Deaf]:
    """Region 2 is the home by force, and its replica and region 1 have heard of that."""
    with Engine(flavour) as engine, site(flavour, second=True) as place:
        deaf = Deaf(engine, place, numbered([engine, place]))
        with client_of(engine, decode_responses=True) as one, deaf.client() as two:
            write(one, "1")
            with replicating(tmp_path, deaf.urls):
                eventually(lambda: rows_of(two), within_s=WITHIN_S, why="the link should work")
            write(one, "late 2", "late 3")
            force(two, 2)
            write(two, "2")
            asyncio.run(_bring(two, one))
            assert two.execute_command("WAIT", 1, 5_000) == 1
        yield deaf


async def _bring(source: braidstream.Redis, target: braidstream.Redis) -> None:
    await (await link_of(Here(source), Here(target))).sync(b"log")


def test_a_failover_of_the_home_loses_nothing_that_was_rescued(home: Deaf, tmp_path: Path) -> None:
    home.place.deafen()
    with replicating(tmp_path, home.urls, 1) as former, replicating(tmp_path, home.urls, 2) as present:
        former.tells("log.rescued stream=log home=2 entries=2", WITHIN_S)
        present.tells("link.held", WITHIN_S)
        assert entries_of_1(home.engine) == ["1", "late 2", "late 3"]
        home.place.fail_over()
        with client_of(home.engine, decode_responses=True) as one, home.client() as two:
            wait_for(["1", "2", "late 2", "late 3"], one, two)


@contextmanager
def held(config: Path, *words: str) -> "Iterator[subprocess.Popen[str]]":
    """`braid log` that waits for replicas."""
    command = ["log", *words, "--config", str(config)]
    with braid_process(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "link.held" in process.stderr.readline()
        yield process


def test_a_typed_rescue_deletes_nothing_that_a_failover_can_lose(home: Deaf, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", home.urls)
    home.place.deafen()
    with held(config, "rescue", "log") as process:
        home.place.fail_over()
        assert process.wait(WITHIN_S) == 1
    assert entries_of_1(home.engine) == ["1", "late 2", "late 3"]
    typed = braid("log", "rescue", "log", "--config", str(config))
    assert typed.returncode == 0, typed.stdout + typed.stderr
    assert entries_of_1(home.engine) == ["1"]
    with home.client() as two:
        assert bodies_of(two) == ["1", "2", "late 2", "late 3"]


def test_a_move_waits_until_a_failover_cannot_lose_it(flavour: Flavour, tmp_path: Path) -> None:
    with site(flavour, second=True) as place, Engine(flavour) as target:
        config = write_config(tmp_path / "braid.toml", numbered([place, target]))
        with (
            braidstream.Redis.from_url(place.url, decode_responses=True) as one,
            client_of(target, decode_responses=True) as two,
        ):
            write(one, "1")
            assert one.execute_command("WAIT", 1, 20_000) == 1
            place.deafen()
            with held(config, "move", "log", "--to", "region-2") as process:
                assert two.exists("log") == 0
                assert write(one, "lost") == [2]  # it is not sealed yet
                place.fail_over()
                assert process.wait(WITHIN_S) == 1
            assert two.exists("log") == 0
            moved = braid("log", "move", "log", "--to", "region-2", "--config", str(config))
            assert moved.returncode == 0, moved.stdout + moved.stderr
            assert write(two, "2") == [2]
            assert bodies_of(two) == ["1", "2"]

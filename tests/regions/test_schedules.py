"""Schedules of braid.toml, sent by the daemons of two regions."""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, numbered, write_config
from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.two_regions import have_heard, separable_regions
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WITHIN_S = 60
TAKEOVER_S = 5


STEP_S = 1


TAKEOVER = f"[groups]\ntakeover_after_s = {TAKEOVER_S}\n"
SCHEDULE = f"""[[schedule]]
name = "tick"
stream = "jobs"
every = "{STEP_S}s"
fields = {{ job = "report" }}
"""


def schedules(config: Path, *, takes_over: bool = True) -> Path:
    config.write_text(config.read_text() + (TAKEOVER if takes_over else "") + SCHEDULE)
    return config


def surplus(client: Any) -> int:
    """How many entries there are beyond one for each due time since 1970: it stays the same."""
    return int(client.xlen("jobs")) - int(time.time()) // STEP_S


def one_for_each(clients: list[Any], wanted: int) -> None:
    """No due time was missed or sent twice. The newest may be on its way."""
    one = clients[0]
    eventually(
        lambda: (
            all(client.xrange("jobs") == one.xrange("jobs") for client in clients)
            and -1 <= surplus(one) - wanted <= 1
        ),
        within_s=WITHIN_S,
        why="each due time should have one entry, everywhere",
    )


def begin(*clients: Any) -> int:
    """A new schedule begins with the last minute. Both regions may send that: it is twice at first."""
    one = clients[0]
    eventually(lambda: one.xlen("jobs") >= 60 / STEP_S, within_s=WITHIN_S, why="it should begin")

    def settled() -> bool:
        before = surplus(one)
        grows(one, 3)
        return all(client.xrange("jobs") == one.xrange("jobs") for client in clients) and (
            surplus(one) == before
        )

    eventually(settled, within_s=WITHIN_S, why="nothing should be there twice any more")
    return surplus(one)


def grows(client: Any, entries: int) -> None:
    before = client.xlen("jobs")
    eventually(lambda: client.xlen("jobs") >= before + entries, within_s=WITHIN_S, why="it should go on")


def test_one_region_sends_and_another_one_while_it_is_lost(flavour: Flavour, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(flavour)) for _ in range(2)]
        config = schedules(write_config(tmp_path / "braid.toml", numbered(engines)))
        daemons = [stack.enter_context(Daemon(config, number)) for number in (1, 2)]
        for daemon in daemons:
            daemon.tells("daemon.ready")
        clients = [stack.enter_context(client_of(each, decode_responses=True)) for each in engines]
        have_heard(engines)
        wanted = begin(*clients)
        one_for_each(clients, wanted)
        daemons[0].kill()
        grows(clients[1], 5)
        daemons[0].start()
        grows(clients[1], 5)
        one_for_each(clients, wanted)


def test_what_both_regions_send_while_they_are_apart_is_there_once(flavour: Flavour, tmp_path: Path) -> None:
    with separable_regions(flavour, tmp_path, TAKEOVER + SCHEDULE) as (clients, between):
        wanted = begin(*clients)
        one_for_each(clients, wanted)
        for proxy in between:
            proxy.cut_off()
        for client in clients:
            grows(client, 10)
        assert clients[0].xrange("jobs") != clients[1].xrange("jobs")
        for proxy in between:
            proxy.open()
        one_for_each(clients, wanted)


def test_a_restart_sends_what_was_due_meanwhile(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as engine, client_of(engine, decode_responses=True) as client:
        become(engine, name="region-1")
        config = schedules(write_config(tmp_path / "braid.toml", {1: engine.url}), takes_over=False)
        with Daemon(config, 1) as daemon:
            wanted = begin(client)
            for _ in range(2):
                grows(client, 1)
                daemon.kill()
                time.sleep(3 * STEP_S)  # due times pass
                daemon.start()
                daemon.tells("daemon.ready")
            one_for_each([client], wanted)


def test_a_schedule_that_is_refused_is_named_and_follows_the_file(flavour: Flavour, tmp_path: Path) -> None:
    with Engine(flavour) as engine, client_of(engine, decode_responses=True) as client:
        become(engine, name="region-1")
        client.twrite("jobs", "tag", "entry")
        config = schedules(write_config(tmp_path / "braid.toml", {1: engine.url}), takes_over=False)
        with Daemon(config, 1) as daemon:
            assert "log" in daemon.tells("schedule.refused schedule=tick stream=jobs")
            config.write_text(config.read_text().replace('"jobs"', '"others"'))
            eventually(lambda: client.exists("others"), within_s=WITHIN_S, why="the file has changed")

"""Entries for later and schedules with a cluster and a server, which take over from each other."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from braidstream.model import ids, keys
from braidstream.operations.later_promotion import find_strands, promote
from braidstream.plan.view import Carriage
from tests.regions import test_schedules as schedules
from tests.regions.test_cluster_regions import clients_of, numbered
from tests.regions.test_later import TAKEOVER, TAKEOVER_S, become_equal, numbers, waits
from tests.support.cluster import Cluster
from tests.support.daemons import IMPATIENT, Daemon, write_config
from tests.support.servers import Engine, Flavour
from tests.support.two_regions import WITHIN_S
from tests.support.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.nightly("In CI: the same with two servers")]


@dataclass
class Lab:
    """Region 1 is a cluster, region 2 a server."""

    cluster: Cluster
    clients: list[Any]
    daemons: dict[int, Daemon]

    def promote(self, number: int, name: str, most: int) -> None:
        """What the daemon of a region does with the entries of region 1, of which nobody hears."""
        client, companion = self.clients[number - 1], b"{%b}.later" % name.encode()
        waiting = [ids.native(entry.encode()) for entry, _ in client.xrange(companion, count=most)]
        [strand] = client.run_plan(find_strands([companion]))[companion]
        due = [(strand, strand.native(entry)) for entry in waiting]
        done = client.converse(lambda view_of: promote(view_of(Carriage.ALONE), name.encode(), due))
        assert all(isinstance(each, bytes) for each in done), done

    def start(self) -> None:
        for daemon in self.daemons.values():
            if not daemon.alive:
                daemon.start()


@pytest.fixture
def lab(flavour: Flavour, cluster: Cluster, tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        server = stack.enter_context(Engine(flavour))
        config = write_config(tmp_path / "braid.toml", numbered(cluster, server))
        config.write_text(config.read_text() + TAKEOVER + schedules.SCHEDULE)
        daemons = {number: stack.enter_context(Daemon(config, number, env=IMPATIENT)) for number in (1, 2)}
        for daemon in daemons.values():
            daemon.tells("daemon.ready")
        clients = stack.enter_context(clients_of(cluster, server))
        for client in clients:
            eventually(
                lambda client=client: client.hlen(keys.BEATS) == 2, within_s=WITHIN_S, why="it should beat"
            )
        yield Lab(cluster, clients, daemons)


def each_once(lab: Lab, name: str, count: int) -> None:
    become_equal(lab.clients, name, count)
    assert Counter(numbers(lab.clients[1], name)) == {str(number): 1 for number in range(count)}


def test_daemons_that_are_killed_promote_each_once(lab: Lab) -> None:
    dice = random.Random(7)
    for number in range(200):
        lab.clients[number % 2].xadd("killed", {"n": str(number)}, delay=2 + number / 50)
    while any(waits(client, "killed") for client in lab.clients):
        time.sleep(dice.uniform(0.1, 0.8))
        daemon = lab.daemons[dice.choice((1, 2))]
        daemon.kill()
        daemon.start()
        daemon.tells("daemon.ready")
    each_once(lab, "killed", 200)


def test_of_a_cancellation_and_a_promotion_exactly_one_happens(lab: Lab) -> None:
    one = lab.clients[0]

    def race(number: int) -> int:
        entry = one.xadd("raced", {"n": str(number)}, delay=0.05)
        time.sleep(random.Random(number).uniform(0, 0.5))
        return int(one.cancel_later("raced", entry))

    with ThreadPoolExecutor(10) as pool:
        cancelled = {str(number): won for number, won in enumerate(pool.map(race, range(100)))}
    become_equal(lab.clients, "raced", 100 - sum(cancelled.values()))
    assert set(numbers(one, "raced")) == {number for number, won in cancelled.items() if not won}


def test_what_both_promote_while_apart_is_there_once(lab: Lab) -> None:
    for number in range(300):
        lab.clients[0].xadd("apart", {"n": str(number)}, delay=30)
    eventually(lambda: waits(lab.clients[1], "apart") == 300, within_s=WITHIN_S, why="they arrive")
    for daemon in lab.daemons.values():
        daemon.kill()
    for number in (1, 2):
        lab.promote(number, "apart", 300)
    lab.start()
    each_once(lab, "apart", 300)


def test_a_lost_cluster_is_taken_over_and_what_it_promoted_unseen_is_there_once(lab: Lab) -> None:
    one, two = lab.clients
    for number in range(50):
        one.xadd("lost", {"n": str(number)}, delay=4)
    eventually(lambda: waits(two, "lost") == 50, within_s=WITHIN_S, why="they arrive")
    lab.daemons[1].kill()
    lab.promote(1, "lost", 20)
    with ExitStack() as stack:
        for node in lab.cluster.nodes:
            stack.enter_context(node.paused())
        eventually(lambda: two.xlen("lost") == 50, within_s=60, why="region 2 takes over")
    lab.start()
    each_once(lab, "lost", 50)


def test_each_due_time_of_a_schedule_has_one_entry(lab: Lab) -> None:
    wanted = schedules.begin(lab.clients[0])
    lab.daemons[1].kill()
    time.sleep(2 * TAKEOVER_S)
    lab.start()
    schedules.one_for_each(lab.clients, wanted)

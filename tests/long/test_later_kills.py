"""Daemons and engines die while entries are promoted, cancelled and removed by a policy.

A round: two threads write entries for later in two regions and cancel some, and a policy removes what a group
has acknowledged, while some of the four processes are killed and come back, some of them after another region
has taken over. In the end each entry is there once, none that was cancelled, none early, and everything that
the group needs. Region 1 is a server of either kind, or a cluster. BRAID_ROUNDS=100 runs more (`make
kill-later`), BRAID_SEED=17 one of them.
"""

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import redis

from braidstream.model import ids, keys
from tests.regions.test_cluster_regions import clients_of, numbered
from tests.support.cluster import Cluster
from tests.support.daemons import IMPATIENT, Daemon, write_config
from tests.support.servers import NEWEST, Engine, Flavour
from tests.support.waiting import eventually

ROUNDS: Final = int(os.environ.get("BRAID_ROUNDS", "3"))
SEED: Final = int(os.environ.get("BRAID_SEED", "0"))
TAKEOVER_S: Final = 5
WITHIN_S: Final = 90
HOUR_MS: Final = 3_600_000
FAILED: Final = (redis.RedisError, redis.RedisClusterException, OSError)
KEPT, DONE = 100, 40
SAFELY: Final = ["--appendonly", "yes", "--appendfsync", "always"]


@dataclass
class Fate:
    """What is known of a waiting entry. due_ms: None if it is not known whether it was written.

    cancelled: 1, 0 (too late), or None if nobody heard the answer; "" if nobody tried.
    """

    region: int
    due_ms: int | None = None
    entry: str = ""
    cancelled: Any = ""


@dataclass
class Lab:
    """Two regions that keep what they were told, and take over from each other."""

    places: list[Engine | Cluster]
    clients: list[Any]
    daemons: dict[int, Daemon]

    def nodes(self, number: int) -> list[Engine]:
        place = self.places[number - 1]
        return place.nodes if isinstance(place, Cluster) else [place]

    def bring_back(self, number: int) -> None:
        for node in self.nodes(number):
            if not node.alive:
                node.restart()
        for daemon in self.daemons.values():
            if not daemon.alive:
                daemon.start()


@dataclass
class Round:
    """orders, kept: its streams."""

    seed: int
    lab: Lab
    fates: dict[str, Fate] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.orders, self.kept = f"orders-{self.seed}", f"kept-{self.seed}"
        self._stop = threading.Event()

    def run(self) -> None:
        self._prepare()
        with clients_of(*2 * self.lab.places) as clients:  # before anything is hurt
            works = [self._write, self._write, self._watch, self._watch]
            threads = [
                threading.Thread(target=work, args=(number, client))
                for work, number, client in zip(works, (1, 2, 1, 2), clients, strict=True)
            ]
            for thread in threads:
                thread.start()
            try:
                self._hurt(Random(f"faults {self.seed}"))
            finally:
                for thread in threads[:2]:
                    thread.join(WITHIN_S)
                self._await_end()
                self._stop.set()
                for thread in threads[2:]:
                    thread.join(WITHIN_S)

    # What is removed by a policy

    def _prepare(self) -> None:
        """Old entries that a group of region 2 has acknowledged in part."""
        one, two = self.lab.clients
        first_ms = round(time.time() * 1000) - 2 * HOUR_MS
        for number in range(KEPT):
            one.xadd(self.kept, {"n": str(number)}, id=str(first_ms + number))
        eventually(lambda: two.xlen(self.kept) == KEPT, within_s=WITHIN_S, why="they arrive")
        two.xgroup_create(self.kept, "g", "0")
        self._acknowledge(DONE)
        one.xadd("braid.retention", {"streams": self.kept, "max-age": "1h", "acked": "1"})

    def _acknowledge(self, entries: int) -> None:
        two = self.lab.clients[1]
        [[_, read]] = two.xreadgroup("g", "c", {self.kept: ">"}, count=entries)
        two.xack(self.kept, "g", *(entry for entry, _ in read))

    def needed(self, client: Any) -> list[int]:
        return [int(fields["n"]) for _, fields in client.xrange(self.kept)]

    def _look_again(self) -> None:
        """Daemons look once a minute, and at once when there is a policy."""
        self.lab.clients[0].xadd("braid.retention", {"streams": "wakes-the-daemons", "max-age": "1d"})

    # What waits

    def _write(self, number: int, client: Any) -> None:
        dice, ends = Random(f"writer {number} {self.seed}"), time.monotonic() + 2.5
        mine = list[str]()
        while time.monotonic() < ends:
            name = f"{number}.{len(mine)}"
            mine.append(name)
            self._add(client, number, name, dice.uniform(0.1, 4.0))
            if dice.random() < 0.4:
                self._cancel(client, self.fates[dice.choice(mine[-40:])])
            time.sleep(dice.uniform(0, 0.02))

    def _add(self, client: Any, number: int, name: str, delay_s: float) -> None:
        fate = self.fates[name] = Fate(number)
        try:
            entry = client.xadd(self.orders, {"n": name}, delay=delay_s)
        except FAILED:
            return
        # `later.delay` is rounded up.
        fate.entry, fate.due_ms = entry, int(entry.partition("-")[0]) + int(1000 * delay_s)

    def _cancel(self, client: Any, fate: Fate) -> None:
        if fate.due_ms is None or fate.cancelled in (1, None):
            return
        try:
            fate.cancelled = client.cancel_later(self.orders, fate.entry)
        except FAILED:
            fate.cancelled = None

    def _watch(self, number: int, client: Any) -> None:
        """What a reader sees before its time."""
        last = "-"
        while not self._stop.wait(0.02):
            try:
                page = client.xrange(self.orders, last, "+")
            except FAILED:
                continue
            now_ms = time.time() * 1000
            for entry, fields in page:
                last = f"({entry}"
                due_ms = self.fates[fields["n"]].due_ms
                if due_ms is not None and now_ms < due_ms:
                    self.early.append(f"{fields['n']} by {due_ms - now_ms:.0f} ms in region {number}")

    # Faults

    def _hurt(self, dice: Random) -> None:
        for _ in range(dice.choice((1, 2, 2, 3))):
            time.sleep(dice.uniform(0.2, 1.2))
            number, what = dice.choice((1, 2)), dice.choice(("daemon", "engine", "both", "daemons"))
            is_long = dice.random() < 0.15
            away_s = dice.uniform(0, 1) if not is_long else TAKEOVER_S + 3
            daemons, nodes = self.lab.daemons, self.lab.nodes(number)
            for daemon in [*daemons.values()] if what == "daemons" else [daemons[number]]:
                if what != "engine":
                    daemon.kill()
                    self.kills["daemon"] += 1
            if what in ("engine", "both"):
                for node in nodes if is_long else [dice.choice(nodes)]:
                    node.kill()
                    self.kills["engine"] += 1
            time.sleep(away_s)
            self.lab.bring_back(number)

    def _await_end(self) -> None:
        self._look_again()
        clients = self.lab.clients

        def is_over() -> bool:
            waiting = [client.xlen(f"{{{self.orders}}}.later") for client in clients]
            one, two = (client.xrange(self.orders) for client in clients)
            kept = [self.needed(client) for client in clients]
            return waiting == [0, 0] and one == two and kept == [[*range(DONE, KEPT)]] * 2

        try:
            eventually(is_over, within_s=WITHIN_S, why="all should be promoted, and what is done removed")
        except AssertionError:
            for client in clients:
                print(client.xlen(self.orders), client.later(self.orders)[:3], self.needed(client)[:3])
            raise

    # The verdict

    def find_wrong(self) -> dict[str, list[str]]:
        rows = [
            (fields["n"], ids.native(entry.encode()))
            for entry, fields in self.lab.clients[0].xrange(self.orders)
        ]
        there, entries = Counter(name for name, _ in rows), dict(rows)
        wrong = defaultdict[str, list[str]](list)
        for name, fate in self.fates.items():
            times = there[name]
            if times > 1:
                wrong["twice"].append(f"{name} {times} times")
            if times == 0 and fate.due_ms is not None and fate.cancelled in ("", 0):
                wrong["lost"].append(f"{name}: {fate}")
            # What a region cancels before it is lost may have appeared in the one that took over.
            if times == 1 and fate.cancelled == 1 and ids.writer_of(entries[name]) == fate.region:
                wrong["cancelled"].append(f"{name}: {fate}")
        wrong["early"] += self.early
        for name, (ms, _) in rows:
            due_ms = self.fates[name].due_ms
            if due_ms is not None and ms < due_ms:
                wrong["early"].append(f"{name} at {ms}, due at {due_ms}")
        return {what: found for what, found in wrong.items() if found}


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Lab]]:
    """By turns: region 1 is a server of one kind, of the other, a cluster."""
    with ExitStack() as stack:
        made = dict[tuple[Flavour, bool], Lab]()

        def lab(turn: int) -> Lab:
            kind = NEWEST[turn % len(NEWEST)], turn % 3 == 2
            if kind not in made:
                made[kind] = stack.enter_context(_open(tmp_path_factory.mktemp("lab"), *kind))
            return made[kind]

        yield lab


@contextmanager
def _open(folder: Path, flavour: Flavour, is_cluster: bool) -> Iterator[Lab]:
    with ExitStack() as stack:
        first = Cluster(flavour, args=SAFELY) if is_cluster else Engine(flavour, args=SAFELY)
        places = [stack.enter_context(first), stack.enter_context(Engine(flavour, args=SAFELY))]
        config = write_config(folder / "braid.toml", numbered(*places))
        config.write_text(f"{config.read_text()}[groups]\ntakeover_after_s = {TAKEOVER_S}\n")
        daemons = {number: stack.enter_context(Daemon(config, number, env=IMPATIENT)) for number in (1, 2)}
        for daemon in daemons.values():
            daemon.tells("daemon.ready")
        clients = stack.enter_context(clients_of(*places))
        for client in clients:
            eventually(
                lambda client=client: client.hlen(keys.BEATS) == 2, within_s=WITHIN_S, why="it should beat"
            )
        yield Lab(places, clients, daemons)


@pytest.mark.nightly("In CI: tests/regions/test_later.py, with some kills")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [SEED] if SEED else range(1, ROUNDS + 1))
def test_each_is_there_once_in_time_and_nothing_goes_that_is_needed(
    labs: Callable[[int], Lab], seed: int
) -> None:
    one_round = Round(seed, labs(seed))
    one_round.run()
    known = [fate for fate in one_round.fates.values() if fate.due_ms is not None]
    cancelled = sum(fate.cancelled == 1 for fate in known)
    print(f"seed {seed}: {len(known)} written, {cancelled} cancelled, kills: {dict(one_round.kills)}")
    assert not one_round.find_wrong(), f"BRAID_SEED={seed}"

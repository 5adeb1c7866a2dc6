"""Writers and group consumers in every region, and the replies they got.

Every stream belongs to a kind, and a kind says what is done to it:

    keep    XADD only
    once    XADD IDMP or IDMPAUTO, sent again as long as nobody knows whether it was done
    jobs    XADD, and a group that consumers of all regions read and acknowledge
    trim    XADD MAXLEN ~
    prune   XADD and XDEL
    drop    XADD, and now and then DEL
    both of the last have groups made and destroyed
"""

import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

import redis

from tests.oracle.client_log import ACKED, REFUSED, UNKNOWN, ClientLog, Delivery, Op
from tests.oracle.verdict import Rules
from tests.support.servers import Engine

KINDS: Final = ("keep", "once", "jobs", "trim", "prune", "drop")
EACH: Final = 3
STREAMS: Final = tuple(f"{kind}-{number}" for kind in KINDS for number in range(EACH))
JOBS: Final = tuple(name for name in STREAMS if name.startswith("jobs"))
GROUP: Final = "jobs"
MAXLEN: Final = 200
RULES: Final = Rules({name: MAXLEN for name in STREAMS if name.startswith("trim")}, consumed=JOBS)

# A writer that is stopped for so long by its engine gives up, and never learns what became of its write.
PATIENCE: Final = {"socket_timeout": 3.0, "socket_connect_timeout": 1.0}
PAUSE_S: Final = 0.004

# What an engine may say no with, given what we do to it. Anything else is a fault of ours.
# redis-py shows some of them without their code.
EXPECTED_ERRORS: Final = (
    "BUSYGROUP",
    "NOGROUP",
    "UNBLOCKED",
    "MISCONF",
    "command not allowed when used memory > 'maxmemory'",
    "The XGROUP subcommand requires the key to exist",
    # An emptied server, until its region has rejoined.
    "this database is not a braidstream region yet",
)


class Region(Protocol):
    number: int

    def client(self, **options: Any) -> Any: ...

    def engine_of(self, name: str) -> Engine: ...


class Regions(Protocol):
    """By their numbers."""

    def __getitem__(self, number: int) -> Region: ...

    def __iter__(self) -> Iterator[int]: ...


def odd_errors(log: ClientLog) -> list[str]:
    return [text for text in log.errors if not text.startswith(EXPECTED_ERRORS)]


class Traffic:
    """Starts with `with`; `stop_writing` lets consumers go on, leaving the block stops them too.

    writers: how many each region has; they share its streams, each stream has one of them.
    """

    def __init__(self, sites: Regions, seed: int, *, writers: int = 1, pause_s: float = PAUSE_S) -> None:
        self.log = ClientLog()
        self._writing, self._reading = threading.Event(), threading.Event()
        self._pause_s = pause_s
        self._writers = [
            threading.Thread(target=self._write, args=(sites[r], f"{r}.{n}", STREAMS[n::writers], seed))
            for r in sites
            for n in range(writers)
        ]
        self._readers = [
            threading.Thread(target=self._consume, args=(sites[r], f"{r}-{n}", seed))
            for r in sites
            for n in range(2)
        ]
        self.faults: list[str] = []

    def __enter__(self) -> "Traffic":
        self._writing.set()
        self._reading.set()
        for thread in (*self._writers, *self._readers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_writing()
        self._reading.clear()
        for thread in self._readers:
            thread.join()

    def stop_writing(self) -> None:
        self._writing.clear()
        for thread in self._writers:
            if thread.ident is not None:
                thread.join()

    # Writers

    def _write(self, site: Region, writer: str, streams: Sequence[str], seed: int) -> None:
        dice = random.Random(f"{seed} writer {writer}")
        seen: dict[str, list[str]] = {}
        number = 0
        try:
            with site.client(**PATIENCE) as client:
                while self._writing.is_set():
                    number += 1
                    name = dice.choice(streams)
                    self._one(client, site.number, name, f"{writer}-{number}", dice, seen)
                    time.sleep(self._pause_s)
        except Exception as error:
            self.faults.append("".join(traceback.format_exception(error)))

    def _one(
        self,
        client: Any,
        region: int,
        name: str,
        text: str,
        dice: random.Random,
        seen: dict[str, list[str]],
    ) -> None:
        chance = dice.random()
        if name.startswith("prune") and chance < 0.4 and seen.get(name):
            gone = seen[name].pop(dice.randrange(len(seen[name])))
            self._do("xdel", name, region, gone, lambda: client.xdel(name, gone))
        elif name.startswith("prune") and chance < 0.43:
            seen[name] = self._look(client, name)
        elif name.startswith("drop") and chance < 0.02:
            self._do("del", name, region, "", lambda: client.delete(name))
        elif name.startswith(("prune", "drop")) and chance > 0.97:
            self._change_groups(client, name, dice)
        elif name.startswith("once"):
            producer = f"writer-{text.partition('-')[0]}"
            message = ("IDMPAUTO", producer) if name.endswith("1") else ("IDMP", producer, text)
            words = ("XADD", name, *message, "*", "n", text)
            self._do("add", name, region, text, lambda: client.execute_command(*words), insist=True)
        else:
            trim = {"maxlen": MAXLEN, "approximate": True} if name.startswith("trim") else {}
            self._do("add", name, region, text, lambda: client.xadd(name, {"n": text}, **trim))

    def _do(
        self,
        kind: str,
        name: str,
        region: int,
        subject: str,
        act: Callable[[], object],
        insist: bool = False,
    ) -> None:
        began = time.monotonic()
        outcome, reply = self._outcome(act)
        doubt = outcome == UNKNOWN
        while insist and doubt and outcome != ACKED and self._writing.is_set():
            time.sleep(0.1)
            outcome, reply = self._outcome(act)
        if outcome == REFUSED and doubt:
            outcome = UNKNOWN  # an earlier try may have been done
        op = Op(kind, name, region, subject, began, time.monotonic(), outcome, reply)
        self.log.ops.append(op)
        if outcome == UNKNOWN:
            time.sleep(0.1)

    def _outcome(self, act: Callable[[], object]) -> tuple[str, str]:
        try:
            return ACKED, str(act())
        except (redis.ConnectionError, redis.TimeoutError):
            return UNKNOWN, ""
        except redis.RedisError as error:
            self.log.errors[str(error)] += 1
            return REFUSED, str(error)

    def _look(self, client: Any, name: str) -> list[str]:
        try:
            return [id for id, _ in client.xrange(name, count=200)]
        except redis.RedisError:
            return []

    def _change_groups(self, client: Any, name: str, dice: random.Random) -> None:
        group = f"g{dice.randrange(3)}"
        if dice.random() < 0.6:
            start = dice.choice(["0", "$"])
            self._outcome(lambda: client.xgroup_create(name, group, id=start, mkstream=True))
        else:
            self._outcome(lambda: client.xgroup_destroy(name, group))

    # Consumers

    def _consume(self, site: Region, consumer: str, seed: int) -> None:
        dice = random.Random(f"{seed} consumer {consumer}")
        unsettled = True
        try:
            with site.client(**PATIENCE) as client:
                while self._reading.is_set():
                    work = self._settle if unsettled else self._take
                    outcome, _ = self._outcome(partial(work, client, site.number, consumer, dice))
                    unsettled = outcome != ACKED or dice.random() < 0.1
                    if outcome != ACKED:
                        time.sleep(0.1)
        except Exception as error:
            self.faults.append("".join(traceback.format_exception(error)))

    def _take(self, client: Any, region: int, consumer: str, dice: random.Random) -> None:
        began = time.monotonic()
        found = client.xreadgroup(GROUP, consumer, dict.fromkeys(JOBS, ">"), count=50, block=300)
        ended = time.monotonic()
        for name, entries in found or ():
            ids = [id for id, _ in entries]
            times = {"began": began, "ended": ended}
            self.log.deliveries += [Delivery(name, region, consumer, id, **times) for id in ids]
            acks = [id for id in ids if dice.random() < 0.9]
            if acks:
                client.xack(name, GROUP, *acks)

    def _settle(self, client: Any, region: int, consumer: str, _: random.Random) -> None:
        """Acknowledge what we were given and have not acknowledged: replies get lost."""
        while True:
            found = client.xreadgroup(GROUP, consumer, dict.fromkeys(JOBS, "0"), count=100)
            pending = [(name, [id for id, _ in entries]) for name, entries in found or () if entries]
            if not pending:
                return
            for name, ids in pending:
                self.log.deliveries += [Delivery(name, region, consumer, id, new=False) for id in ids]
                client.xack(name, GROUP, *ids)

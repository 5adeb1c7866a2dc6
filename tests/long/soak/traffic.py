"""Writers and group consumers in every region, and the replies they got.

Every stream belongs to a kind, and a kind says what is done to it:

    keep    XADD only; now and then a large entry, or thousands of entries at once
    once    XADD IDMP or IDMPAUTO, sent again as long as nobody knows whether it was done
    jobs    XADD, and a group that consumers of all regions read and acknowledge
    turns   the same with a group of scope ONCE, whose strands regions take and give
    log     TWRITE IDMP at its home, one region for each, and a group that reads it with RETRY everywhere
    trim    XADD MAXLEN ~
    prune   XADD and XDEL
    drop    XADD, and now and then DEL
    both of the last have groups made and destroyed
"""

import itertools
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

KINDS: Final = ("keep", "once", "jobs", "turns", "log", "trim", "prune", "drop")
EACH: Final = 3
STREAMS: Final = tuple(f"{kind}-{number}" for kind in KINDS for number in range(EACH))
JOBS: Final = tuple(name for name in STREAMS if name.startswith(("jobs", "turns")))
LOGS: Final = tuple(name for name in STREAMS if name.startswith("log"))
REGIONS: Final = (1, 2, 3)
# The region that writes each log.
HOMES: Final = dict(zip(LOGS, REGIONS, strict=True))
GROUP: Final = "jobs"
MAXLEN: Final = 200
RULES: Final = Rules({name: MAXLEN for name in STREAMS if name.startswith("trim")}, consumed=(*JOBS, *LOGS))

# A writer that is stopped for so long by its engine gives up, and never learns what became of its write.
PATIENCE: Final = {"socket_timeout": 3.0, "socket_connect_timeout": 1.0}
PAUSE_S: Final = 0.004
# Of a stream whose kind is keep: how often an entry is large, and how often many entries go at once.
LARGE, LARGE_BYTES = 0.002, (50_000, 500_000)
TAIL, TAIL_ENTRIES = 0.0005, 3000
RETRY_MS: Final = (3000, 3_600_000)

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
    # A primary that has just become a replica.
    "You can't write against a read only replica",
    # A hand-over that another region has begun.
    *(f"region {number} delivers the entries of region " for number in REGIONS),
)


class Region(Protocol):
    number: int

    def client(self, **options: Any) -> Any: ...

    def engine_of(self, name: str) -> Engine: ...


class Regions(Protocol):
    """By their numbers."""

    def __getitem__(self, number: int) -> Region: ...

    def __iter__(self) -> Iterator[int]: ...


def text_of(fields: dict[str, str]) -> str:
    """Which entry it is, of a stream or of a log."""
    return fields["n"] if "n" in fields else fields["e"]


def odd_errors(log: ClientLog) -> list[str]:
    return [text for text in log.errors if not text.startswith(EXPECTED_ERRORS)]


class Traffic:
    """Starts with `with`; `stop_writing` lets consumers go on, leaving the block stops them too.

    writers: how many each region has; they share its streams, each stream has one of them. tails: whether
    thousands of entries may go at once.
    """

    def __init__(
        self,
        sites: Regions,
        seed: int,
        *,
        writers: int = 1,
        pause_s: float = PAUSE_S,
        tails: bool = True,
    ) -> None:
        self.log = ClientLog()
        self._writing, self._reading = threading.Event(), threading.Event()
        self._pause_s = pause_s
        self._tails = TAIL if tails else 0.0
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
        mine = [name for name in streams if HOMES.get(name, site.number) == site.number]
        texts = (f"{writer}-{number}" for number in itertools.count(1))
        try:
            with site.client(**PATIENCE) as client:
                while self._writing.is_set():
                    name = dice.choice(mine)
                    if name.startswith("keep") and dice.random() < self._tails:
                        self._tail(client, site.number, name, list(itertools.islice(texts, TAIL_ENTRIES)))
                    else:
                        self._one(client, site.number, name, next(texts), dice, seen)
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
        elif name.startswith("turns") and chance > 0.99:
            self._change_owner(client, name, dice)
        elif name.startswith("log"):
            write = partial(client.twrite, name, "", text, idmp=(f"writer-{region}", text))
            self._do("add", name, region, text, lambda: f"0-{write()}", insist=True)
        elif name.startswith("once"):
            producer = f"writer-{text.partition('-')[0]}"
            message = ("IDMPAUTO", producer) if name.endswith("1") else ("IDMP", producer, text)
            words = ("XADD", name, *message, "*", "n", text)
            self._do("add", name, region, text, lambda: client.execute_command(*words), insist=True)
        else:
            trim = {"maxlen": MAXLEN, "approximate": True} if name.startswith("trim") else {}
            is_large = name.startswith("keep") and chance < LARGE
            fields = {"n": text} | ({"large": "x" * dice.randint(*LARGE_BYTES)} if is_large else {})
            self._do("add", name, region, text, lambda: client.xadd(name, fields, **trim))

    def _tail(self, client: Any, region: int, name: str, texts: list[str]) -> None:
        """Many entries at once, so that a region that loses them has a long tail to get back."""
        began, replies = time.monotonic(), list[Any]()
        with client.pipeline(transaction=False) as pipe:
            for text in texts:
                pipe.xadd(name, {"n": text})
            outcome, reply = self._outcome(lambda: replies.extend(pipe.execute(raise_on_error=False)))
        ended = time.monotonic()
        for text, given in zip(texts, replies or [reply] * len(texts), strict=True):
            if isinstance(given, redis.RedisError):
                unknown = isinstance(given, (redis.ConnectionError, redis.TimeoutError))
                outcome, given = (UNKNOWN, "") if unknown else (REFUSED, str(given))
                self.log.errors[given] += not unknown
            self.log.ops.append(Op("add", name, region, text, began, ended, outcome, given))

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

    def _change_owner(self, client: Any, name: str, dice: random.Random) -> None:
        """Any region takes the strands of any other, or gives them to any other."""
        of, to = (dice.choice(REGIONS) for _ in range(2))
        words: tuple[Any, ...] = ("XGROUP", "TAKE", name, GROUP, "REGION", of)
        if dice.random() < 0.7:
            words = ("XGROUP", "GIVE", name, GROUP, "REGION", of, "TO", "REGION", to, "TIMEOUT", 2000)
        self._outcome(lambda: client.execute_command(*words))

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
            # A region that takes a strand gives out again what the former owner had not acknowledged.
            facts: dict[str, Any] = {"began": began, "ended": ended, "new": not name.startswith("turns")}
            self.log.deliveries += [Delivery(name, region, consumer, id, **facts) for id in ids]
            acks = [id for id in ids if dice.random() < 0.9]
            if acks:
                client.xack(name, GROUP, *acks)
        for name in LOGS:
            entries = client.tread(name, count=50, group=GROUP, retry=RETRY_MS)
            offsets = [entry[0] for entry in entries if entry is not None]
            self.log.deliveries += [
                Delivery(name, region, consumer, f"0-{offset}", new=False) for offset in offsets
            ]
            if acks := [offset for offset in offsets if dice.random() < 0.9]:
                client.tack(name, GROUP, *acks)

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

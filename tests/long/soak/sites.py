"""Three regions as processes: two servers and a daemon each, and a proxy on every link between them.

site 1:  servers 1 <--- daemon 1 ---> proxy 1>2 ---> servers 2
                                 `--> proxy 1>3 ---> servers 3
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

import braidstream
from braidstream import lua as functions
from braidstream.model.ids import CLOCK_BOUND_MS
from braidstream.operations.membership import initialise, meet
from tests.long.soak.faults import Fault
from tests.long.soak.pair import Pair
from tests.long.soak.traffic import text_of
from tests.oracle.client_log import Loss
from tests.support.daemons import write_config
from tests.support.forked import braid_process
from tests.support.proxy import Proxy
from tests.support.servers import Engine, Flavour

# What was acknowledged so long before may not have reached the replica yet, on a busy machine.
ON_ITS_WAY_S = 2.0


class Site:
    """One region."""

    def __init__(self, number: int, flavour: Flavour, folder: Path) -> None:
        self.number, self.folder = number, folder
        self.pair = Pair(flavour)
        self.links: dict[int, Proxy] = {}
        self.daemon: subprocess.Popen[bytes] | None = None
        self.restarts = 0
        self._rejoining: subprocess.Popen[bytes] | None = None

    @property
    def engine(self) -> Engine:
        """The primary."""
        return self.pair.primary

    def engine_of(self, _: str) -> Engine:
        """Where a stream is."""
        return self.engine

    @property
    def log(self) -> Path:
        return self.folder / f"daemon-{self.number}.log"

    @property
    def config(self) -> Path:
        return self.folder / f"braid-{self.number}.toml"

    def client(self, **options: float) -> braidstream.Redis:
        return braidstream.Redis.from_url(self.pair.front.url, decode_responses=True, **options)

    def write_config(self) -> None:
        """Our own servers directly, the others through our proxies."""
        urls = {self.number: self.pair.front.url} | {peer: proxy.url for peer, proxy in self.links.items()}
        write_config(self.config, urls, durability=dict.fromkeys(urls, "replicas:1"))

    def start_daemon(self) -> None:
        """One at a time, and none while the region rejoins: an operator stops it before."""
        if self._rejoining is not None or self.daemon is not None:
            return
        self.write_config()
        self.daemon = self._run("replicate", "--config", str(self.config), "--region", str(self.number))

    def _run(self, *words: str) -> "subprocess.Popen[bytes]":
        with open(self.log, "ab") as log:
            return braid_process(words, stdout=log, stderr=log)

    def kill_daemon(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None

    def rejoin(self) -> None:
        """What an operator types when the server is empty."""
        self.kill_daemon()
        self._rejoining = self._run("region", "rejoin", f"region-{self.number}", "--config", str(self.config))

    def supervise(self) -> None:
        """A daemon that ended by itself is started again, as systemd would; so is a rejoin that failed."""
        if self._rejoining is not None and (code := self._rejoining.poll()) is not None:
            self._rejoining = None
            if code:
                self.rejoin()
            else:
                self.start_daemon()
        if self.daemon is not None and self.daemon.poll() is not None and self.engine.alive:
            self.restarts += 1
            self.daemon = None
            if "braid region rejoin" in self.log.read_text(errors="replace")[-300:]:
                self.rejoin()  # the backup was made while the region was coming back
            else:
                self.start_daemon()

    @property
    def is_whole(self) -> bool:
        return self._rejoining is None

    def signal_daemon(self, number: signal.Signals) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            os.kill(self.daemon.pid, number)

    def limit_memory(self, limit: str) -> None:
        with self.engine.client() as client:
            client.config_set("maxmemory", limit)

    def step_clock(self, ahead_s: float) -> None:
        for engine in (self.pair.primary, self.pair.replica):
            engine.set_clock(ahead_s)


class Sites:
    """All regions, and the hand that hurts and heals them."""

    def __init__(self, flavour: Flavour, folder: Path, regions: int = 3) -> None:
        self.all = {number: Site(number, flavour, folder) for number in range(1, regions + 1)}
        self.losses: list[Loss] = []
        self.stepped_until = 0.0
        self._hurt_at: dict[Fault, float] = {}

    def __getitem__(self, number: int) -> Site:
        return self.all[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self.all)

    @property
    def are_whole(self) -> bool:
        return all(site.is_whole for site in self.all.values())

    def start(self) -> None:
        for site in self.all.values():
            site.pair.start()
            with site.client() as client:
                client.run_plan(initialise(site.number, f"region-{site.number}"))
                client.run_plan(functions.load())
                client.run_plan(meet(self.all))
        for site in self.all.values():
            for peer in self.all.values():
                if peer is not site:
                    site.links[peer.number] = Proxy(peer.pair.front.port)
                    site.links[peer.number].open()
            site.start_daemon()

    def stop(self) -> None:
        for site in self.all.values():
            site.signal_daemon(signal.SIGCONT)
            site.kill_daemon()
        for site in self.all.values():
            for proxy in site.links.values():
                proxy.close()
            site.pair.stop()

    def hurt(self, fault: Fault) -> None:
        site = self[fault.where[0]]
        self._hurt_at[fault] = time.monotonic() - ON_ITS_WAY_S
        match fault.kind:
            case "daemon killed":
                site.kill_daemon()
            case "daemon paused":
                site.signal_daemon(signal.SIGSTOP)
            case "engine killed":
                site.engine.kill()
            case "planned failover":
                site.pair.hand_over()
            case "engine paused":
                site.engine.pause()
            case "memory full":
                site.limit_memory("1")
            case "link cut":
                site.links[fault.where[1]].cut_off()
            case "link silent":
                site.links[fault.where[1]].swallow()
            case "writes refused":
                site.pair.refuse_writes()
            case "clock stepped":
                site.step_clock(fault.step_s)
            case "replica promoted":
                site.pair.deafen()
            case "old primary lives on":
                site.pair.deafen()
                site.pair.promote(kill=False)
            case "engine emptied":
                with self._losing(site, since=0.0), site.engine.client() as client:
                    client.flushall()
            case "part lost":
                with self._losing(site, since=0.0):
                    lose_parts(site.engine, random.Random(fault.at_s))
            case "backup restored":
                site.pair.back_up()

    def heal(self, fault: Fault) -> None:
        site = self[fault.where[0]]
        match fault.kind:
            case "daemon killed":
                site.start_daemon()
            case "daemon paused":
                site.signal_daemon(signal.SIGCONT)
            case "engine killed":
                site.pair.start_primary()
            case "engine paused":
                site.engine.resume()
            case "memory full":
                site.limit_memory("0")
            case "link cut":
                site.links[fault.where[1]].open()
            case "link silent":
                site.links[fault.where[1]].deliver()
            case "writes refused":
                site.pair.take_writes()
            case "clock stepped":
                site.step_clock(0.0)
                if abs(fault.step_s) * 1000 > CLOCK_BOUND_MS:
                    # IDs stay ahead until the clock has caught up (decision 0016).
                    ahead_until = time.monotonic() + max(0.0, fault.step_s)
                    self.stepped_until = max(self.stepped_until, ahead_until)
            case "replica promoted":
                with self._losing(site, self._hurt_at[fault]):
                    site.pair.promote(kill=True)
                site.pair.rejoin_replica()
            case "old primary lives on":
                with self._losing(site, self._hurt_at[fault]):
                    site.pair.rejoin_replica()
            case "engine emptied":
                site.rejoin()
            case "backup restored":
                with self._losing(site, self._hurt_at[fault]):
                    site.pair.restore()

    @contextmanager
    def _losing(self, site: Site, since: float) -> Iterator[None]:
        """Note what the peers know before a region loses what it acknowledged since then."""
        known = set[str]()
        for peer in self.all.values():
            if peer is not site:
                known |= _texts(peer.engine)
        # On a busy machine another region may not have back yet what it lost before.
        alone = {text for text in _texts(site.engine) - known if not text.startswith(f"{site.number}.")}
        yield
        self.losses.append(Loss(site.number, since, time.monotonic(), frozenset(known), frozenset(alone)))

    def faults_of_ours(self) -> list[str]:
        """What no daemon may ever do: end by an exception."""
        found = []
        for site in self.all.values():
            text = site.log.read_text(errors="replace") if site.log.exists() else ""
            if (at := text.find("Traceback")) >= 0:
                found.append(f"daemon {site.number} ended by an exception:\n{text[at : at + 3000]}")
        return found


@contextmanager
def running(flavour: Flavour, folder: Path) -> Iterator[Sites]:
    sites = Sites(flavour, folder)
    try:
        sites.start()
        yield sites
    finally:
        sites.stop()


# Nothing else of a strand is kept: its pending lists are lost, the positions of its groups are not.
_LOSE = """
local function fact(info, name)
  for at = 1, #info, 2 do
    if info[at] == name then return info[at + 1] end
  end
end
local strand, gone = KEYS[1], {}
for _, entry in ipairs(redis.call('XRANGE', strand, ARGV[1], ARGV[2])) do
  gone[entry[1]] = true
end
local entries, groups = redis.call('XRANGE', strand, '-', '+'), redis.call('XINFO', 'GROUPS', strand)
local last = fact(redis.call('XINFO', 'STREAM', strand), 'last-generated-id')
redis.call('DEL', strand)
for _, entry in ipairs(entries) do
  if not gone[entry[1]] then redis.call('XADD', strand, entry[1], unpack(entry[2])) end
end
for _, group in ipairs(groups) do
  local position = fact(group, 'last-delivered-id')
  redis.call('XGROUP', 'CREATE', strand, fact(group, 'name'), position, 'MKSTREAM')
end
if redis.call('EXISTS', strand) == 1 then redis.call('XSETID', strand, last) end
"""


def lose_parts(engine: Engine, dice: random.Random) -> None:
    """Some strands lack some of their entries, anywhere, as after a damaged append-only file. The server is
    another process afterwards, and its clients are cut off.

    All at once: no daemon may take for acknowledged what has just ceased to be pending.
    """
    with redis.Redis(port=engine.port) as client:
        with client.pipeline() as pipe:
            for key in sorted(client.scan_iter(match="bs:*:[st]:*", count=1000)):
                if dice.random() < 0.5 and (entries := client.xrange(key)):
                    first = dice.randrange(len(entries))
                    gone = entries[first : first + dice.randint(1, len(entries))]
                    pipe.eval(_LOSE, 1, key, gone[0][0], gone[-1][0])  # type: ignore[no-untyped-call]
            pipe.execute_command("DEBUG", "CHANGE-REPL-ID")
            pipe.execute()
        for kind in ("normal", "replica"):
            client.client_kill_filter(_type=kind, skipme=True)


def _texts(engine: Engine) -> set[str]:
    """The text of every entry that a server holds; none if it does not answer."""
    found = set[str]()
    try:
        with engine.client(decode_responses=True, socket_timeout=2) as client:
            for key in client.scan_iter(match="bs:*:[st]:*", count=1000):
                found |= {text_of(fields) for _, fields in client.xrange(key)}
    except (redis.ConnectionError, redis.TimeoutError):
        return set()
    return found

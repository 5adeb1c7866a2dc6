"""Three regions as processes: an engine and a daemon each, and a proxy on every link between them.

site 1:  engine 1 <--- daemon 1 ---> proxy 1>2 ---> engine 2
                                `--> proxy 1>3 ---> engine 3
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import braidstream
from braidstream import engine as functions
from braidstream.commands.region import initialise, meet
from tests.faults.soak.faults import Fault
from tests.support.proxy import Proxy
from tests.support.servers import DidNotStart, Engine, Flavour

# `always`: what was acknowledged is in the file when the process is killed. With `everysec` the engine itself
# may lose it (docs/design/guarantees.md), and the soak could not tell whose fault that is.
DURABLE = ["--appendonly", "yes", "--appendfsync", "always"]


class Site:
    """One region."""

    def __init__(self, number: int, flavour: Flavour, folder: Path) -> None:
        self.number, self.folder = number, folder
        self.engine = Engine(flavour, args=DURABLE)
        self.links: dict[int, Proxy] = {}
        self.daemon: subprocess.Popen[bytes] | None = None
        self.restarts = 0

    @property
    def log(self) -> Path:
        return self.folder / f"daemon-{self.number}.log"

    def client(self, **options: float) -> braidstream.Redis:
        return braidstream.Redis.from_url(self.engine.url, decode_responses=True, **options)

    def write_config(self) -> Path:
        """Our own engine directly, the others through our proxies."""
        urls = {self.number: self.engine.url} | {peer: proxy.url for peer, proxy in self.links.items()}
        blocks = (
            f'[[region]]\nid = {number}\nname = "region-{number}"\nurl = "{url}"\n'
            for number, url in urls.items()
        )
        path = self.folder / f"braid-{self.number}.toml"
        path.write_text("".join(blocks))
        return path

    def start_daemon(self) -> None:
        command = [sys.executable, "-m", "braidstream.cli.main", "replicate"]
        command += ["--config", str(self.write_config()), "--region", str(self.number)]
        with open(self.log, "ab") as log:
            self.daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

    def kill_daemon(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = None

    def start_engine(self) -> None:
        """On a machine that is busy elsewhere, loading the file takes its time."""
        for patience in reversed(range(5)):
            try:
                self.engine.start()
                return
            except DidNotStart:
                if not patience:
                    raise

    def supervise(self) -> None:
        """A daemon that ended by itself is started again, as systemd would."""
        if self.daemon is not None and self.daemon.poll() is not None and self.engine.alive:
            self.restarts += 1
            self.start_daemon()

    def signal_daemon(self, number: signal.Signals) -> None:
        if self.daemon is not None and self.daemon.poll() is None:
            os.kill(self.daemon.pid, number)

    def limit_memory(self, limit: str) -> None:
        with self.engine.client() as client:
            client.config_set("maxmemory", limit)


class Sites:
    """All regions, and the hand that hurts and heals them."""

    def __init__(self, flavour: Flavour, folder: Path, regions: int = 3) -> None:
        self.all = {number: Site(number, flavour, folder) for number in range(1, regions + 1)}

    def __getitem__(self, number: int) -> Site:
        return self.all[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self.all)

    def start(self) -> None:
        for site in self.all.values():
            site.engine.start()
            with site.client() as client:
                client.run_plan(initialise(site.number, f"region-{site.number}"))
                client.run_plan(functions.load())
                client.run_plan(meet(self.all))
        for site in self.all.values():
            for peer in self.all.values():
                if peer is not site:
                    site.links[peer.number] = Proxy(peer.engine.port)
                    site.links[peer.number].open()
            site.start_daemon()

    def stop(self) -> None:
        for site in self.all.values():
            site.signal_daemon(signal.SIGCONT)
            site.kill_daemon()
            for proxy in site.links.values():
                proxy.close()
            site.engine.stop()

    def hurt(self, fault: Fault) -> None:
        site = self[fault.where[0]]
        match fault.kind:
            case "daemon killed":
                site.kill_daemon()
            case "daemon paused":
                site.signal_daemon(signal.SIGSTOP)
            case "engine killed":
                site.engine.kill()
            case "engine paused":
                site.engine.pause()
            case "memory full":
                site.limit_memory("1")
            case "link cut":
                site.links[fault.where[1]].shut()
                site.links[fault.where[1]].cut()
            case "link silent":
                site.links[fault.where[1]].swallow()

    def heal(self, fault: Fault) -> None:
        site = self[fault.where[0]]
        match fault.kind:
            case "daemon killed":
                site.start_daemon()
            case "daemon paused":
                site.signal_daemon(signal.SIGCONT)
            case "engine killed":
                site.start_engine()
            case "engine paused":
                site.engine.resume()
            case "memory full":
                site.limit_memory("0")
            case "link cut":
                site.links[fault.where[1]].open()
            case "link silent":
                site.links[fault.where[1]].deliver()

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

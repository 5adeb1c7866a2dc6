"""Real Redis and Valkey servers on loopback, started, hurt and stopped by tests.

    with Engine("valkey-9.1", args=["--appendonly", "yes"]) as engine:
        with engine.client() as client: ...
        engine.kill()        # SIGKILL; restart() comes back on the same port with the same directory

scripts/engines.sh installs the servers. Tests run on FLAVOURS, the oldest and the newest of each family;
BRAID_ENGINE=redis-7.0,valkey-9.1 chooses others. A test asks what an engine can do, never what it is called.

Ports lie in 10000..21999 and cluster buses 10000 above, all below the range the kernel lends to outgoing
connections, so a port that was free when chosen can be lost only to another server; start() then picks again.
"""

import atexit
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from braidstream import lua
from tests.support.orphans import guard
from tests.support.waiting import eventually

Flavour = Literal["redis-7.0", "redis-8.6", "redis-8.10", "valkey-8.0", "valkey-9.1"]
EVERY: tuple[Flavour, ...] = get_args(Flavour)


def _chosen() -> tuple[Flavour, ...]:
    said = os.environ.get("BRAID_ENGINE", "all")
    wanted = ("redis-7.0,redis-8.10,valkey-8.0,valkey-9.1" if said == "all" else said).split(",")
    unknown = set(wanted) - set(EVERY)
    if unknown:
        raise ValueError(
            f"BRAID_ENGINE: {', '.join(sorted(unknown))} unknown. Choose from {', '.join(EVERY)}."
        )
    return tuple(flavour for flavour in EVERY if flavour in wanted)


FLAVOURS = _chosen()
# Of these the newest of each family, for slow tests that hardly depend on the engine.
NEWEST = tuple({flavour.partition("-")[0]: flavour for flavour in FLAVOURS}.values())
# Those surely built with TLS: valkey-9.1 only where Debian has it (scripts/engines.sh).
WITH_TLS: tuple[Flavour, ...] = ("redis-7.0", "redis-8.6", "valkey-8.0")
# Those that can log in a connection by its certificate, if they were built with TLS.
KNOW_CERTIFICATES: tuple[Flavour, ...] = ("redis-8.6", "valkey-9.1")
PROGRAMS = Path(os.environ.get("BRAID_ENGINES", "~/.cache/braidstream/engines")).expanduser() / "bin"
# Also for processes that tests start: `braid up --engine valkey-9.1` runs the program valkey-9.1-server.
if str(PROGRAMS) not in os.environ["PATH"].split(os.pathsep):
    os.environ["PATH"] = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"

START_WITHIN_S = 60
STOP_WITHIN_S = 5
BUS_OFFSET = 10_000
# The other ports of `braid up` with two regions.
UP_ABOVE = (1, 100, 101, 200, 201, 300, 301)
# Stream commands that are newer than the oldest engine, or have options that are.
NEWER_COMMANDS = ("XADD", "XTRIM", "XREAD", "XREADGROUP", "XDELEX", "XACKDEL", "XNACK", "XCFGSET")
# Not the module's own dice: hypothesis seeds those, and then two xdist workers would want the same port.
DICE = random.SystemRandom()


class DidNotStart(Exception):
    """A server exited or stayed silent; the message ends with the tail of its log."""


class Engine:
    """One server process. `args` is a flat list that wins over the defaults: `["--maxmemory", "10mb"]`."""

    def __init__(
        self,
        flavour: Flavour = "redis-7.0",
        *,
        args: Sequence[str] = (),
        tls: bool = False,
        unixsocket: bool = False,
        cluster: bool = False,
        clock_s: float | None = None,
    ) -> None:
        """clock_s: seconds its wall clock is ahead of ours; `set_clock` changes it while the server runs."""
        self.flavour = flavour
        self.args = list(args)
        self.tls = tls
        self.cluster = cluster
        self.port = 0
        self.directory = Path(tempfile.mkdtemp(prefix=f"braid-{flavour}-"))
        self.unixsocket = self.directory / "engine.sock" if unixsocket else None
        self._certificates = tls_files(self.directory) if tls else None
        self._process: subprocess.Popen[bytes] | None = None
        guard()
        self._environment = dict(os.environ)
        if clock_s is not None:
            self.set_clock(clock_s)
            self._environment |= {"LD_PRELOAD": str(clock_shim()), "BRAID_CLOCK": str(self._clock)}

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        if self._certificates:
            return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={quote(str(self._certificates['ca']))}"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the engine was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def replace_process(self) -> None:
        """The server looks like another process from now on, as after a failover or a restart."""
        with self.client() as client:
            client.execute_command("DEBUG", "CHANGE-REPL-ID")

    @cached_property
    def version(self) -> tuple[int, ...]:
        said = subprocess.run([f"{self.flavour}-server", "--version"], capture_output=True, text=True).stdout
        [number] = re.findall(r" v=([0-9.]+)", said)
        return tuple(map(int, number.split(".")))

    @cached_property
    def reads_plus(self) -> bool:
        """Whether it knows XREAD's `+`."""
        with self.client() as client:
            try:
                client.execute_command("XREAD", "STREAMS", "no-such-stream", "+")
            except redis.ResponseError:
                return False
        return True

    @cached_property
    def vocabulary(self) -> frozenset[str]:
        """Stream commands and their options, as its COMMAND table lists them: XNACK, XREADGROUP CLAIM."""
        with self.client(protocol=2) as client:
            client.response_callbacks.clear()
            docs = client.execute_command("COMMAND DOCS", *NEWER_COMMANDS)
        found = set[str]()
        for name, described in zip(docs[::2], docs[1::2], strict=True):
            found.add(name.decode().upper())
            found |= {f"{name.decode()} {token}".upper() for token in _tokens(described)}
        return frozenset(found)

    def client(self, **options: Any) -> "redis.Redis":
        """A plain redis-py client that never retries; close it, or use it in `with`."""
        return redis.Redis.from_url(self.url, **{"retry": Retry(NoBackoff(), 0), **options})

    def start(self) -> Self:
        """Start and wait until it answers. The first start chooses the port, later ones keep it."""
        chosen = self.port != 0
        for attempts_left in reversed(range(5)):
            if not chosen:
                self.port = free_port(*([BUS_OFFSET] if self.cluster else []))
            try:
                self._launch()
                return self
            except DidNotStart as error:
                self.kill()
                if chosen or attempts_left == 0 or "Address already in use" not in str(error):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def kill(self) -> None:
        """SIGKILL: no goodbye to clients, nothing written on the way out."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, until resume()."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @property
    def _clock(self) -> Path:
        return self.directory / "clock"

    def set_clock(self, ahead_s: float) -> None:
        """Step the wall clock of an engine that was made with `clock_s`."""
        with open(self._clock, "r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("<q", round(ahead_s * 1_000_000)))

    def restart(self) -> Self:
        """Shut down if it is up, then start again on the same port and directory."""
        self._shut_down()
        return self.start()

    def stop(self) -> None:
        """Shut down and forget the directory."""
        self._shut_down()
        shutil.rmtree(self.directory, ignore_errors=True)

    def flush(self, *, keep_functions: bool = False) -> None:
        """Forget every key of every database and every function. keep_functions: but for those that we ship,
        if they are as we ship them. Most tests take no longer than to load them again."""
        with self.client(protocol=2) as client:
            client.execute_command("FLUSHALL", "SYNC")
            if not keep_functions:
                client.execute_command("FUNCTION", "FLUSH", "SYNC")
                return
            for row in client.function_list(withcode=True):
                facts = dict(zip(row[::2], row[1::2], strict=True))
                if facts[b"library_code"] != lua.source().encode():
                    client.function_delete(facts[b"library_name"])

    @property
    def log(self) -> str:
        """What the server said since its first start."""
        return (self.directory / "log").read_text(errors="replace")

    def _launch(self) -> None:
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        try:
            eventually(self._answers, within_s=START_WITHIN_S, why=f"{self.flavour} should answer PING")
        except AssertionError as error:
            raise DidNotStart(f"{error}; log:\n{self._log_tail()}") from error

    def _command(self) -> list[str]:
        command = [f"{self.flavour}-server", "--bind", "127.0.0.1", "--dir", str(self.directory)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        command += ["--enable-debug-command", "local"]  # replace_process
        if self._certificates:
            command += ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            command += ["--tls-ca-cert-file", str(self._certificates["ca"])]
            command += ["--tls-cert-file", str(self._certificates["cert"])]
            command += ["--tls-key-file", str(self._certificates["key"])]
        else:
            command += ["--port", str(self.port)]
        if self.unixsocket:
            command += ["--unixsocket", str(self.unixsocket)]
        if self.cluster:
            command += ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"]
        return command + self.args

    def _answers(self) -> bool:
        """Whether it is our own process that answers: another server may have won the port."""
        if not self.alive:
            raise DidNotStart(f"{self.flavour}-server exited at once; log:\n{self._log_tail()}")
        try:
            with self.client(socket_timeout=1) as client:
                client.ping()
                return bool(client.info("server")["process_id"] == self.pid)
        except redis.AuthenticationError:
            return True
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def _log_tail(self) -> str:
        return "\n".join(self.log.splitlines()[-20:])

    def _shut_down(self) -> None:
        if self._process is None or not self.alive:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()


def _tokens(described: Any) -> Iterator[str]:
    """Every word that COMMAND DOCS calls a token, however deep."""
    for at, each in enumerate(described):
        if isinstance(each, list):
            yield from _tokens(each)
        elif each == b"token":
            yield described[at + 1].decode()


def free_port(*above: int) -> int:
    """A free loopback port; those that are so much higher are free as well."""
    for _ in range(1000):
        port = DICE.randrange(10_000, 22_000)
        if all(_is_free(port + more) for more in (0, *above)):
            return port
    raise DidNotStart("found no free port between 10000 and 21999 in 1000 tries")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: without it a port is lost for a minute to connections in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@cache
def clock_shim() -> Path:
    """The library that moves an engine's clock, compiled once for each process of tests."""
    folder = Path(tempfile.mkdtemp(prefix="braid-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, library = Path(__file__).with_name("clock_shim.c"), folder / "clock_shim.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def tls_files(directory: Path) -> dict[str, Path]:
    """A CA (`ca`) and a server certificate (`cert`, `key`) for 127.0.0.1 and localhost, made by openssl."""
    names = {"ca": "ca.crt", "cert": "server.crt", "key": "server.key"}
    files = {name: directory / file for name, file in names.items()}
    ca_key = directory / "ca.key"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    new += ["-days", "2"]
    ca = [*new, "-keyout", str(ca_key), "-out", str(files["ca"]), "-subj", "/CN=braid test CA"]
    ca += ["-addext", "keyUsage=critical,keyCertSign"]
    server = [*new, "-keyout", str(files["key"]), "-out", str(files["cert"]), "-subj", "/CN=localhost"]
    server += ["-CA", str(files["ca"]), "-CAkey", str(ca_key)]
    server += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    server += ["-addext", "basicConstraints=critical,CA:FALSE"]
    for command in (ca, server):
        subprocess.run(command, check=True, capture_output=True)
    return files


def certificate(directory: Path, name: str) -> dict[str, Path]:
    """A client certificate (`cert`, `key`) with this common name, of the CA in the folder: `tls_files`."""
    files = {"cert": directory / f"{name}.crt", "key": directory / f"{name}.key"}
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    new += ["-days", "2", "-keyout", str(files["key"]), "-out", str(files["cert"]), "-subj", f"/CN={name}"]
    new += ["-CA", str(directory / "ca.crt"), "-CAkey", str(directory / "ca.key")]
    new += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(new, check=True, capture_output=True)
    return files

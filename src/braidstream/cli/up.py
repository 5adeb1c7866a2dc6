"""`braid up`: several regions on this machine, for trying things out."""

import asyncio
import contextlib
import ctypes
import json
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from braidstream import lua as functions
from braidstream.cli.reach import Json, ask, trouble
from braidstream.cli.screen import Screen
from braidstream.cli.tune import IdMode
from braidstream.engine.address import Address, free_port
from braidstream.engine.connection import connect
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.operations.membership import initialise, meet, tune_id_mode
from braidstream.plan.plan import Batch

# ----------------------------------------------------------------------------------------------------
# Engines and daemons as child processes of `braid up`, on loopback ports. They end with the parent.

READY_WITHIN_S: Final = 30.0
STOP_WITHIN_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1


def check_free(port: int) -> None:
    """BraidError if a process listens on a loopback port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore sockets that are closing
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise BraidError(
                f"port {port} is in use. Stop what listens there, or choose others: braid up --port 8001 "
                "(--port 0: any free ones)"
            ) from None


def engine_command(engine: str, port: int, directory: Path, keep: bool) -> list[str]:
    """A server with its own configuration that listens on loopback only and allows DEBUG.

    engine: `redis` means the program redis-server; with a slash it is the program's path.
    """
    wanted = engine if "/" in engine else f"{engine}-server"
    program = shutil.which(wanted)
    if program is None:
        raise BraidError(
            f"found no program {wanted}. Install it (apt-get install redis-server or valkey-server), "
            "or choose another one: --engine redis, --engine valkey or --engine /path/to/a/server"
        )
    here = ["--bind", "127.0.0.1", "--port", str(port), "--enable-debug-command", "local"]
    store = ["--dir", str(directory), "--appendonly", "yes" if keep else "no", "--save", ""]
    return [program, *here, *store, "--logfile", str(directory.resolve() / "engine.log")]


def braid_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "braidstream.cli.main", *words]


class Child:
    """A process that ends when we do. Its stderr goes to a file."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self.command, self.log = name, command, log
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # no Ctrl-C from the terminal: we stop our children in order
                preexec_fn=die_with_parent,
            )

    async def line(self) -> str:
        """The first line it prints; BraidError if it ends instead."""
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                line = await self.process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line:
            raise BraidError(f"{self.name} did not start within {READY_WITHIN_S:g} s. Its log: {self.log}")
        return line.decode("utf-8", "replace").strip()

    async def ended(self) -> str:
        """Wait until it ends; returns a sentence that says how."""
        assert self.process is not None
        code = await self.process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}. Its log: {self.log}"

    async def stop(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


async def answering(port: int, child: Child) -> None:
    """Wait until an engine accepts commands. There is no timeout while it loads its data."""
    loop = asyncio.get_running_loop()
    until = loop.time() + READY_WITHIN_S
    while loop.time() < until and child.process is not None and child.process.returncode is None:
        try:
            conn = await connect(Address("127.0.0.1", port))
            [reply] = await conn.send(Batch([("PING",)], resend=True, attempt=True))
            conn.close()
            if not isinstance(reply, ReplyError):
                return
            if reply.code == "LOADING":
                until = loop.time() + READY_WITHIN_S
        except (LostError, ReplyError):
            pass
        await asyncio.sleep(0.02)
    raise BraidError(f"{child.name} does not answer on port {port}. Its log: {child.log}")


def die_with_parent() -> None:
    """In the child, before exec: request a SIGTERM when the parent dies (Linux only)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


# ----------------------------------------------------------------------------------------------------
# Up

_STRICT: Final = IdMode("strict")
# Ports above that of a region's server: its gateway, /metrics of its daemon, /metrics of its gateway.
_GATEWAYS_ABOVE: Final = 100
_METRICS_ABOVE: Final = 200
_GATEWAY_METRICS_ABOVE: Final = 300
_ABOVE: Final = (0, _GATEWAYS_ABOVE, _METRICS_ABOVE, _GATEWAY_METRICS_ABOVE)
Mode = Annotated[
    IdMode, typer.Option("--id-mode", help="Which IDs XADD accepts, as in `braid tune id-mode`.")
]
Directory = Annotated[
    Path | None,
    typer.Option("--dir", help="Folder for the data. Without it, braid up deletes all data when it ends."),
]
Port = Annotated[
    int,
    typer.Option(
        min=0,
        max=65_000,
        help="Port of the first server; the others follow. Gateways: 100 higher, metrics: 200 higher (of "
        "gateways: 300). 0: any free ports.",
    ),
]


def up(
    regions: Annotated[int, typer.Option(min=1, max=16, help="How many regions.")] = 2,
    engine: Annotated[str, typer.Option(help="redis, valkey, or the path of a server program.")] = "redis",
    id_mode: Mode = _STRICT,
    directory: Directory = None,
    port: Port = 7001,
    as_json: Json = False,
) -> None:
    """Start several regions on this machine, each a server and a gateway, replicating to each other.

    For tests and experiments. Servers listen on ports 7001, 7002, ..., gateways on 7101, 7102, ...
    Ctrl-C or SIGTERM stops everything it started.

    Example: braid up --regions 3
    """
    for at in range(regions if port else 0):
        for needed in (port + at + above for above in _ABOVE):
            with trouble(f"redis://127.0.0.1:{needed}", as_json):
                check_free(needed)
    with trouble(directory or Path(tempfile.gettempdir()), as_json):
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            wanted = Wanted(directory, range(1, regions + 1), engine, id_mode, port, keep=True)
            asyncio.run(_run(wanted, as_json))
        else:
            with tempfile.TemporaryDirectory(prefix="braid-up-") as folder:
                wanted = Wanted(Path(folder), range(1, regions + 1), engine, id_mode, port, keep=False)
                asyncio.run(_run(wanted, as_json))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start, where. port: of the first server, or 0. keep: the data outlives us."""

    folder: Path
    numbers: range
    engine: str
    id_mode: IdMode
    port: int
    keep: bool

    def places(self) -> list[dict[str, Any]]:
        """The regions, each with its addresses. Any free ports: the kernel chooses those of the gateways."""
        if not self.port:
            return [_region(number, (free_port(), 0, 0, 0)) for number in self.numbers]
        ports = enumerate(self.numbers, self.port)
        return [_region(number, [port + above for above in _ABOVE]) for port, number in ports]


def _region(number: int, ports: Sequence[int]) -> dict[str, Any]:
    url, gateway, listen, gateway_metrics = (f"127.0.0.1:{port}" for port in ports)
    addresses = {"gateway": gateway, "listen": listen, "gateway_metrics": gateway_metrics}
    return {"id": number, "name": f"region-{number}", "url": f"redis://{url}", **addresses}


async def _run(wanted: Wanted, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    children: list[Child] = []
    try:
        starting = asyncio.ensure_future(_start(wanted, children))
        stopping = asyncio.ensure_future(stop.wait())
        with Screen(stderr=True).status("Starting servers, daemons and gateways ..."):
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        _report(starting.result(), wanted.folder, as_json)
        watching = [asyncio.ensure_future(_report_end(child)) for child in children]
        await stopping
        for watch in watching:
            watch.cancel()
    finally:
        for child in reversed(children):
            await child.stop()


async def _start(wanted: Wanted, children: list[Child]) -> list[dict[str, Any]]:
    folder, numbers, engine = wanted.folder, wanted.numbers, wanted.engine
    regions = wanted.places()
    config = folder / "braid.toml"
    config.write_text("\n".join(_block(region) for region in regions), encoding="utf-8")
    for region in regions:
        place = folder / str(region["name"])
        place.mkdir(exist_ok=True)
        port = int(str(region["url"]).rpartition(":")[2])
        command = engine_command(engine, port, place, wanted.keep)
        child = Child(f"the {engine} of {region['name']}", command, place / "engine.log")
        children.append(child)
        await child.start()
        await answering(port, child)
        plans = (
            initialise(int(str(region["id"])), str(region["name"])),
            functions.load(),
            meet(numbers),
            tune_id_mode(wanted.id_mode.value),
        )
        await asyncio.to_thread(ask, str(region["url"]), *plans)
    daemons = []
    for region in regions:
        words = ("replicate", "--json", "--config", str(config), "--region", str(region["name"]))
        log = folder / str(region["name"]) / "replicate.log"
        daemons.append(Child(f"the daemon of {region['name']}", braid_command(*words), log))
        children.append(daemons[-1])
        await daemons[-1].start()
    for daemon, region in zip(daemons, regions, strict=True):
        region["metrics"] = json.loads(await daemon.line())["metrics"]
        del region["listen"]
    for region in regions:
        region |= await _start_gateway(folder, region, children)
    return regions


async def _report_end(child: Child) -> None:
    """Report a process that ends. It is not restarted: `braid up` is also for testing failures."""
    typer.echo(await child.ended(), err=True)


async def _start_gateway(folder: Path, region: dict[str, Any], children: list[Child]) -> dict[str, Any]:
    """Where it listens: for clients, and for Prometheus."""
    name, listen, metrics = (str(region[field]) for field in ("name", "gateway", "gateway_metrics"))
    place = ("--config", str(folder / "braid.toml"), "--region", name)
    admin = ("--functions-admin", "default")  # test suites begin with FUNCTION FLUSH
    words = ("gateway", "--json", *place, "--listen", listen, "--metrics", metrics, *admin)
    child = Child(f"the gateway of {name}", braid_command(*words), folder / name / "gateway.log")
    children.append(child)
    await child.start()
    ready = json.loads(await child.line())
    return {"gateway": ready["gateway"], "gateway_metrics": ready["metrics"]}


def _block(region: dict[str, Any]) -> str:
    lines = (f"{field} = {json.dumps(value)}" for field, value in region.items())
    return "\n".join(["[[region]]", *lines, ""])


def _report(regions: list[dict[str, Any]], folder: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"regions": regions}))
        return
    columns = {"region": "id", "name": "name", "url": "url", "gateway": "gateway", "metrics": "metrics"}
    table = Table(
        *columns, title="Ready. Ctrl-C stops everything.", title_justify="left", box=None, pad_edge=False
    )
    for region in regions:
        table.add_row(*(str(region[field]) for field in columns.values()))
    console = Screen()
    console.print(table)
    config, last = shlex.quote(str(folder / "braid.toml")), regions[-1]["name"]
    lines = (
        f"Config and logs: {folder}",
        "Try it in another terminal:",
        f"  redis-cli -p {regions[0]['gateway'].rpartition(':')[2]} XADD orders '*' item book",
        f"  braid tail orders --config {config} --region {last}",
        f"  braid status --config {config}",
    )
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

"""`braid replicate`: one region's daemon, and its options to receive compressed links."""

import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from ssl import SSLContext
from typing import Annotated, Final

import typer

from braidstream import lua
from braidstream.cli.reach import ConfigFile, Json, ask, trouble
from braidstream.cli.regions import is_cluster_at, prepare_cluster, region_at
from braidstream.cli.serving import listen_errors, new_loop, parse_probes, parse_tls, serve_probes
from braidstream.clients.raised import ServerError
from braidstream.config import Config, RegionConfig, Selection, changes, load
from braidstream.engine.address import Address, Listen, parse_address
from braidstream.engine.exposure import needs_password
from braidstream.engine.redis_py import LOST, is_away
from braidstream.engine.tunnel import load_zstandard
from braidstream.errors import BraidError, ConfigError, LibraryError, NotARegionError
from braidstream.observability.events import JsonFormatter, Repeated, emit
from braidstream.observability.metrics import Family
from braidstream.observability.probes import Answers
from braidstream.operations.membership import initialise
from braidstream.replication.daemon.daemon import Daemon
from braidstream.replication.daemon.reporting import FileState, families
from braidstream.replication.endpoint import Endpoint, back_off
from braidstream.replication.gate import Durability
from braidstream.replication.receiver import Receiver

# ----------------------------------------------------------------------------------------------------
# `braid replicate --receive`: listen for compressed links of peers (replication/receiver.py).

ReceiveOn = Annotated[
    str | None,
    typer.Option(
        help="Listen here for compressed links of peers: HOST:PORT, or PORT on loopback. In the file, "
        "`receiver` is where peers reach it."
    ),
]
TlsCert = Annotated[Path | None, typer.Option(help="With --receive: certificate (PEM). Peers then use TLS.")]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key (PEM), if not in the same file.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="CA (PEM) of client certificates. Peers then must present one."),
]
AllowOpen = Annotated[
    bool,
    typer.Option(
        "--allow-open",
        help="With --receive: listen on the network without --tls-ca. Anyone who can reach the port can "
        "then try passwords of the server.",
    ),
]


@dataclass(frozen=True, slots=True)
class Receiving:
    """Where to listen for peers, and with which certificates."""

    listen: Listen
    tls: SSLContext | None


def parse_receiving(
    receive: str | None,
    files: tuple[Path | None, Path | None, Path | None],
    *,
    allow_open: bool,
    as_json: bool,
) -> Receiving | None:
    """files: certificate, key and CA. None: do not listen."""
    if receive is None:
        if any(files):
            raise typer.BadParameter("--tls-cert, --tls-key and --tls-ca need --receive.")
        return None
    try:
        listen = Listen.parse_http(receive)
    except ValueError:
        raise typer.BadParameter(f"--receive {receive}: write HOST:PORT, or PORT for loopback.") from None
    if not (listen.is_local or files[2] or allow_open):
        raise typer.BadParameter(
            f"--receive {receive} is on the network, where anyone could try passwords of the server. Require "
            "client certificates (--tls-cert, --tls-key, --tls-ca), listen on 127.0.0.1, or pass "
            "--allow-open."
        )
    with trouble(files[0] or Path(), as_json):
        tls = parse_tls(*files)
    with trouble(listen, as_json):
        load_zstandard()
    return Receiving(listen, tls)


async def start_receiver(receiving: Receiving, source: Endpoint, as_json: bool) -> Receiver:
    """Raises typer.Exit if it may not or cannot listen there."""
    listen, tls = receiving.listen, receiving.tls
    receiver = Receiver(source, needs_password=needs_password(listen, tls))
    with trouble(listen, as_json):
        try:
            await receiver.check()
        except ConfigError as error:
            raise ConfigError(
                f"anyone who can reach it could read and change everything: {error}. Set one there "
                "(requirepass or ACL users), require client certificates (--tls-ca), or listen on 127.0.0.1."
            ) from None
    with listen_errors(listen, "--receive", as_json):
        where = await receiver.start(listen, tls)
    if needs_password(listen, tls):
        emit("receiver.open", receiver=where)
    emit("receiver.ready", receiver=where, tls="yes" if tls else "no")
    return receiver


def link_address(region: RegionConfig) -> Address:
    """How links reach a region: straight, or through its receiver."""
    address = parse_address(region.url)
    if region.compression is None or region.receiver is None:
        return address
    return address.through(region.receiver)


# ----------------------------------------------------------------------------------------------------
# Replicate

CONFIG_CHECK_S: Final = 2.0

RegionName = Annotated[
    str, typer.Option("--region", help="Which region of the file this is: its name or number.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log every batch.")]


class LogFormats(StrEnum):
    """How log lines look."""

    text = "text"
    json = "json"


LogFormat = Annotated[LogFormats, typer.Option("--log-format", help="text, or json: one object per line.")]
ListenOn = Annotated[
    str | None,
    typer.Option(
        help="Serve /metrics, /healthz and /readyz by HTTP here: HOST:PORT, or PORT on loopback. Default: "
        "`listen` in the file, else not at all."
    ),
]


def replicate(
    region: RegionName,
    config: ConfigFile = Path("braid.toml"),
    listen: ListenOn = None,
    receive: ReceiveOn = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    allow_open: AllowOpen = False,
    verbose: Verbose = False,
    log_format: LogFormat = LogFormats.text,
    as_json: Json = False,
) -> None:
    """Replicate one region to all the others, until stopped.

    Run one for each region, near its server. Several daemons of one region share the work. It is stateless:
    stop and restart it at any time. It reloads the file when it changes.

    Example: braid replicate --config braid.toml --region us-east
    """
    with trouble(config, as_json):
        regions = load(config)
        here = regions.named(region)
        _peers(regions, here)
    probes = parse_probes(listen or here.listen)
    receiving = parse_receiving(receive, (tls_cert, tls_key, tls_ca), allow_open=allow_open, as_json=as_json)
    log_to_stderr(verbose, log_format, region=here.name)
    as_json = as_json or log_format is LogFormats.json
    with contextlib.suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_run(config, regions, here, (probes, receiving), as_json))


def _prepare(here: RegionConfig, peers: Sequence[RegionConfig]) -> None:
    """Make the own server ready: its region, its functions."""
    is_cluster = is_cluster_at(here.url)
    _refuse_lost(here, peers, is_cluster=is_cluster)
    if is_cluster:
        _prepare_cluster(here)
    else:
        ask(here.url, initialise(here.id, here.name))
        _load_functions(here.url)


async def _await_server(here: RegionConfig, peers: Sequence[RegionConfig], as_json: bool) -> None:
    """`_prepare`, as soon as the server answers. An error that a retry does not mend ends the process."""
    trouble_log, clock, tries = Repeated(), asyncio.get_running_loop().time, 0
    while True:
        with trouble(here.url, as_json):
            try:
                await asyncio.to_thread(_prepare, here, peers)
            except LOST as error:
                if not is_away(error):
                    raise
                trouble_log.log("source.lost", clock(), why=f"{parse_address(here.url)}: {error}")
            else:
                if was := trouble_log.over(clock()):
                    emit("source.up", **was)
                return
        await back_off(tries)
        tries += 1


def _prepare_cluster(here: RegionConfig) -> None:
    """A daemon starts also while a primary is lost, if the others are its region and have the functions."""
    try:
        prepare_cluster(here.url, here.id, here.name)
    except LOST:
        found = region_at(here.url)
        if (found.id, found.name) != (here.id, here.name) or found.library < lua.VERSION:
            raise


def _load_functions(url: str) -> None:
    """Newer functions are kept: they work with this daemon too, so that an upgrade can be rolled back."""
    try:
        [before] = ask(url, lua.load())
        if before < lua.VERSION:
            emit("functions.loaded", was=before, now=lua.VERSION)
    except LibraryError:
        [found] = ask(url, lua.installed())
        if found <= lua.VERSION:
            raise


def _refuse_lost(here: RegionConfig, peers: Sequence[RegionConfig], *, is_cluster: bool) -> None:
    """Refuse a server that is fenced, or that is empty although a peer has its region: rejoin it first.

    A peer that does not answer may have it too, so an empty server becomes a region only if all answer. One
    that has no functions yet is as good as empty: its `braid init` was interrupted, or it lost data.
    """
    try:
        found = region_at(here.url)
        signs, is_empty = ["it is fenced"] if found.fenced else [], not found.library
    except NotARegionError:
        signs, is_empty = [], True
    if is_empty and not signs:
        signs = [f"{name} has data of it" for name in _knowing(peers, here)]
    if signs:
        what = "cluster" if is_cluster else "server"
        raise BraidError(
            f"this {what} lost the data of region {here.id} ({here.name}): {' and '.join(signs)}. "
            f"Restore it first: braid region rejoin {here.name}"
        )


def _knowing(peers: Sequence[RegionConfig], here: RegionConfig) -> list[str]:
    """The peers that have a region's writer. An error if none has, and one does not answer."""
    knowing, silent = list[str](), dict[str, str]()
    for peer in peers:
        try:
            if here.id in region_at(peer.url).writers:
                knowing.append(peer.name)
        except NotARegionError:
            continue
        except (BraidError, ServerError, OSError) as error:
            silent[peer.name] = str(error).rstrip(".")
    if silent and not knowing:
        name, why = next(iter(silent.items()))
        raise BraidError(
            f"this server is not a region, and {name} cannot say whether region {here.id} ({here.name}) "
            f"had data: {why}. Start again when it answers. If the region is new, run: "
            f"braid init --url URL --region {here.id} --name {here.name}"
        )
    return knowing


def log_to_stderr(verbose: bool, log_format: LogFormats = LogFormats.text, **facts: object) -> None:
    """facts: for every line of JSON."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format is LogFormats.json:
        handler.setFormatter(JsonFormatter(**facts))
    else:
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z")
        )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("braidstream").setLevel(logging.DEBUG if verbose else logging.INFO)


@dataclass(slots=True)
class Waiting:
    """What the pages say: of the daemon, and before there is one, that it waits for its server."""

    address: Address
    daemon: Daemon | None = None
    receiver: Receiver | None = None

    def families(self) -> list[Family]:
        if self.daemon is None:
            return families(None, engine_up=False)
        return [*self.daemon.families(), *(self.receiver.families() if self.receiver else ())]

    async def why_not_ready(self) -> str:
        if self.daemon is None:
            return f"the region's engine at {self.address} is not connected"
        return await self.daemon.why_not_ready()

    def note(self) -> str:
        return "" if self.daemon is None else self.daemon.note()


async def _run(
    path: Path,
    regions: Config,
    here: RegionConfig,
    listens: tuple[Listen | None, Receiving | None],
    as_json: bool,
) -> None:
    """listens: for probes, and for compressed links of peers. The probes are served first: there a daemon
    says that it waits for its server."""
    seen = _changed_at(path)
    probes, receiving = listens
    waiting = Waiting(parse_address(here.url))
    answers = Answers(
        here.name, lambda: waiting.families(), lambda: waiting.why_not_ready(), note=lambda: waiting.note()
    )
    prober, metrics = await serve_probes(probes, answers, option="--listen", as_json=as_json)
    if metrics:
        emit("daemon.listening", region=here.name, metrics=metrics)
    ready = asyncio.ensure_future(_await_server(here, regions.peers_of(here.name), as_json))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ready.cancel)
    try:
        await ready
    except asyncio.CancelledError:
        emit("daemon.stopped", region=here.name)
        raise
    daemon = Daemon(parse_address(here.url), durability_of(here))
    daemon.takeover.after_s = regions.groups.takeover_after_s
    daemon.schedules.schedules = regions.schedule
    daemon.set_durability(durability_of(here), here.durability_timeout_s)
    daemon.file = FileState(regions.shared)
    receiver = None if receiving is None else await start_receiver(receiving, daemon.source, as_json)
    waiting.daemon, waiting.receiver = daemon, receiver
    work = asyncio.ensure_future(daemon.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    follow = asyncio.ensure_future(_follow_config(path, seen, regions, here, daemon))
    follow.add_done_callback(lambda _: work.cancel())
    asides = [follow, asyncio.ensure_future(_report_ready(regions, here, daemon, metrics, as_json))]
    if metrics:
        asides.append(asyncio.ensure_future(daemon.measure_groups()))
    if receiver is not None:
        asides.append(asyncio.ensure_future(receiver.watch()))
    try:
        await work
    except asyncio.CancelledError:
        if follow.done():
            follow.result()
            raise typer.Exit(1) from None
        raise
    finally:
        prober.close()
        if receiver is not None:
            receiver.close()
        for task in asides:
            task.cancel()
        emit("daemon.stopped", region=here.name)


async def _report_ready(
    regions: Config, here: RegionConfig, daemon: Daemon, metrics: str, as_json: bool
) -> None:
    probes = {"metrics": metrics} if metrics else {}
    await daemon.ready.wait()
    peers = [peer.name for peer in regions.peers_of(here.name)]
    emit("daemon.ready", region=here.name, peers=",".join(peers))
    facts = {"region": here.name, "peers": peers, **probes}
    typer.echo(
        json.dumps(facts) if as_json else f"{here.name}: replicating to {', '.join(peers) or 'no peers'}."
    )


def durability_of(here: RegionConfig) -> Durability | None:
    return None if here.durability is None else Durability.parse(here.durability)


def _peers(regions: Config, here: RegionConfig) -> dict[str, tuple[int, Address]]:
    found = {}
    for peer in regions.region:
        if peer.id != here.id:
            try:
                found[peer.name] = peer.id, link_address(peer)
            except ConfigError as error:
                raise ConfigError(f"region {peer.name!r}: {error}") from None
    return found


def _selections(regions: Config, here: RegionConfig) -> dict[str, tuple[Selection, ...]]:
    """For each peer: the selections that exclude something, of this region and of the peer."""
    return {
        peer.name: tuple(each.selection for each in (here, peer) if each.selection != Selection())
        for peer in regions.peers_of(here.name)
    }


def _changed_at(path: Path) -> int:
    """When the file was last changed; 0 if it is gone."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


async def _follow_config(path: Path, seen: int, regions: Config, here: RegionConfig, daemon: Daemon) -> None:
    """Set the peers of the file, now and whenever it changes. An invalid file changes nothing.

    seen: when the file was changed that `regions` is. Ends when the file has another server or number for our
    own region.
    """
    peers, chosen = _peers(regions, here), _selections(regions, here)
    while True:
        now = _changed_at(path)
        if now != seen:
            try:
                found = load(path)
                now_here = found.named(here.name)
                address = parse_address(now_here.url)
                if (now_here.id, address) != (here.id, daemon.source.address):
                    emit("config.moved", region=here.name, was=daemon.source.address, url=address)
                    return
                peers, chosen = _peers(found, now_here), _selections(found, now_here)
                daemon.set_durability(durability_of(now_here), now_here.durability_timeout_s)
                daemon.takeover.after_s = found.groups.takeover_after_s
                daemon.schedules.schedules = found.schedule
                daemon.file = FileState(found.shared)
                names = ",".join(region.name for region in found.region)
                emit("config.changed", regions=names, what=changes(regions, found))
                regions = found
            except BraidError as error:
                daemon.file = replace(daemon.file, error=str(error))
                emit("config.broken", why=error)
            seen = now
        daemon.set_peers(peers)
        daemon.select(chosen)
        if not peers:
            daemon.ready.set()
        await asyncio.sleep(CONFIG_CHECK_S)

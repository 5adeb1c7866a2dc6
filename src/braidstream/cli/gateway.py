"""`braid gateway`: a proxy for any Redis client, in front of a region's engine."""

import asyncio
import json
import os
import resource
import signal
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from braidstream.cli.probing import listen_errors, parse_probes, serve_probes
from braidstream.cli.reach import Json, trouble
from braidstream.cli.replicate import LogFormat, LogFormats, log_to_stderr
from braidstream.config import RegionConfig, load
from braidstream.gateway.hub import Settings
from braidstream.gateway.server import Gateway
from braidstream.net.bulk import shown
from braidstream.net.listen import Listen
from braidstream.net.wire import parse_address
from braidstream.observability.events import emit
from braidstream.observability.probes import Answers

_LISTEN: Final = "127.0.0.1:6390"
# Files that are neither a client nor a client's own connection: lanes, the log, what Python opens.
_OTHER_FILES: Final = 64

Url = Annotated[str | None, typer.Option(help="The region's server, like redis://user:password@host:6379.")]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="With --region: the file that lists the regions, instead of --url. Default: BRAID_CONFIG, or "
        "braid.toml.",
    ),
]
RegionName = Annotated[
    str | None, typer.Option("--region", help="Which region of the file this is: its name or number.")
]
ListenOn = Annotated[
    str | None,
    typer.Option(
        help=f"Where clients connect: HOST:PORT (port 0: a free one) or unix:/path. Default: the address in "
        f"the file, or {_LISTEN}."
    ),
]
MaxClients = Annotated[int, typer.Option(min=1, help="Maximum number of clients.")]
MaxBackends = Annotated[
    int,
    typer.Option(
        "--backends", min=1, help="Maximum number of idle clients that keep their own engine connection."
    ),
]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate (PEM). Clients then connect with TLS.")]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key (PEM), if not in the same file.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="CA (PEM) of client certificates. Clients then must present one."),
]

AllowOpen = Annotated[
    bool,
    typer.Option("--allow-open", help="Listen on the network even if the server requires no password."),
]

MetricsOn = Annotated[
    str | None,
    typer.Option(
        help="Serve /metrics, /healthz and /readyz by HTTP here: HOST:PORT, or PORT on loopback. Default: "
        "`gateway_metrics` in the file, else not at all."
    ),
]


def gateway(
    url: Url = None,
    config: ConfigFile = None,
    region: RegionName = None,
    listen: ListenOn = None,
    metrics: MetricsOn = None,
    maxclients: MaxClients = 20_000,
    backends: MaxBackends = 4_000,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    allow_open: AllowOpen = False,
    log_format: LogFormat = LogFormats.text,
    as_json: Json = False,
) -> None:
    """Serve any Redis client, in any language.

    Stream commands work on braidstream's streams. All other commands pass to the server unchanged. The
    gateway is stateless: run several and restart any of them. Clients log in with their own users.

    Example: braid gateway --url redis://localhost:6379 --listen 127.0.0.1:6390
    """
    if region is not None and url is None and config is None:
        config = Path(os.environ.get("BRAID_CONFIG") or "braid.toml")
    if (url is None) == (config is None) or (config is None) != (region is None):
        raise typer.BadParameter("give either --url, or --config and --region.")
    others: tuple[RegionConfig, ...] = ()
    if config is not None and region is not None:
        with trouble(config, as_json):
            known = load(config)
            here, others = known.named(region), known.peers_of(region)
        url, listen, metrics = here.url, listen or here.gateway, metrics or here.gateway_metrics
    assert url is not None
    try:
        where = Listen.parse(listen or _LISTEN)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    probes = parse_probes(metrics)
    with trouble(tls_cert or Path(), as_json):
        tls = _tls(tls_cert, tls_key, tls_ca)
    settings = Settings(maxclients=maxclients, backends=backends, tls=tls, allow_open=allow_open)
    log_to_stderr(verbose=False, log_format=log_format)
    with trouble(url, as_json), asyncio.Runner(loop_factory=_loop) as runner:
        server = Gateway(parse_address(url), _within_files(settings), others)
        runner.run(_serve(server, (where, probes), url, as_json))


def _within_files(settings: Settings) -> Settings:
    """As many open files as clients may need, as far as the system allows; or fewer clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * settings.maxclients + _OTHER_FILES
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    room = max(allowed - _OTHER_FILES, 2)
    backends = min(settings.backends, room // 2)
    fits = replace(settings, maxclients=min(settings.maxclients, room - backends), backends=backends)
    if fits.maxclients < settings.maxclients:
        emit("gateway.limited", maxclients=fits.maxclients, asked=settings.maxclients, files=allowed)
    return fits


def _loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, as by `pip install braidstream[gateway]`: see docs/benchmarks.md."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _tls(cert: Path | None, key: Path | None, ca: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key or ca:
            raise typer.BadParameter("--tls-key and --tls-ca need --tls-cert.")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
    return context


async def _serve(server: Gateway, addresses: tuple[Listen, Listen | None], url: str, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listen, probes = addresses
    with listen_errors(listen, "--listen", as_json):
        where = await server.start(listen)
    answers = Answers(server.region.name, server.families, server.why_not_ready)
    prober, metrics = await serve_probes(probes, answers, option="--metrics", as_json=as_json)
    region = server.region
    more = {"metrics": metrics} if metrics else {}
    emit("gateway.ready", region=region.name, gateway=where, **more)
    facts = {"gateway": where, "region": region.id, "name": region.name, **more}
    text = f"{where} serves region {region.id} ({region.name}) at {shown(url)}. Ctrl-C stops it."
    typer.echo(json.dumps(facts) if as_json else text)
    await stop.wait()
    prober.close()
    await server.stop()
    emit("gateway.stopped", region=region.name)

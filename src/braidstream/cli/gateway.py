"""`braid gateway`: a proxy for any Redis client, in front of a region's engine."""

import asyncio
import os
import re
import resource
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from braidstream.cli.reach import Json, report, trouble
from braidstream.cli.replicate import LogFormat, LogFormats, log_to_stderr
from braidstream.cli.serving import listen_errors, new_loop, parse_probes, parse_tls, read_users, serve_probes
from braidstream.config import RegionConfig, load
from braidstream.engine.address import Listen, parse_address, shown
from braidstream.engine.resp import Limits
from braidstream.engine.sentinels import Place
from braidstream.gateway.announce import parse_announced
from braidstream.gateway.hub import Settings
from braidstream.gateway.server import Gateway
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
ReusePort = Annotated[
    bool,
    typer.Option(
        "--reuse-port",
        help="Share the port with other gateways of the same user that have this option: one for each core "
        "that you want to use. Linux only.",
    ),
]
MaxClients = Annotated[
    int,
    typer.Option(
        min=1,
        help="Maximum number of clients. Fewer if the limit of open files is lower.",
    ),
]
MaxBackends = Annotated[
    int,
    typer.Option(
        "--backends", min=1, help="Maximum number of idle clients that keep their own engine connection."
    ),
]
QueryLimit = Annotated[
    str,
    typer.Option(
        "--client-query-buffer-limit", help="Maximum size of a command, like 64mb. Before a login: 160kb."
    ),
]
OutputLimit = Annotated[
    str,
    typer.Option(
        "--client-output-buffer-limit",
        help="Maximum size of a reply to a stream command or MULTI, which the gateway holds in memory.",
    ),
]
ClientsMemory = Annotated[
    str,
    typer.Option(
        "--maxmemory-clients",
        help="Memory for commands and unread replies of all clients. Beyond it the client that holds most is "
        "disconnected.",
    ),
]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate (PEM). Clients then connect with TLS.")]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key (PEM), if not in the same file.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(help="CA (PEM) of client certificates. Clients then must present one."),
]
TlsUsers = Annotated[
    Path | None,
    typer.Option(
        help="File with lines NAME PASSWORD. A client whose certificate has this common name is logged in as "
        "that user of the engine. Needs --tls-ca."
    ),
]
FunctionsAdmin = Annotated[
    str,
    typer.Option(
        help="User of the engine who may change braidstream's functions through the gateway: FUNCTION FLUSH, "
        "and LOAD, DELETE and RESTORE of them. Default: no user.",
        show_default=False,
    ),
]

Announce = Annotated[
    str | None,
    typer.Option(
        help="For cluster clients: HOST:PORT of all gateways of the region, with commas. Clients see a "
        "cluster whose nodes they are."
    ),
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
    ctx: typer.Context,
    url: Url = None,
    config: ConfigFile = None,
    region: RegionName = None,
    listen: ListenOn = None,
    metrics: MetricsOn = None,
    reuse_port: ReusePort = False,
    maxclients: MaxClients = 20_000,
    backends: MaxBackends = 4_000,
    query_limit: QueryLimit = "1gb",
    output_limit: OutputLimit = "1gb",
    clients_memory: ClientsMemory = "1gb",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_users: TlsUsers = None,
    functions_admin: FunctionsAdmin = "",
    announce: Announce = None,
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
        tls = parse_tls(tls_cert, tls_key, tls_ca)
    if tls_users is not None and tls_ca is None:
        raise typer.BadParameter("--tls-users needs --tls-ca.")
    with trouble(tls_users or Path(), as_json):
        users = {} if tls_users is None else read_users(tls_users)
    if reuse_port and sys.platform != "linux":
        raise typer.BadParameter("--reuse-port needs Linux: elsewhere one process would get all clients.")
    if reuse_port and where.path is not None:
        raise typer.BadParameter("--reuse-port needs a TCP address: --listen HOST:PORT.")
    with trouble(url, as_json):
        announced = _announced(announce, where, url)
    settings = Settings(
        maxclients=maxclients,
        backends=backends,
        reuse_port=reuse_port,
        tls=tls,
        allow_open=allow_open,
        announce=announced,
        users=users,
        limits=Limits(buffered=_size(query_limit, "--client-query-buffer-limit")),
        most_reply=_size(output_limit, "--client-output-buffer-limit"),
        maxmemory_clients=_size(clients_memory, "--maxmemory-clients"),
        functions_admin=functions_admin,
    )
    log_to_stderr(verbose=False, log_format=log_format)
    with trouble(url, as_json), asyncio.Runner(loop_factory=new_loop) as runner:
        server = Gateway(parse_address(url), _within_files(settings, chosen=_is_chosen(ctx)), others)
        runner.run(_serve(server, (where, probes), url, as_json))


def _size(text: str, option: str) -> int:
    """Bytes, with the units of redis.conf."""
    found = re.fullmatch(r"([0-9]{1,15})(b|k|kb|m|mb|g|gb)?", text.strip().lower())
    if found is None or not int(found[1]):
        raise typer.BadParameter(f"{option} {text}: write a size like 512mb or 1gb.")
    unit = found[2] or "b"
    base = 1024 if unit.endswith("b") else 1000
    return int(found[1]) * int(base ** "bkmg".index(unit[0]))


def _announced(announce: str | None, listen: Listen, url: str) -> tuple[Place, ...]:
    if announce is None:
        return ()
    if listen.path is not None:
        raise typer.BadParameter("--announce needs a TCP address: --listen HOST:PORT.")
    if parse_address(url).db:
        raise typer.BadParameter("--announce: a cluster has database 0 only, and the URL names another one.")
    try:
        return parse_announced(announce)
    except ValueError as error:
        raise typer.BadParameter(f"--announce: {error}") from None


def _is_chosen(ctx: typer.Context) -> bool:
    """Whether the user named --maxclients."""
    source = ctx.get_parameter_source("maxclients")
    return source is not None and source.name != "DEFAULT"


def _within_files(settings: Settings, *, chosen: bool) -> Settings:
    """As many open files as clients may need, as far as the system allows; or fewer clients.

    chosen: the user named the number. Half of the default is as many as the engine serves by default.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * settings.maxclients + _OTHER_FILES
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    room = max(allowed - _OTHER_FILES, 2)
    backends = min(settings.backends, room // 2)
    fits = replace(settings, maxclients=min(settings.maxclients, room - backends), backends=backends)
    if fits.maxclients < (settings.maxclients if chosen else settings.maxclients // 2):
        emit("gateway.limited", maxclients=fits.maxclients, asked=settings.maxclients, files=allowed)
    return fits


async def _serve(server: Gateway, addresses: tuple[Listen, Listen | None], url: str, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    listen, probes = addresses
    with listen_errors(listen, "--listen", as_json):
        where = await server.start(listen)
    region = server.region
    answers = Answers(region.name, server.families, server.why_not_ready, server.behind, server.behind)
    prober, metrics = await serve_probes(probes, answers, option="--metrics", as_json=as_json)
    more: dict[str, object] = {"metrics": metrics} if metrics else {}
    emit("gateway.ready", region=region.name, gateway=where, **more)
    facts = {"gateway": where, "region": region.id, "name": region.name, **more}
    text = f"{where} serves region {region.id} ({region.name}) at {shown(url)}. Ctrl-C stops it."
    report(as_json, facts, text)
    await stop.wait()
    prober.close()
    await server.stop()
    emit("gateway.stopped", region=region.name)

"""`braid console`: a web page that shows regions, streams, entries and groups."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from braidstream.cli.reach import ConfigFile, Json, trouble
from braidstream.cli.regions import OneUrl, choose_regions
from braidstream.cli.serving import listen_errors
from braidstream.config import Config
from braidstream.engine.address import Listen
from braidstream.errors import BraidError, ConfigError

_LISTEN: Final = "127.0.0.1:8380"
_VARIABLE: Final = "BRAID_CONSOLE_PASSWORD"

ListenOn = Annotated[str, typer.Option(help="Where browsers connect: HOST:PORT, or PORT on this machine.")]
PasswordFile = Annotated[
    Path | None, typer.Option(help=f"File with the password for the console. Or set {_VARIABLE}.")
]
ProxyHeader = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Header with the user's name, like X-Forwarded-User, set by a reverse proxy that has "
        "authenticated them.",
    ),
]
ProxyFrom = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        help="With --proxy-header: an address that the proxy connects from. Default: this machine.",
    ),
]
AllowWrite = Annotated[
    bool, typer.Option("--allow-write", help="Show buttons that change something. Default: read-only.")
]
Audit = Annotated[Path | None, typer.Option(help="Show this result of `braid spark audit --json`.")]
TlsCert = Annotated[Path | None, typer.Option(help="Certificate (PEM). Browsers then connect with https.")]
TlsKey = Annotated[Path | None, typer.Option(help="Its private key (PEM), if not in the same file.")]


def console(
    ctx: typer.Context,
    url: OneUrl = None,
    config: ConfigFile = Path("braid.toml"),
    listen: ListenOn = _LISTEN,
    password_file: PasswordFile = None,
    proxy_header: ProxyHeader = None,
    proxy_from: ProxyFrom = None,
    allow_write: AllowWrite = False,
    audit: Audit = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    as_json: Json = False,
) -> None:
    """Serve a web page that shows regions, links, streams, entries and groups.

    It reads the servers of the file, with limits on every query, and changes nothing unless --allow-write is
    given. With --url it shows one region, and needs no file. Without a password or a proxy it listens on this
    machine only. Needs the extra `console`: pip install -e '.[console]'

    Example: braid console --config braid.toml
    """
    with trouble(url or config, as_json):
        _require_extra()
        regions = choose_regions(ctx, url, config)
    where = _parse_listen(listen)
    if tls_key is not None and tls_cert is None:
        raise typer.BadParameter("--tls-key needs --tls-cert.")
    if tls_cert is not None:
        with trouble(tls_cert, as_json):
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(tls_cert, tls_key)
    with trouble(url or config, as_json):
        from braidstream.console.visitors import AccessRules

        rules = AccessRules(_password(password_file), proxy_header or "", _proxies(proxy_header, proxy_from))
    if rules.is_open and not where.is_local:
        raise typer.BadParameter(
            f"{where} can be reached from other machines: set a password (--password-file or {_VARIABLE}) or "
            "--proxy-header."
        )
    with listen_errors(where, "--listen", as_json):
        opened = socket.create_server(
            (where.host, where.port), family=socket.AF_INET6 if ":" in where.host else socket.AF_INET
        )
    with trouble(url or config, as_json), opened:
        shown = (url is None, allow_write, audit)
        asyncio.run(_serve(regions, opened, rules, shown, (tls_cert, tls_key), as_json))


def _require_extra() -> None:
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise BraidError("the console is not installed. Run: pip install 'braidstream[console]'") from None


def _parse_listen(text: str) -> Listen:
    try:
        return Listen.parse_http(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _password(file: Path | None) -> str:
    """Empty if there is none."""
    if file is None:
        return os.environ.get(_VARIABLE, "")
    try:
        found = file.read_text(encoding="utf-8").strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"the password file {file} cannot be read: {why}.") from None
    if not found:
        raise ConfigError(f"the password file {file} is empty.")
    return found


def _proxies(header: str | None, addresses: list[str] | None) -> frozenset[str]:
    if addresses and header is None:
        raise typer.BadParameter("--proxy-from needs --proxy-header.")
    try:
        return frozenset(str(ip_address(each)) for each in addresses or ("127.0.0.1", "::1"))
    except ValueError:
        raise typer.BadParameter("--proxy-from is an IP address.") from None


async def _serve(
    regions: Config,
    opened: socket.socket,
    rules: Any,
    shown: tuple[bool, bool, Path | None],
    tls: tuple[Path | None, Path | None],
    as_json: bool,
) -> None:
    import uvicorn

    from braidstream.cli.replicate import log_to_stderr
    from braidstream.console.access import RegionAccess
    from braidstream.console.page import Console
    from braidstream.console.samples import LatestFindings, Sampler
    from braidstream.console.visitors import Visitors
    from braidstream.console.web_app import ClosesIdle, web_app

    class Server(uvicorn.Server):
        """uvicorn's, without its signal handlers: they would end the process by the signal."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    log_to_stderr(verbose=False)
    host, port = opened.getsockname()[:2]
    access = {each.name: RegionAccess(each) for each in regions.region}
    visitors = Visitors(rules, port=port, is_tls=tls[0] is not None)
    has_file, allow_write, audit = shown
    sampler, findings = Sampler(regions, has_file=has_file), LatestFindings(has_file=has_file)
    state = Console(regions, access, sampler, visitors, allow_write, audit, findings)
    cert, key = (None if each is None else str(each) for each in tls)
    server = Server(
        uvicorn.Config(
            web_app(state),
            http=ClosesIdle,
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=256,
            timeout_graceful_shutdown=2,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
    )

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    sampling = asyncio.create_task(sampler.run())
    scheme = "https" if cert else "http"
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"
    mode = "may write" if allow_write else "read-only"
    count = f"{len(regions.region)} region{'' if len(regions.region) == 1 else 's'}"
    text = f"{address} shows {count}, {mode}. Ctrl-C stops it."
    typer.echo(json.dumps({"url": address, "write": allow_write}) if as_json else text)
    try:
        await server.serve(sockets=[opened])
    finally:
        sampling.cancel()
        for each in access.values():
            await each.close()

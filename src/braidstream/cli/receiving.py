"""`braid replicate --receive`: listen for compressed links of peers (replication/receiver.py)."""

from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Annotated

import typer

from braidstream.cli.probing import listen_errors
from braidstream.cli.reach import trouble
from braidstream.cli.serving_tls import parse_tls
from braidstream.config import RegionConfig
from braidstream.errors import ConfigError
from braidstream.net.address import Address, parse_address
from braidstream.net.compressed import load_zstandard
from braidstream.net.exposure import needs_password
from braidstream.net.listen import Listen
from braidstream.observability.events import emit
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.receiver import Receiver

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

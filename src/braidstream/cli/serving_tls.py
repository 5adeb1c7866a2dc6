"""--tls-cert, --tls-key and --tls-ca of commands that listen for other programs than browsers."""

import ssl
from pathlib import Path

import typer


def parse_tls(cert: Path | None, key: Path | None, ca: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key or ca:
            raise typer.BadParameter("--tls-key and --tls-ca need --tls-cert.")
        return None
    return tls_context(cert, key, ca)


def tls_context(cert: Path, key: Path | None, ca: Path | None) -> ssl.SSLContext:
    """ca: clients need a certificate of it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
    return context

"""--tls-cert, --tls-key and --tls-ca of commands that listen for other programs than browsers."""

import ssl
from pathlib import Path

import typer

from braidstream.errors import ConfigError


def parse_tls(cert: Path | None, key: Path | None, ca: Path | None) -> ssl.SSLContext | None:
    if cert is None:
        if key or ca:
            raise typer.BadParameter("--tls-key and --tls-ca need --tls-cert.")
        return None
    return tls_context(cert, key, ca)


def read_users(path: Path) -> dict[str, str]:
    """The lines NAME PASSWORD of a file. Raises ConfigError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"{path}: {why}.") from None
    users = dict[str, str]()
    for number, line in enumerate(lines, 1):
        name, _, password = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if not password.strip() or name in users:
            raise ConfigError(
                f"line {number} of {path} must be NAME PASSWORD, one line for each user. Correct it."
            )
        users[name] = password.strip()
    return users


def tls_context(cert: Path, key: Path | None, ca: Path | None) -> ssl.SSLContext:
    """ca: clients need a certificate of it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED if ca else ssl.CERT_NONE
    return context

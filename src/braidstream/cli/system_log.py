"""Administrative verbs in the machine's system log, where sudo and logins are: who did what, from where."""

import getpass
import logging
import os
from logging.handlers import SysLogHandler
from typing import Final

from braidstream.observability.events import emit

_DEVICE: Final = "/dev/log"


class _Handler(SysLogHandler):
    """Without a system log it would print a traceback for every record."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def log_change(verb: str, device: str = _DEVICE, **facts: object) -> None:
    """Called before the change. Without a system log (a container) nothing is written."""
    handler = _Handler(device, SysLogHandler.LOG_AUTHPRIV)
    handler.ident = f"braid[{os.getpid()}]: "
    log = logging.getLogger("braidstream")
    before, where = log.level, os.environ.get("SSH_CLIENT", "").partition(" ")[0]
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        emit("admin.changed", verb=verb, user=_user(), client=where or "-", **facts)
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        handler.close()


def _user() -> str:
    """Who typed it, also with sudo."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # the number has no name
        return str(os.getuid())

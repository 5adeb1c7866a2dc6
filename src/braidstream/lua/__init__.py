"""The Redis Functions library: its text, and the plans that load it and make a database a region.

The library is one text, joined from the .lua files beside this one. Its version is a number that
only grows. Loading compares and replaces under WATCH, so of two clients that load at once the newer
one wins, whatever the order.
"""

from functools import cache
from importlib import resources
from typing import Any, Final

from braidstream.errors import LibraryError, ReplyError
from braidstream.model.command import Command
from braidstream.model.ids import CLOCK_BOUND_MS
from braidstream.model.keys import CONFIG
from braidstream.protocol.plan import Batch, Plan

VERSION: Final = 7
NAME: Final = "braidstream"
_PARTS: Final = (
    *("rights", "id", "clock", "vector", "strand", "chosen", "settings", "group", "braid", "journal"),
    *("entry", "idempotence", "acks", "glance", "merge", "mend", "region", "database", "library"),
)
_TRIES: Final = 10


@cache
def source(version: int = VERSION) -> str:
    """The library as the engine gets it."""
    folder = resources.files(__package__)
    parts = [folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in _PARTS]
    numbers = f"local VERSION = {version}\nlocal CLOCK_BOUND_MS = {CLOCK_BOUND_MS}\n"
    return f"#!lua name={NAME}\n{numbers}" + "\n".join(parts)


def installed() -> Plan[int]:
    """The version of the library in the engine; 0 if there is none."""
    [reply] = yield Batch([("FCALL_RO", "bs_version", 0)], resend=True, attempt=True)
    if isinstance(reply, ReplyError):
        if "not found" in reply.text.lower():
            return 0
        raise reply
    return int(reply)


def load(text: str | None = None, *, version: int = VERSION) -> Plan[int]:
    """Bring the engine to this library, in place and under load. Returns the version it had before.

    Loading the same version again changes nothing; but functions are the server's, and each database
    that is a region notes which it relies on. A newer library stays: replacing it would break the
    clients that need it, so an older client is told to upgrade.
    """
    for _ in range(_TRIES):
        _, noted = yield Batch([("WATCH", CONFIG), ("HGET", CONFIG, "library")])
        try:
            before = yield from installed()
        except ReplyError:
            yield Batch([("UNWATCH",)])
            raise
        if before > version:
            yield Batch([("UNWATCH",)])
            raise LibraryError(
                f"the engine has version {before} of the braidstream functions, this client brings "
                f"{version} and will not replace a newer one. Upgrade it: pip install -U braidstream"
            )
        if before == version and noted == b"%d" % version:
            yield Batch([("UNWATCH",)])
            return before
        commands: list[Command] = [("HSET", CONFIG, "library", version)]
        if before < version:
            commands.insert(0, ("FUNCTION", "LOAD", "REPLACE", text or source(version)))
        done: Any = yield Batch(commands, atomic=True)
        if done is not None:
            return before
    raise LibraryError(f"others kept changing {CONFIG.decode()} while the functions were loaded. Try again.")

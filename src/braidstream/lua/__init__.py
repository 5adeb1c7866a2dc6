"""The Redis Functions library: its text, and the plans that load it and make a database a region.

The library is one text, joined from the .lua files in this folder (parts.py). Its version is a number that
only grows. Loading compares and replaces under WATCH: if two clients load at once, the newer library
wins.
"""

from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any, Final

from braidstream.errors import LibraryError, ReplyError
from braidstream.lua.parts import namespaces, ordered, read_parts
from braidstream.model.fields import CREATORS, FIELD_BYTES, LISTS_BYTES, ConfigField, MetaField, named
from braidstream.model.ids import CLOCK_BOUND_MS, WRITERS
from braidstream.model.journal import KEPT, KEPT_MS, JournalWord
from braidstream.model.keys import CHOSEN, CONFIG, GENERATED, LOG, PREFIX
from braidstream.model.region import Region
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Plan, ending_watch
from braidstream.plan.retries import Retries

VERSION: Final = 29
# The oldest version that links replicate with: regions are upgraded one after the other.
OLDEST: Final = 28
NAME: Final = "braidstream"


@cache
def source(version: int = VERSION) -> str:
    """The library's text, as it is loaded into the engine."""
    parts = read_parts(resources.files(__package__))
    tables = namespaces(parts)
    declared = f"local {', '.join(tables)} = {', '.join('{}' for _ in tables)}"
    texts = (part.text for part in ordered(parts))
    return "\n".join((f"#!lua name={NAME}", f"local VERSION = {version}", declared, *_shared(), *texts))


def _shared() -> Iterator[str]:
    """Constants that Python and Lua share, as Lua."""
    yield f"local CLOCK_BOUND_MS, WRITERS, KEY_PREFIX = {CLOCK_BOUND_MS}, {WRITERS}, '{PREFIX.decode()}'"
    yield f"valid.FIELD, valid.LISTS, valid.CREATORS = {FIELD_BYTES}, {LISTS_BYTES}, {CREATORS}"
    yield f"local KIND = {{ GENERATED = '{GENERATED}', CHOSEN = '{CHOSEN}', LOG = '{LOG}' }}"
    yield f"journals.KEPT_MS, journals.KEPT = {KEPT_MS}, {KEPT}"
    for table, fields in (("META", MetaField), ("CONFIG", ConfigField), ("JOURNAL", JournalWord)):
        words = ", ".join(f"{name} = '{field.decode()}'" for name, field in named(fields))
        yield f"local {table} = {{ {words} }}"


FUNCTIONS_VERSION: Final = ("FCALL_RO", "bs_version", 0)


def version_of(reply: Any) -> int | None:
    """The version in a reply to FUNCTIONS_VERSION: 0 if there are no functions, None if it does not say."""
    if isinstance(reply, ReplyError):
        return 0 if "not found" in reply.text.lower() else None
    return int(reply)


def installed() -> Plan[int]:
    """The version of the library in the engine; 0 if there is none."""
    [reply] = yield Batch([FUNCTIONS_VERSION], resend=True, attempt=True)
    version = version_of(reply)
    if version is None:
        raise reply
    return version


def read_changed() -> Plan[str]:
    """Why the functions in the engine are not those that we ship; empty if they are, if they are older, or if
    this user may not read them (+function|list). One round trip.

    Functions run with the rights of their caller: a user who replaces them gets those of all clients and
    daemons. Only their text shows it, because a function can say what it likes of itself.
    """
    code: Command = ("FUNCTION", "LIST", "LIBRARYNAME", NAME, "WITHCODE")
    version, libraries = yield Batch([FUNCTIONS_VERSION, code], resend=True, attempt=True)
    if isinstance(libraries, ReplyError):
        return ""
    found = version_of(version)
    if not libraries or found is None or found < VERSION:
        return ""
    if found > VERSION:
        return f"they claim version {found}, and this braidstream has {VERSION}: they cannot be checked"
    row = libraries[0]
    facts = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
    is_same = bytes(facts[b"library_code"]) == source().encode()
    return "" if is_same else f"they are not those of version {VERSION}: somebody has changed them"


def require_current(region: Region) -> Region:
    """The same region; an error if its functions are older than this client needs."""
    if not region.library:
        raise LibraryError(
            "nothing says that this server has the braidstream functions: `braid init` was interrupted, or "
            f"the server lost data. If it had data: braid region rejoin {region.name}. If it is new: "
            f"braid init --url URL --region {region.id} --name {region.name}"
        )
    if region.library < VERSION:
        raise LibraryError(
            f"the engine has version {region.library} of the braidstream functions, this client needs "
            f"{VERSION}. Bring it up to date: "
            f"braid init --url URL --region {region.id} --name {region.name}"
        )
    return region


def refuse_newer(before: int, version: int) -> None:
    """Keep a library that is newer than ours: other clients need it."""
    if before > version:
        raise LibraryError(
            f"the engine has version {before} of the braidstream functions, this client brings "
            f"{version} and will not replace a newer one. Upgrade it: pip install -U braidstream. If you "
            "have loaded no newer ones: braid init --force"
        )


def _claimed() -> Plan[int]:
    """The same, of functions that may say anything."""
    [reply] = yield Batch([FUNCTIONS_VERSION], resend=True, attempt=True)
    return reply if isinstance(reply, int) else 0


def load(text: str | None = None, *, version: int = VERSION, force: bool = False) -> Plan[int]:
    """Bring the engine to this library, in place and under load. Returns the version it had before.

    Loading the same version again changes nothing, except that each database that is a region records
    the version it relies on (functions belong to the server). A newer library is kept, because other
    clients need it; the older client gets an error that says to upgrade. force: replace it, whatever it is.
    """
    return (yield from ending_watch(_load(text or source(version), version, force=force)))


def _load(text: str, version: int, *, force: bool) -> Plan[int]:
    retries = Retries(
        f"others kept changing {CONFIG.decode()} while the functions were loaded. Try again.",
        error=LibraryError,
    )
    while True:
        retries.count()
        _, noted = yield Batch([("WATCH", CONFIG), ("HGET", CONFIG, ConfigField.LIBRARY)])
        before = (yield from _claimed()) if force else (yield from installed())
        if not force:
            refuse_newer(before, version)
        if before == version and noted == b"%d" % version and not force:
            yield Batch([("UNWATCH",)])
            return before
        commands: list[Command] = [("HSET", CONFIG, ConfigField.LIBRARY, version)]
        if before < version or force:
            commands.insert(0, ("FUNCTION", "LOAD", "REPLACE", text))
        done: Any = yield Batch(commands, atomic=True)
        if done is not None:
            return before

"""Native streams taken over in place, given back, and strays brought in: what `braid adopt` runs.

adopt     one function call for each stream, in constant time (lua/native.lua)
release   the reverse, while the region has no peers. Entries appended since then are moved back in pages.
strays    native streams under the name of a managed one: a client that still talks to the engine wrote
          them. Their entries are appended to the stream, with new IDs, in their order.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from braidstream.commands.arguments import refuse_long_name
from braidstream.errors import BraidError, ReplyError
from braidstream.lua import require_current
from braidstream.model import keys
from braidstream.model.fields import ConfigField
from braidstream.model.glob import matcher
from braidstream.model.registry import Registry, bell, parse_each
from braidstream.model.strand import Command, facts
from braidstream.operations.streams import list_streams
from braidstream.plan.append import ensure_command
from braidstream.plan.lookup import checked_now, read_any_region, read_registry, registry_of, scan_page
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import Retries
from braidstream.plan.view import View

# What the functions answer for a stream that is not, or no longer, what was looked for.
_WHY: Final = {
    "BSNONATIVE": "it is not a native stream any more",
    "BSTAKEN": "a stream of that name exists already, here or in a peer. Append its entries to that stream, "
    "without its groups: braid adopt --strays",
    "BSEXPIRES": "it has a time to live. Take that away first with: PERSIST",
    "BSNOTADOPTED": "it was not adopted here",
    "BSPEERS": "it has entries of other regions, which a native stream cannot have",
    "BSSTRAY": "another key has its name. If that is a native stream, first run: braid adopt --strays",
    "BSLOG": "a log has its name, and takes no entries with fields. Rename the native stream, then adopt it",
    "BSORDER": "an ID that was chosen since is after generated ones, and those of a native stream only rise",
    "BSWIDE": "it has an entry with too many fields",
    "BSHIGH": "it has an entry with too large a sequence number",
    "CROSSSLOT": "on this cluster, a stream of its name is in another slot. Rename it first: RENAME",
}


@dataclass(frozen=True, slots=True)
class NativeStream:
    """A native stream. is_stray: it has the name of a managed stream, so our clients do not see it.

    entries: of a stray also those that an interrupted `braid adopt --strays` has still to append. Its groups
    are dropped then.
    """

    name: bytes
    entries: int
    groups: int = 0
    pending: int = 0
    is_stray: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What became of one stream. problem: why nothing was done."""

    name: bytes
    entries: int = 0
    groups: int = 0
    problem: str = ""


def find_native(patterns: Iterable[bytes] = (b"*",)) -> Plan[list[NativeStream]]:
    """The native streams whose names match one of the patterns, sorted. Scans the database."""
    wanted = [matcher(pattern) for pattern in patterns]
    found, cursor = dict[bytes, NativeStream](), 0
    while True:
        cursor, listed = yield from scan_page(cursor, b"*", kind="stream")
        names = [name for key in listed if (name := _name_of(key)) is not None]
        mine = [name for name in dict.fromkeys(names) if any(matches(name) for matches in wanted)]
        for stream in (yield from _described(mine)):
            found[stream.name] = stream
        if not cursor:
            return [found[name] for name in sorted(found)]


def _name_of(key: bytes) -> bytes | None:
    """The name of a native stream, or of one that was set aside."""
    return keys.name_of_stray(key) or (None if keys.is_ours(key) else key)


def _described(names: list[bytes]) -> Plan[list[NativeStream]]:
    commands = list[Command]()
    for name in names:
        groups: Command = ("XINFO", "GROUPS", name)
        commands += (registry_of(name), ("XLEN", name), ("XLEN", keys.stray(name)), groups)
    replies = (yield Batch(commands, resend=True, attempt=True)) if commands else []
    registries = yield from _registries(names, replies[::4])
    described = list[NativeStream]()
    for at, name in enumerate(names):
        length, aside, found = replies[4 * at + 1 : 4 * at + 4]
        if isinstance(length, ReplyError) and length.code == "NOPERM":
            raise length  # it may be a stray: "none" would be wrong
        aside = 0 if isinstance(aside, ReplyError) else aside
        rows = [] if isinstance(found, ReplyError) else [facts(row) for row in found]
        entries = sum(count for count in (length, aside) if not isinstance(count, ReplyError))
        pending = sum(row[b"pending"] for row in rows)
        is_stray = bool(aside) or registries[name].exists
        if not isinstance(length, ReplyError) or aside:
            described.append(NativeStream(name, entries, len(rows), pending, is_stray))
    return described


def _registries(names: list[bytes], replies: list[Any]) -> Plan[dict[bytes, Registry]]:
    """Registries that were read, after a check of deadlines."""
    found = parse_each(names, ([] if isinstance(reply, ReplyError) else reply for reply in replies))
    return (yield from checked_now([registry_of(name) for name in names], found))


def open_view() -> Plan[View]:
    """The region as this command sees it."""
    return View(require_current((yield from read_any_region()).require_open()))


def adopt(name: bytes) -> Plan[Done]:
    """Take a native stream over. Three round trips; the engine renames a key, whatever its size."""
    refuse_long_name(b"ADOPT", name)
    view = yield from open_view()
    if not view.region.adopted:
        if view.region.is_cluster:
            raise BraidError("the nodes of the cluster do not know yet that streams are adopted. Try again.")
        yield Batch([("HSET", keys.CONFIG, ConfigField.ADOPTED, 1)])
    reply = yield from _until_current(view, name, adopt_command)
    return reply if isinstance(reply, Done) else Done(name, *reply)


def adopt_command(view: View, name: bytes) -> Command:
    """The call that takes a native stream over, if the view knows the stream's registry."""
    home, chosen, stamp = view.home(name), view.chosen(name), view.recall(name).bell
    where = (keys.meta(name), home.key, chosen.key, name, *bell(name, stamp))
    words = (home.label, chosen.label, chosen.life, stamp)
    return ("FCALL", "bs_native_adopt", len(where), *where, *words)


def release(name: bytes) -> Plan[Done]:
    """Make an adopted stream a native one again. Entries that were appended since keep their IDs."""
    view = yield from open_view()
    if view.region.journal_writer:
        raise BraidError(
            "the region has peers, so the stream is replicated and cannot become a native one again. "
            "Remove the region first (braid region remove), or copy the stream with DUMP and RESTORE."
        )
    entries = 0
    while True:
        reply = yield from _until_current(view, name, release_command)
        if isinstance(reply, Done):
            return reply
        if reply < 0:  # the last page
            return Done(name, entries - 1 - reply)
        entries += reply


def release_command(view: View, name: bytes) -> Command:
    """The call that makes a stream native again, or moves the next page of its entries."""
    registry = view.recall(name)
    home, chosen = view.home(name), view.chosen(name)
    turns = (keys.turn(name, group) for group in registry.groups)
    where = (keys.meta(name), home.key, chosen.key, name, *turns, *bell(name, registry.bell))
    strands = (home.label, chosen.label, chosen.life)
    return ("FCALL", "bs_native_release", len(where), *where, *strands, registry.bell, *registry.groups)


def _until_current(view: View, name: bytes, make: Any) -> Plan[Any]:
    """Call a function with the current registry; again if that has changed. Returns Done if it refuses."""
    retries = Retries(f"the groups of {name.decode(errors='replace')!r} kept changing")
    while True:
        retries.count()
        view.forget(name)
        yield from read_registry(view, name)
        [reply] = yield Batch([make(view, name)], attempt=True)
        if not isinstance(reply, ReplyError):
            return reply
        if reply.code in _WHY:
            return Done(name, problem=_WHY[reply.code])
        if reply.code != "BSSTALE":
            raise reply


def taken(name: bytes) -> Done:
    """A stray, which cannot be adopted."""
    return Done(name, problem=_WHY["BSTAKEN"])


def set_aside_command(name: bytes) -> Command:
    """The call that sets a native stream under the name of a managed one aside, and fences the name."""
    return ("FCALL", "bs_native_set_aside", 3, keys.meta(name), name, keys.stray(name))


def append_command(view: View, name: bytes) -> Command:
    """The call that appends the next page of what was set aside."""
    return ("FCALL", "bs_native_append", 2, view.home(name).key, keys.stray(name))


def bring_in(name: bytes) -> Plan[Done]:
    """Append the entries of a stray to the stream of its name. May be interrupted, and run again."""
    view = yield from open_view()
    if (yield from read_registry(view, name)).is_log:
        return Done(name, problem=_WHY["BSLOG"])
    try:
        entries = yield from _append_all(view, name)  # what an interrupted call has left
        [reply] = yield Batch([set_aside_command(name)], attempt=True)
        if isinstance(reply, ReplyError) and reply.code not in ("BSNONATIVE", "BSBUSY"):
            raise reply
        return Done(name, entries + (yield from _append_all(view, name)))
    except ReplyError as error:
        if error.code not in _WHY:
            raise
        return Done(name, problem=_WHY[error.code])


def _append_all(view: View, name: bytes) -> Plan[int]:
    home, entries = view.home(name), 0
    while True:
        [moved] = yield Batch([append_command(view, name)])
        if moved is None:
            registry = yield from read_registry(view, name)
            yield Batch([ensure_command(home, registry.bell)])
        elif moved == 0:
            return entries
        else:
            entries += moved


def adopted_names(patterns: Iterable[bytes]) -> Plan[list[bytes]]:
    """The streams that were adopted and still exist, whose names match. Scans the database."""
    wanted, found, cursor = [matcher(pattern) for pattern in patterns], set[bytes](), 0
    while True:
        cursor, listed = yield from list_streams(cursor)
        names = [name for name in listed if any(matches(name) for matches in wanted)]
        replies = (yield Batch(list(map(registry_of, names)), resend=True)) if names else []
        registries = yield from _registries(names, replies)
        found |= {name for name, each in registries.items() if each.fenced and each.exists}
        if not cursor:
            return sorted(found)

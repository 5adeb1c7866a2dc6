"""Looks up a stream: its registry, whether it exists, and whether a plain key has its name."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from braidstream.errors import NotARegionError, ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.meta import Registry
from braidstream.protocol.identify import read_region
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

WRONGTYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"

# The type of the key that stands at the name of an adopted stream (lua/native.lua).
FENCE_TYPE: Final = b"hash"


def registry_of(name: bytes) -> Command:
    return ("HGETALL", keys.meta(name))


def registry_now(view: View, name: bytes) -> Command:
    """Read the registry as it is now. If the stream is known to expire, a function checks its deadline."""
    return _checked(name) if view.recall(name).due else registry_of(name)


def _checked(name: bytes) -> Command:
    return ("FCALL_RO", "bs_braid_registry", 1, keys.meta(name))


def settled(view: View, names: Iterable[bytes]) -> Plan[None]:
    """Read registries again, with a check of the deadline, if they were just read without one."""
    due = [name for name in dict.fromkeys(names) if view.recall(name).due]
    if due:
        replies = yield Batch([_checked(name) for name in due], resend=True)
        for name, reply in zip(due, replies, strict=True):
            view.learn(name, reply)


def checked_now(reads: Sequence[Command], found: dict[bytes, Registry]) -> Plan[dict[bytes, Registry]]:
    """Registries, after a check of deadlines that their reads did not check."""
    known = zip(reads, found.items(), strict=True)
    due = [name for read, (name, registry) in known if registry.due and read == registry_of(name)]
    if not due:
        return found
    replies = yield Batch([_checked(name) for name in due], resend=True)
    return found | {name: Registry.parse(name, reply) for name, reply in zip(due, replies, strict=True)}


def read_registry(view: View, name: bytes) -> Plan[Registry]:
    """The registry, read now. In a pipeline: from its lookup, a moment ago."""
    if view.carriage.has_looked and view.remembers(name):
        return view.recall(name)
    command = registry_now(view, name)
    [reply] = yield Batch([command], resend=True)
    view.learn(name, reply)
    if command == registry_of(name):
        yield from settled(view, [name])
    return view.recall(name)


def find_registry(view: View, name: bytes) -> Plan[Registry]:
    """The registry of a stream: cached, or read in one round trip.

    Only a pipeline, which has just looked, caches that a stream does not exist.
    """
    known = view.recall(name)
    return known if known.exists else (yield from read_registry(view, name))


def look(view: View, name: bytes) -> Plan[Registry]:
    """The registry, read now. WRONGTYPE if the name is a key of another type.

    In a pipeline a later command may delete that key before its type is read here.
    """
    is_plain = view.carriage.has_looked and view.carriage.is_plain_key(name)
    registry = yield from read_registry(view, name)
    if not registry.exists:
        if is_plain:
            raise ReplyError(WRONGTYPE)
        yield from refuse_other_types(name)
    return registry


def require_region(view: View) -> Plan[None]:
    """NotARegionError if the server is not the region any more that it was when the region was read.

    Called before a strand is created that we have not seen. A server that was emptied has forgotten its IDs:
    new ones may be below what groups in other regions have read. A cluster keeps its facts then.
    """
    if view.region.is_cluster:
        return
    region = (yield from read_region()).require_open()
    if region.writer != view.region.writer:
        raise NotARegionError


def current(name: bytes) -> Plan[Registry]:
    """The registry, read now, for callers without a view. One round trip; two if the stream expires."""
    [reply] = yield Batch([registry_of(name)], resend=True)
    found = yield from checked_now([registry_of(name)], {name: Registry.parse(name, reply)})
    return found[name]


def exists(name: bytes) -> Plan[bool]:
    """Whether the stream exists."""
    return (yield from current(name)).exists


def refuse_unseen_types(view: View, name: bytes) -> Plan[None]:
    """WRONGTYPE if a plain key has the name, where the functions cannot check it: in another slot.

    In a pipeline the lookup has checked it: later commands must not expect an append that will be refused.
    """
    if view.carriage.has_looked:
        if view.carriage.is_plain_key(name):
            raise ReplyError(WRONGTYPE)
    elif not keys.shares_slot(name):
        yield from refuse_other_types(name)


def type_check(view: View, name: bytes) -> list[Command]:
    """TYPE of a missing stream, sent along in a pipeline: later commands may change the type."""
    return [("TYPE", name)] if view.carriage.has_looked and not view.recall(name).exists else []


def refuse_other_types(name: bytes, kind: bytes | None = None) -> Plan[None]:
    """WRONGTYPE if a name that is not a stream is a key of another type."""
    if kind is None:
        [kind] = yield Batch([("TYPE", name)], resend=True)
    if kind == FENCE_TYPE and (yield from _is_fence(name)):
        return
    if kind != b"none":
        raise ReplyError(WRONGTYPE)


def _is_fence(name: bytes) -> Plan[bool]:
    """Whether a plain key is the fence of an adopted stream. It may outlive the stream."""
    return (yield from current(name)).fenced


def find_natives(view: View, names: Iterable[bytes]) -> Plan[None]:
    """Look which names are native streams, and which are streams of ours. One round trip."""
    distinct = list(dict.fromkeys(names))
    types: list[Command] = [("TYPE", name) for name in distinct]
    # The type first: an adoption between the two leaves a registry.
    replies = yield Batch([*types, *map(registry_of, distinct)], resend=True)
    for name, reply in zip(distinct, replies[len(distinct) :], strict=True):
        view.learn(name, reply)
    yield from settled(view, distinct)
    for name, kind in zip(distinct, replies, strict=False):
        view.note_native(name, kind == b"stream" and not view.recall(name).exists)


def is_stale(reply: Any) -> bool:
    """Whether a function refused because our cached registry is stale. It changed nothing."""
    return isinstance(reply, ReplyError) and reply.code == "BSSTALE"

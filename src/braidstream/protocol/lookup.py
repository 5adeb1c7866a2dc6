"""Look up a stream: its registry, whether it exists, and whether a plain key has its name."""

from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.meta import Registry
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.stream_view import View

WRONGTYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"


def registry_of(name: bytes) -> Command:
    return ("HGETALL", keys.meta(name))


def afresh(view: View, name: bytes) -> Plan[Registry]:
    """The registry as it is now; in a pipeline it was looked up a moment ago, for all commands at once."""
    if view.carriage.has_looked and view.remembers(name):
        return view.recall(name)
    [reply] = yield Batch([registry_of(name)], resend=True)
    return view.learn(name, reply)


def find(view: View, name: bytes) -> Plan[Registry]:
    """The registry of a stream: from memory, or in one round trip.

    That a stream does not exist is remembered only within a pipeline, which has just looked.
    """
    known = view.recall(name)
    return known if known.exists else (yield from afresh(view, name))


def look(view: View, name: bytes) -> Plan[Registry]:
    """The registry, afresh. A stream that does not exist may be another kind of key: WRONGTYPE."""
    registry = yield from afresh(view, name)
    if not registry.exists:
        yield from refuse_other_types(name)
    return registry


def exists(name: bytes) -> Plan[bool]:
    """Whether the stream exists. One round trip."""
    [reply] = yield Batch([registry_of(name)], resend=True)
    return Registry.parse(name, reply).exists


def refuse_unseen_types(view: View, name: bytes) -> Plan[None]:
    """The functions check for a plain key of the name; not where it lies in another slot. Then we do.

    In a pipeline it was looked up before: an append that will be refused must not be counted on.
    """
    if view.carriage.has_looked:
        if view.carriage.is_plain_key(name):
            raise ReplyError(WRONGTYPE)
    elif not keys.shares_slot(name):
        yield from refuse_other_types(name)


def type_check(view: View, name: bytes) -> list[Command]:
    """In a pipeline other commands follow at once, so the type of a missing stream is asked along."""
    return [("TYPE", name)] if view.carriage.has_looked and not view.recall(name).exists else []


def refuse_other_types(name: bytes, kind: bytes | None = None) -> Plan[None]:
    """A stream that does not exist: is there another kind of key with its name?"""
    if kind is None:
        [kind] = yield Batch([("TYPE", name)], resend=True)
    if kind != b"none":
        raise ReplyError(WRONGTYPE)


def is_stale(reply: Any) -> bool:
    """Whether a function did nothing, because the registry is not as we knew it."""
    return isinstance(reply, ReplyError) and reply.code == "BSSTALE"

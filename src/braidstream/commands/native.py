"""Stream commands on native streams: streams of the engine that were not adopted (operations/adoption.py).

    XADD orders ...   --- is `orders` known as a native stream?  --yes-->  the command, unchanged
                      `-- no: the plan. WRONGTYPE?  --> look; if it is a native stream, start again

So appends to managed streams cost nothing more. A native stream costs one lookup when it is first named.
What is known may be stale: the stream may be adopted or deleted at any moment. The command that finds it
gone changes nothing, and its plan runs instead:

    adopted     the name is fenced: a key of another type, so the engine answers WRONGTYPE
    deleted     nothing creates the native stream again: XADD is sent with NOMKSTREAM, XGROUP CREATE without
                MKSTREAM

XREAD over native streams and ours is one native XREAD (xread.py). XREADGROUP is one for each stream.
"""

from collections.abc import Callable
from typing import Any, Final

from braidstream.commands import xreadgroup, xreadgroup_reply
from braidstream.commands.arguments import Argv, option
from braidstream.commands.xadd_idempotent import is_numbered
from braidstream.commands.xreadgroup import LISTEN_SLICE_MS, QUEUE_SLICE_MS
from braidstream.commands.xreadgroup_reply import ReadGroup, parse
from braidstream.errors import RefusedError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.registry import Registry
from braidstream.model.strand import Command, Strand, facts, plain_strand
from braidstream.plan.lookup import checked_now, current, find_natives, registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

Build = Callable[[View, Argv], Plan[Any]]

_TRIES: Final = 8
_READS: Final = frozenset((b"XLEN", b"XRANGE", b"XREVRANGE", b"XREAD", b"XINFO", b"XPENDING"))
# How engines tell a reader that waits that its stream or group is gone, or the key is another now.
_GONE: Final = ("WRONGTYPE", "UNBLOCKED", "NOGROUP")
_NO_KEY: Final = "ERR The XGROUP subcommand requires the key to exist"


class _NotNativeError(Exception):
    """A name is not a native stream, or not any more. Nothing was changed. argv: what is left to do."""

    def __init__(self, argv: Argv) -> None:
        super().__init__()
        self.argv = argv


def lift_fence(name: bytes) -> Plan[None]:
    """Remove the fence of a stream, if it does not exist any more: a peer deleted it."""
    if not (yield from current(name)).exists:
        yield Batch([("FCALL", "bs_native_unfence", 2, keys.meta(name), name)])


def routed(view: View, argv: Argv, names: Argv, build: Build) -> Plan[Any]:
    """A stream command: the engine's own on native streams, else its plan."""
    command = argv[0].upper()
    for left in reversed(range(_TRIES)):
        known = _kinds(view, names)
        try:
            if _passes(view, argv, names):
                return (yield from _pass(view, argv, names))
            if command == b"XREADGROUP" and any(map(view.is_native, names)):
                return (yield from _read_groups(view, argv))
            return (yield from build(view, argv))
        except _NotNativeError as gone:
            argv = gone.argv
        except ReplyError as error:
            if error.code != "WRONGTYPE" or view.carriage.is_multi or not left:
                raise
            view = view.alone()
            yield from find_natives(view, names)
            if known == _kinds(view, names):
                raise
    raise AssertionError("the last try returns or raises")


def _kinds(view: View, names: Argv) -> list[tuple[bool, bool]]:
    """Of each name: whether it is known as a native stream, and as a managed one."""
    return [(view.is_native(name), view.recall(name).exists) for name in names]


def _passes(view: View, argv: Argv, names: Argv) -> bool:
    """Whether the engine answers the command as it is. An XREAD that waits also waits for an adoption."""
    waits = argv[0].upper() == b"XREAD" and view.carriage.may_block and _block_at(argv) is not None
    return bool(names) and all(map(view.is_native, names)) and not waits


def _pass(view: View, argv: Argv, names: Argv) -> Plan[Any]:
    if view.carriage.is_multi:  # the registry is WATCHed: it is not adopted before EXEC
        [reply] = yield Batch([_command(_without_own_id(view, argv))])
        return reply
    at = _block_at(argv)
    if at is not None:
        view.will_continue()
        return (yield from _wait(view, argv, names, at))
    replies = yield Batch(
        [*map(registry_of, names), _careful(_without_own_id(view, argv))],
        resend=argv[0].upper() in _READS,
        attempt=True,
    )
    reply = replies.pop()
    if _is_gone(argv, reply) or (not _has_added(argv, reply) and (yield from _is_braided(names, replies))):
        raise _forgotten(view, names, argv)
    if isinstance(reply, ReplyError):
        raise reply
    return reply


def _without_own_id(view: View, argv: Argv) -> Argv:
    """An XADD without the message ID that an idempotent client gave it: many engines do not know such IDs,
    and an append to a native stream is not resent."""
    is_own = (
        argv[0].upper() == b"XADD"
        and len(argv) > 4
        and option(argv[2]) == b"IDMP"
        and is_numbered(view.producer, argv[3])
    )
    return [*argv[:2], *argv[5:]] if is_own else argv


def _careful(argv: Argv) -> Command:
    """The command, so that it does not create a stream."""
    command = argv[0].upper()
    if command == b"XADD":
        return ("XADD", argv[1], "NOMKSTREAM", *argv[2:])
    if command == b"XGROUP":
        return ("XGROUP", *argv[1:5], *(word for word in argv[5:] if option(word) != b"MKSTREAM"))
    return _command(argv)


def _command(argv: Argv) -> Command:
    """The command as it is; its name in the form that the shape of its reply is known by."""
    return (argv[0].decode("ascii").upper(), *argv[1:])


def _is_gone(argv: Argv, reply: Any) -> bool:
    if isinstance(reply, ReplyError):
        return reply.code == "WRONGTYPE" or reply.text.startswith(_NO_KEY)
    return reply is None and argv[0].upper() == b"XADD"


def _has_added(argv: Argv, reply: Any) -> bool:
    return argv[0].upper() == b"XADD" and isinstance(reply, bytes)


def _is_braided(names: Argv, replies: list[Any]) -> Plan[bool]:
    """Whether one of the names is a managed stream by now, which has not expired."""
    found = dict[bytes, Registry]()
    for name, reply in zip(names, replies, strict=False):
        if isinstance(reply, ReplyError):
            raise reply
        found[name] = Registry.parse(name, reply)
    found = yield from checked_now([registry_of(name) for name in found], found)
    return any(registry.exists for registry in found.values())


def _forgotten(view: View, names: Argv, argv: Argv) -> _NotNativeError:
    for name in names:
        view.cache.note_native(name, False)
    return _NotNativeError(argv)


def _block_at(argv: Argv) -> int | None:
    """Where the milliseconds of BLOCK are among the words; None without BLOCK."""
    if argv[0].upper() not in (b"XREAD", b"XREADGROUP"):
        return None
    streams = next((at for at, word in enumerate(argv) if option(word) == b"STREAMS"), len(argv))
    return next((at + 1 for at, word in enumerate(argv[:streams]) if option(word) == b"BLOCK"), None)


def _wait(view: View, argv: Argv, names: Argv, at: int) -> Plan[Any]:
    """XREADGROUP BLOCK, in slices. If the stream is adopted meanwhile, the plan waits for what is left."""
    spec = parse(argv)
    if spec is None or spec.block_ms is None:
        [reply] = yield Batch([_command(argv)])
        return reply
    left_ms = spec.block_ms
    while True:
        turn = min(left_ms, QUEUE_SLICE_MS) if spec.block_ms else QUEUE_SLICE_MS
        now = [*argv[:at], b"%d" % turn, *argv[at + 1 :]]
        replies = yield Batch([*map(registry_of, names), _command(now)], attempt=True, block_ms=turn)
        reply = replies.pop()
        rest = [*argv[:at], b"%d" % left_ms, *argv[at + 1 :]]
        if isinstance(reply, ReplyError):
            if reply.code in _GONE:
                yield from find_natives(view, names)
                if not all(map(view.is_native, names)):
                    raise _NotNativeError(rest)
            raise reply
        if reply is not None:
            return reply
        left_ms -= turn
        if spec.block_ms and left_ms <= 0:
            return None
        if (yield from _is_braided(names, replies)):
            raise _forgotten(view, names, rest)


# XREADGROUP over native streams and ours


def _read_groups(view: View, argv: Argv) -> Plan[list[Any] | None]:
    """Each stream in turn, as if it were the only one. If there is nothing: wait, then read."""
    spec = parse(argv)
    if spec is None:
        return (yield from xreadgroup.read_group(view, argv))
    if spec.max_size is not None:
        why = "some of the streams are native streams, others are braidstream's"
        raise RefusedError("XREADGROUP with MAXSIZE", why, "Read them one by one, or adopt them: braid adopt")
    view = view.alone()
    left_ms, waits = spec.block_ms, spec.block_ms is not None and view.carriage.may_block
    yield from _check_groups(view, spec)
    while True:
        found = yield from _read_each(view, spec)
        if found or not waits or left_ms is None or any(word != b">" for word in spec.positions):
            return found or None
        if spec.block_ms and left_ms <= 0:
            return None
        turn = min(left_ms, LISTEN_SLICE_MS) if spec.block_ms else LISTEN_SLICE_MS
        at = yield from _positions(view, spec)
        [heard] = yield Batch(
            [xreadgroup_reply.xread(at, 1, "BLOCK", turn)], block_ms=turn, resend=True, attempt=True
        )
        if heard is None:
            left_ms -= turn
        elif isinstance(heard, ReplyError):
            if heard.is_client_unblock:
                raise heard
            yield from find_natives(view, spec.names)
        for name in spec.names:
            view.cache.forget_reading(name, spec.group)


def _read_each(view: View, spec: ReadGroup) -> Plan[list[Any]]:
    answer, most = list[Any](), spec.max_count
    for name, word in zip(spec.names, spec.positions, strict=True):
        count = min((cap for cap in (spec.count, most) if cap is not None), default=None)
        words = [b"XREADGROUP", b"GROUP", spec.group, spec.consumer]
        words += [] if count is None else [b"COUNT", b"%d" % count]
        words += [] if spec.claim_ms is None else [b"CLAIM", b"%d" % spec.claim_ms]
        words += [b"NOACK"] if spec.noack else []
        try:
            found = yield from routed(view, [*words, b"STREAMS", name, word], [name], xreadgroup.read_group)
        except ReplyError:
            if not answer:
                raise
            return answer  # already delivered, so return it
        answer += found or []
        if most is not None:
            most -= sum(len(page) for _, page in found or [])
            if most <= 0:
                break
    return answer


def _check_groups(view: View, spec: ReadGroup) -> Plan[None]:
    """Refuse before anything is delivered, as the engine does."""
    yield from find_natives(view, spec.names)
    for name in spec.names:
        groups = (yield from _native_groups(name)) if view.is_native(name) else view.recall(name).groups
        if spec.group not in groups:
            raise xreadgroup_reply.no_such_group(name, spec.group)


def _native_groups(name: bytes) -> Plan[dict[bytes, Id]]:
    """The groups of a native stream, and where each is."""
    [reply] = yield Batch([("XINFO", "GROUPS", name)], resend=True)
    return {info[b"name"]: ids.native(info[b"last-delivered-id"]) for info in map(facts, reply)}


def _positions(view: View, spec: ReadGroup) -> Plan[dict[Strand, Id]]:
    """Where the group is in every stream."""
    at = dict[Strand, Id]()
    for name in dict.fromkeys(spec.names):
        if view.is_native(name):
            at[plain_strand(name)] = (yield from _native_groups(name))[spec.group]
        else:
            at.update((yield from xreadgroup_reply.positions(view, name, spec.group)))
    return at

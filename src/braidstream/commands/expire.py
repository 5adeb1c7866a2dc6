"""EXPIRE, PERSIST, TTL and their variants, where a key may be a stream.

Without peers all strands of a stream have the same native deadline, so the engine itself frees them, and its
answer about one of them is the answer about the stream. With peers the deadline is a field of the registry
that is replicated, and each region's daemon carries it out. lua/deadline.lua says what is left.
"""

from collections.abc import Iterable
from typing import Any, Final

from braidstream.commands.arguments import Argv, fail, integer, option, shown
from braidstream.errors import RefusedError, ReplyError
from braidstream.model import keys
from braidstream.model.registry import Registry, named_keys
from braidstream.model.strand import Command
from braidstream.plan.lookup import find_registry, ms_of, read_registry, registry_now
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import until_current
from braidstream.plan.view import View

_CONDITIONS: Final = (b"NX", b"XX", b"GT", b"LT")
_MOST: Final = 2**63 - 1
_PAST_S: Final = 1_700_000_000
# More milliseconds than since 1970, for the engine's check that a sum fits.
_NOW_MS: Final = 5 * 10**12
# By command: milliseconds in its unit, and whether it counts from now.
_UNITS: Final = {
    b"EXPIRE": (1000, b"in"),
    b"PEXPIRE": (1, b"in"),
    b"EXPIREAT": (1000, b"at"),
    b"PEXPIREAT": (1, b"at"),
}


def time_to_live(view: View, argv: Argv) -> Plan[int]:
    """TTL, PTTL, EXPIRETIME, PEXPIRETIME: of a stream, what the engine says about a strand."""
    name = argv[1]
    known = view.recall(name)
    strands, clock = known.strands or (view.home(name),), (("TIME",),) if known.until else ()
    commands: list[Command] = [tuple(argv), *((argv[0], strand.key) for strand in strands)]
    plain, *lives, reply = yield Batch([*commands, *clock, registry_now(view, name)], resend=True)
    now = lives.pop() if clock else None
    registry = view.learn(name, reply)
    if not registry.exists:
        return -2 if registry.fenced else int(plain)
    if registry.until:
        if now is None:
            [now] = yield Batch([("TIME",)], resend=True)
        return _shown(argv[0].upper(), registry.until, ms_of(now))
    if not registry.due:
        return -1
    if set(registry.strands).isdisjoint(strands):
        lives = yield Batch([(argv[0], strand.key) for strand in registry.strands], resend=True)
    life = max(lives)
    return int(plain) if life == -2 and not registry.fenced else int(life)


def _shown(verb: bytes, until: int, now_ms: int) -> int:
    """A time as the engine rounds it. A deadline that is over will be carried out in a moment."""
    ms = until if verb.endswith(b"TIME") else max(until - now_ms, 0)
    return ms if verb.startswith(b"P") else (ms + 500) // 1000


def persist(view: View, argv: Argv) -> Plan[int]:
    """PERSIST."""
    registry, plain = yield from _look(view, argv)
    if not registry.exists:
        return int(plain)
    return int((yield from _set(view, argv[:2], (b"never", b"0", b""))) or 0)


def expire(view: View, argv: Argv) -> Plan[int]:
    """EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT. A deadline that is not in the future deletes."""
    name = argv[1]
    is_past = _is_past(argv)
    if is_past:
        view.plain_keys.discard(name)
    if len(argv) > 3 if is_past else argv[0].upper() not in (b"EXPIRE", b"PEXPIRE"):
        view.will_continue(after_exec=True)  # later commands cannot predict whether it deletes
    registry, plain = yield from _look(view, argv)
    if not registry.exists:
        return int(plain)
    when = _when(argv)
    if registry.is_log:
        why = f"'{shown(name)}' is a log: its offsets continue for ever"
        raise _refused(argv, why, "Delete old entries with TEVICT, or the log with DEL")
    has_peers = bool(view.region.journal_writer)
    if not has_peers and any(each.writer != view.region.writer for each in registry.strands):
        why = "the region has no peers, but the stream has entries of some, and the engine would keep these"
        raise _refused(argv, why, "Use XTRIM MINID to drop old entries, or DEL")
    if is_past and not when[2]:
        view.expect_deleted(name)
    else:
        view.expect_no_key(name)
    return int((yield from _set(view, argv[:2], when, registry)) or 0)


def expire_at(view: View, name: bytes, at_ms: int) -> Plan[None]:
    """Give a stream the deadline of the one that it was copied from."""
    yield from _set(view.alone(), [b"PEXPIREAT", name], (b"at", b"%d" % at_ms, b""))


def carry_out(view: View, name: bytes, apart: Iterable[int] = ()) -> Plan[int]:
    """What a daemon does at a deadline with peers. What it returns, lua/deadline.lua says.

    apart: regions that do not exchange the stream, so they never hear of its deadline.
    """

    def command() -> Plan[Command | None]:
        registry = yield from find_registry(view, name)
        where, fence, words = _named(name, registry)
        region, given = view.region, (*where, *fence)
        writers = " ".join(map(str, (region.writer, *region.left, *apart)))
        call: Command = ("FCALL", "bs_braid_due", 1 + len(given), keys.meta(name), *given)
        return (*call, writers, region.journal_writer, *words, len(fence))

    return int((yield from until_current(view, name, command)) or 0)


def _named(name: bytes, registry: Registry) -> tuple[tuple[bytes, ...], tuple[bytes, ...], Command]:
    where, words = named_keys(name, registry, registry.strands)
    return where, (name,) if registry.fenced and keys.shares_slot(name) else (), words


def _look(view: View, argv: Argv) -> Plan[tuple[Registry, Any]]:
    """The registry; if the name is not a stream, the engine's answer about the plain key."""
    name = argv[1]
    known = view.recall(name)
    if view.carriage.has_looked and known.exists:
        return known, None
    if view.region.adopted and (yield from read_registry(view, name)).fenced:
        return view.recall(name), 0  # the plain key is a fence
    command = registry_now(view, name)
    plain, reply = yield Batch([tuple(argv), command])
    registry = view.learn(name, reply)
    if registry.due and command[0] == "HGETALL":
        registry = yield from read_registry(view, name)
    return registry, plain


def _set(view: View, said: Argv, when: Command, known: Registry | None = None) -> Plan[int | None]:
    """Set the deadline; retry if the strands have changed. known: the registry for the first attempt."""
    name = said[1]
    first = [known] if known is not None else []

    def command() -> Plan[Command | None]:
        registry = first.pop() if first else (yield from find_registry(view, name))
        return _call(view, said, registry, when) if registry.exists else None

    return (yield from until_current(view, name, command))  # type: ignore[no-any-return]


def _call(view: View, said: Argv, registry: Registry, when: Command) -> Command:
    verb, name = said
    where, fence, words = _named(name, registry)
    region = view.region
    own = (region.writer, region.journal_writer)
    call: Command = ("FCALL", "bs_braid_expire", 1 + len(where) + len(fence), keys.meta(name), *where, *fence)
    return (*call, *own, *when, *words, len(fence), verb.lower(), name)


def _when(argv: Argv) -> tuple[bytes, bytes, bytes]:
    """How the time is meant, the milliseconds, and the conditions; refused in the engine's words."""
    conditions = [option(word) for word in argv[3:]]
    for word, condition in zip(argv[3:], conditions, strict=True):
        if condition not in _CONDITIONS:
            fail(f"ERR Unsupported option {shown(word)}")
    if b"NX" in conditions and set(conditions) != {b"NX"}:
        fail("ERR NX and XX, GT or LT options at the same time are not compatible")
    if {b"GT", b"LT"} <= set(conditions):
        fail("ERR GT and LT options at the same time are not compatible")
    unit, how = _UNITS[argv[0].upper()]
    value = integer(argv[2])
    most = _MOST - (_NOW_MS if how == b"in" else 0)
    if not -_MOST <= value * unit <= most:
        fail(f"ERR invalid expire time in '{argv[0].decode().lower()}' command")
    return how, b"%d" % (value * unit), b" ".join(conditions)


def _is_past(argv: Argv) -> bool:
    """Whether an expiry surely deletes a key at once; there is no clock here."""
    try:
        value = integer(argv[2])
    except ReplyError:
        return False
    # Times before this was written, or spans of nothing or less.
    return value <= {b"EXPIREAT": _PAST_S, b"PEXPIREAT": 1000 * _PAST_S}.get(argv[0].upper(), 0)


def _refused(argv: Argv, why: str, instead: str) -> RefusedError:
    return RefusedError(argv[0].decode("ascii", "replace").upper(), why, instead)

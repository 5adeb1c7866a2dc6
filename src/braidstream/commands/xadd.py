"""XADD and XSETID: the commands that change a stream's last ID."""

from typing import Any

from braidstream.commands import xadd_idempotent
from braidstream.commands.arguments import (
    FUNCTION_ARGUMENTS,
    Add,
    Argv,
    SetId,
    Trim,
    parse_add,
    parse_setid,
    shown,
)
from braidstream.commands.removal import cap, trim_options
from braidstream.errors import RefusedError, ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id, user_text
from braidstream.model.registry import bell
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.append import KNOWN, native_command
from braidstream.plan.braid import read_strands
from braidstream.plan.create import append
from braidstream.plan.lookup import (
    find_registry,
    read_again,
    refuse_other_types,
    refuse_unseen_types,
    registry_of,
    require_region,
)
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import Retries, until_current
from braidstream.plan.view import View


def add(view: View, argv: Argv) -> Plan[bytes | None]:
    """XADD: one native XADD, one round trip. The first write to a stream takes one more.

    An ID that the user chose goes through a function instead: one round trip if the strands are cached.
    """
    name, spec = argv[1], parse_add(argv)
    if spec.trim is not None and not _trims_at_once(view, name, spec.trim):
        view.will_continue(after_exec=True)  # strands other than the home strand
    if spec.message is not None:
        _refuse_huge(spec)
        return (yield from xadd_idempotent.add(view, name, spec))
    if spec.id is None:
        return (yield from _add_generated(view, name, spec, b"*"))
    if spec.seq and view.region.id_mode == "strict" and view.carriage.may_look_again:
        # Before a refusal, read the mode again: the cached one may be stale.
        view.region = yield from read_again(view.region)
    if _is_generated(view, spec):
        return (yield from _add_generated(view, name, spec, b"%d-*" % spec.id[0]))
    if view.region.id_mode == "strict":
        yield from _refuse_log(view, name)
        raise RefusedError(
            "XADD",
            f"in strict ID mode IDs are * or milliseconds alone, not {ids.text(spec.id).decode()}; "
            "two regions could choose the same one",
            "Use *, or allow full IDs in this region: braid tune id-mode semi-strict --url URL",
        )
    return (yield from _add_chosen(view, name, spec))


def _refuse_log(view: View, name: bytes) -> Plan[None]:
    """A log takes no XADD at all, whatever the ID mode."""
    if (yield from find_registry(view, name)).is_log:
        raise RefusedError("XADD", f"'{shown(name)}' is a log, its offsets are generated", "Use TWRITE")


def _add_generated(view: View, name: bytes, spec: Add, entry: bytes) -> Plan[bytes | None]:
    home = view.home(name)
    if spec.id is not None and not view.recall(name).exists:
        # The engine may refuse the time. Then a second batch deletes the new strand again.
        view.will_continue(after_exec=True)
    natively = None if spec.trim is None or spec.trim.policy != b"KEEPREF" else spec.trim
    command = native_command(home.key, (*trim_options(natively, home), entry, *spec.fields))
    if spec.trim is None:
        native = yield from append(view, home, command, nomkstream=spec.nomkstream)
        return native and user_text(native, home.writer)
    # MAXLEN counts the whole stream. The append trims the home strand; other strands need a second step.
    native = yield from append(view, home, command, registry_of(name), nomkstream=spec.nomkstream)
    if native is not None and (natively is None or view.recall(name).strands != (home,)):
        yield from cap(view, name, spec.trim)
    return native and user_text(native, home.writer)


def _trims_at_once(view: View, name: bytes, trim: Trim) -> bool:
    """Whether the append to the home strand also trims the stream, by the cache."""
    return trim.policy == b"KEEPREF" and set(view.recall(name).strands) <= {view.home(name)}


def _is_generated(view: View, spec: Add) -> bool:
    """Whether the engine generates the ID, or its sequence number."""
    return spec.id is None or (not spec.seq and view.region.id_mode != "liberal")


def _refuse_huge(spec: Add) -> None:
    if len(spec.fields) > FUNCTION_ARGUMENTS:
        raise RefusedError(
            "XADD with a chosen or an idempotent ID",
            f"it takes at most {FUNCTION_ARGUMENTS // 2} fields, this entry has {len(spec.fields) // 2}",
            "Use XADD with * alone for larger entries",
        )


def _add_chosen(view: View, name: bytes, spec: Add) -> Plan[bytes | None]:
    assert spec.id is not None
    _refuse_huge(spec)
    if spec.auto_seq:
        view.will_continue()
    elif spec.trim is not None:
        view.will_continue(after_exec=True)
    yield from refuse_unseen_types(view, name)
    yield from find_registry(view, name)
    retries = Retries(f"others kept adding to {name!r} in the same millisecond")
    while True:
        attempt = retries.count()
        entry = (yield from _next_in(view, name, spec.id[0])) if spec.auto_seq else spec.id
        chosen = view.chosen(name)
        command = _chosen_command(view, chosen, entry, spec)
        if not spec.nomkstream or view.recall(name).exists:
            if not view.has_seen(view.home(name)) and (attempt or view.carriage.may_look_again):
                yield from require_region(view)
            view.expect(view.home(name))
            view.expect(chosen)
        [reply] = yield Batch([command], attempt=True)
        if not isinstance(reply, ReplyError):
            if reply is None and view.carriage.may_look_again:
                yield from refuse_other_types(name)
            elif reply is not None and spec.trim is not None:
                view.forget(name)
                yield from cap(view, name, spec.trim)
            return reply  # type: ignore[no-any-return]
        view.forget_strand(view.home(name))
        again = reply.code == "BSSTALE" or (spec.auto_seq and "equal or smaller" in reply.text)
        if not again:
            raise reply
        yield from find_registry(view, name)


def _chosen_keys(view: View, chosen: Strand) -> tuple[bytes, bytes, bytes]:
    return keys.meta(chosen.name), view.home(chosen.name).key, chosen.key


def _chosen_command(view: View, chosen: Strand, entry: Id, spec: Add) -> Command:
    name, home = chosen.name, view.home(chosen.name)
    below = ids.before(entry)
    assert below is not None, "parse_add refuses 0-0"
    plain = (name,) if keys.shares_slot(name) else ()
    stamp = view.recall(name).bell
    where = (*_chosen_keys(view, chosen), *plain, *bell(name, stamp))
    words = [b"NOMKSTREAM"] * spec.nomkstream + [KNOWN] * view.has_seen(home)
    return (
        "FCALL",
        "bs_chosen_add",
        len(where),
        *where,
        home.label,
        chosen.label,
        chosen.life,
        ids.text(entry),
        ids.text(home.rest(below)),
        ids.text(home.rest(entry)),
        b" ".join(words),
        stamp,
        *spec.fields,
    )


def _ends(view: View, name: bytes) -> "Plan[Ends]":
    """The last ID of every strand, and its XINFO STREAM."""
    registry, answers = yield from read_strands(view, name, lambda strand: strand.xinfo())
    found = {}
    for strand, reply in answers:
        info = facts(reply)
        found[strand] = registry.end(strand, ids.native(info[b"last-generated-id"])), info
    return found


def _next_in(view: View, name: bytes, ms: int) -> Plan[Id]:
    """The ID for `ms-*` in liberal mode: the next one in that millisecond, as the engine counts."""
    ends = yield from _ends(view, name)
    ours = [end for strand, (end, _) in ends.items() if strand.writer == view.region.writer]
    last = max(ours, default=ids.ZERO)
    if last == ids.LAST:
        raise ReplyError("ERR The stream has exhausted the last possible ID, unable to add more items")
    if last[0] > ms or last == (ms, ids.MAX):
        raise ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return (ms, last[1] + 1) if last[0] == ms else (ms, 0)


def set_id(view: View, argv: Argv) -> Plan[bytes]:
    """XSETID: raises the last ID of this region's strands, never lowers it. Two round trips."""
    name, spec = argv[1], parse_setid(argv)

    def command() -> Plan[Command | None]:
        ends = yield from _ends(view, name)
        if not ends:
            raise ReplyError("ERR no such key")
        _check_setid(spec, ends)
        home, chosen = view.home(name), view.chosen(name)
        stamp = view.recall(name).bell
        where = (*_chosen_keys(view, chosen), *bell(name, stamp))
        strands = (home.label, chosen.label, chosen.life, ids.text(spec.id), ids.text(home.rest(spec.id)))
        added = _split_added(view, spec.entries_added, ends)
        deleted = _split_deleted(home, spec.max_deleted, ends)
        return ("FCALL", "bs_chosen_setid", len(where), *where, *strands, *added, *deleted, stamp)

    yield from until_current(view, name, command)
    return b"OK"


Ends = dict[Strand, tuple[Id, dict[bytes, Any]]]


def _check_setid(spec: SetId, ends: Ends) -> None:
    """The engine's own checks in its order, then ours."""
    infos = [(strand, info) for strand, (_, info) in ends.items()]
    tops = [strand.user(ids.native(info[b"last-entry"][0])) for strand, info in infos if info[b"last-entry"]]
    if tops and spec.id < max(tops):
        raise ReplyError("ERR The ID specified in XSETID is smaller than the target stream top item")
    length = sum(info[b"length"] for _, info in ends.values())
    if length and spec.entries_added is not None and spec.entries_added < length:
        raise ReplyError("ERR The entries_added specified in XSETID is smaller than the target stream length")
    end = max(end for end, _ in ends.values())
    if spec.id < end:
        raise RefusedError(
            "XSETID",
            f"{ids.text(spec.id).decode()} is smaller than the stream's last ID {ids.text(end).decode()}; "
            "moving back would generate IDs twice",
            "Use a larger ID, or DEL the stream to start over",
        )


def _split_added(view: View, added: int | None, ends: Ends) -> tuple[bytes | int, bytes | int]:
    """ENTRIESADDED counts the whole stream: the chosen strand gets what the other strands do not count.

    Links trim and compare only strands that count more entries than they have. So, with peers, a strand that
    was trimmed or deleted from keeps one more, and the stream may count one or two more than the caller says.
    """
    if added is None:
        return b"", b""
    home = chosen = others = 0
    for strand, (_, info) in ends.items():
        removed = bool(view.region.peers) and info[b"entries-added"] > info[b"length"]
        if strand == view.home(strand.name):
            home = info[b"length"] + removed
        elif strand == view.chosen(strand.name):
            chosen = info[b"length"] + removed
        else:
            others += info[b"entries-added"]
    return home, max(chosen, added - home - others)


def _split_deleted(home: Strand, wanted: Id | None, ends: Ends) -> tuple[bytes, bytes]:
    """MAXDELETEDID is stored in the chosen strand; the home strand must not have a larger one."""
    if wanted is None:
        return b"", b""
    own = ids.native(ends[home][1][b"max-deleted-entry-id"]) if home in ends else ids.ZERO
    below = home.floor(wanted)
    # The engine reads 0-0 as "no MAXDELETEDID".
    return ids.text(wanted), ids.text(max(below, (0, 1))) if own > below else b""

"""XADD and XSETID: what moves a stream's end."""

from typing import Any, Final

from braidstream import ids, keys
from braidstream.braid import (
    View,
    ask,
    birth_command,
    exists,
    find,
    fresh,
    read_region,
    refuse_other_types,
    registry_of,
)
from braidstream.commands.arguments import Add, Argv, Trim, parse_add, parse_setid, strict_id
from braidstream.commands.trim import trim_all, trim_options
from braidstream.errors import RefusedError, ReplyError
from braidstream.ids import Id
from braidstream.plan import Batch, Command, Plan
from braidstream.strand import Strand

# Lua cannot pass more than about 8,000 arguments on to a command.
FUNCTION_ARGUMENTS: Final = 7_000
_TRIES: Final = 16


def add(view: View, argv: Argv) -> Plan[bytes | None]:
    """XADD: one native XADD on the home strand, one round trip. The first write to a stream takes two more.

    A chosen ID goes through a function instead, one round trip.
    """
    name, spec = argv[1], parse_add(argv)
    if spec.id is None:
        return (yield from _add_minted(view, name, spec, b"*"))
    if spec.seq and view.region.id_mode == "strict" and not view.pipelined:
        # We are about to refuse: do so by the mode of this moment, not of a second ago.
        view.region = yield from read_region()
    liberal = view.region.id_mode == "liberal"
    if not spec.seq and not liberal:
        return (yield from _add_minted(view, name, spec, b"%d-*" % spec.id[0]))
    if view.region.id_mode == "strict":
        raise RefusedError(
            "XADD",
            f"in strict ID mode IDs are * or milliseconds alone, not {ids.text(spec.id).decode()}; "
            "two regions could choose the same one",
            "Use *, or allow full IDs in this region: braid tune id-mode semi-strict --url URL",
        )
    return (yield from _add_chosen(view, name, spec))


def _add_minted(view: View, name: bytes, spec: Add, entry: bytes) -> Plan[bytes | None]:
    home = view.minted(name)
    if spec.nomkstream:
        native = yield from _add_existing(view, home, spec, entry)
        if native is None:
            return None
    else:
        native = yield from _append(
            view, home, ("NOMKSTREAM", *trim_options(spec.trim, home), entry, *spec.fields)
        )
    if spec.trim is not None:
        yield from _trim_others(view, home, spec.trim)
    return ids.minted_text(native, home.writer)


def _append(view: View, home: Strand, rest: Command) -> Plan[bytes]:
    """A native append, after the birth of the strand where it needs one."""
    append: Command = ("XADD", home.key, *rest)
    if not view.pipelined or home in view.known.get(home.name, ()):
        [native] = yield Batch([append])
        if native is not None:
            return native  # type: ignore[no-any-return]
    elif view.pipelined:
        # In one go with the commands around it: being born twice is harmless.
        view.expect(home)
        replies = yield Batch([birth_command(home), append], attempt=True)
        return _appended(view, home, replies)
    if not keys.shares_slot(home.name):
        yield from refuse_other_types(home.name)
    replies = yield Batch([birth_command(home), append], atomic=view.one_step(2), attempt=True)
    return _appended(view, home, replies)


def _appended(view: View, home: Strand, replies: list[Any]) -> bytes:
    for reply in replies:
        if isinstance(reply, ReplyError):
            view.known.pop(home.name, None)
            raise reply
    view.expect(home)
    native = replies[1]
    assert isinstance(native, bytes), "a strand was deleted within the MULTI that made it"
    return native


def _add_existing(view: View, home: Strand, spec: Add, entry: bytes) -> Plan[bytes | None]:
    """NOMKSTREAM: whether the stream exists is asked and acted on in one step."""
    strands = yield from find(view, home.name)
    if not strands:
        yield from refuse_other_types(home.name)
        return None
    if home not in strands:
        if not (yield from exists(view, home.name)):
            return None
        yield Batch([birth_command(home)])
        view.known.pop(home.name, None)

    def call(strands: tuple[Strand, ...]) -> Command:
        ordered = [home, *(strand for strand in strands if strand != home)]
        return (
            "FCALL",
            "bs_braid_add",
            1 + len(ordered),
            keys.meta(home.name),
            *(strand.key for strand in ordered),
            *(strand.registration for strand in ordered),
            *trim_options(spec.trim, home),
            entry,
            *spec.fields,
        )

    _refuse_huge(spec, "XADD NOMKSTREAM")
    reply: bytes | None = yield from fresh(view, home.name, call)
    return reply


def _refuse_huge(spec: Add, what: str) -> None:
    if len(spec.fields) > FUNCTION_ARGUMENTS:
        raise RefusedError(
            what,
            f"it takes at most {FUNCTION_ARGUMENTS // 2} fields, this entry has {len(spec.fields) // 2}",
            "Use XADD with * for larger entries",
        )


def _trim_others(view: View, home: Strand, trim: Trim) -> Plan[None]:
    """The cap counts the whole stream. The home strand was trimmed with the append; are there others?"""
    [reply] = yield Batch([registry_of(home.name)], resend=True)
    if view.learn(home.name, reply).strands != (home,):
        yield from trim_all(view, home.name, trim)


def _add_chosen(view: View, name: bytes, spec: Add) -> Plan[bytes | None]:
    _refuse_huge(spec, "XADD with a chosen ID")
    if spec.nomkstream and not (yield from exists(view, name)):
        yield from refuse_other_types(name)
        return None
    assert spec.id is not None
    for _ in range(_TRIES):
        entry = spec.id
        if spec.auto_seq:
            entry = yield from _next_in(view, name, spec.id[0])
        if name not in view.known and not view.pipelined:
            yield from find(view, name)
        command = _chosen_command(view, name, entry, spec.fields)
        if view.pipelined:
            view.expect(view.minted(name))
            view.expect(view.chosen(name))
        [reply] = yield Batch([command], attempt=True)
        if isinstance(reply, ReplyError):
            view.known.pop(name, None)
            again = reply.code == "BSSTALE" or (spec.auto_seq and "equal or smaller" in reply.text)
            if not again:
                raise reply
            continue
        view.expect(view.minted(name))
        if view.chosen(name) not in view.known[name]:
            view.expect(view.chosen(name))
        if spec.trim is not None:
            yield from trim_all(view, name, spec.trim)
        return ids.text(entry)
    raise ReplyError(f"ERR others kept adding to {name!r} in the same millisecond. Try again, or use *.")


def _chosen_keys(view: View, name: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    chosen = view.chosen(name)
    return keys.meta(name), view.minted(name).key, chosen.key, chosen.next_life.key


def _chosen_command(view: View, name: bytes, entry: Id, fields: list[bytes]) -> Command:
    minted, chosen = view.minted(name), view.chosen(name)
    below = ids.before(entry)
    assert below is not None, "0-0 is refused before"
    plain = (name,) if keys.shares_slot(name) else ()
    return (
        "FCALL",
        "bs_chosen_add",
        4 + len(plain),
        *_chosen_keys(view, name),
        *plain,
        minted.label,
        chosen.label,
        chosen.life,
        ids.text(entry),
        ids.text(minted.floor(below)),
        ids.text(minted.floor(entry)),
        *fields,
    )


def _ends(view: View, name: bytes) -> Plan[dict[Strand, tuple[Id, dict[bytes, Any]]]]:
    """Where our own strands end, and what XINFO says of every strand."""
    registry, answers = yield from ask(view, name, lambda strand: strand.xinfo())
    found = {}
    for strand, reply in answers:
        info = dict(zip(reply[::2], reply[1::2], strict=True))
        found[strand] = registry.end(strand, ids.native(info[b"last-generated-id"])), info
    return found


def _next_in(view: View, name: bytes, ms: int) -> Plan[Id]:
    """The ID that `ms-*` stands for in liberal mode: the next of that millisecond, as the engine counts."""
    ends = yield from _ends(view, name)
    ours = [end for strand, (end, _) in ends.items() if strand.writer == view.region.writer]
    last = max(ours, default=ids.ZERO)
    if last == ids.LAST:
        raise ReplyError("ERR The stream has exhausted the last possible ID, unable to add more items")
    if last[0] > ms or last == (ms, ids.MAX):
        raise ReplyError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    return (ms, last[1] + 1) if last[0] == ms else (ms, 0)


def set_id(view: View, argv: Argv) -> Plan[bytes]:
    """XSETID: move the last ID of our strands on. Two round trips. It never moves back."""
    name, spec = argv[1], parse_setid(argv)
    for _ in range(_TRIES):
        ends = yield from _ends(view, name)
        if not ends or not (yield from exists(view, name)):
            raise ReplyError("ERR no such key")
        _check_setid(spec.id, spec.entries_added, ends)
        added = _split_added(view, spec.entries_added, ends)
        minted, chosen = view.minted(name), view.chosen(name)
        command: Command = (
            "FCALL",
            "bs_chosen_setid",
            4,
            *_chosen_keys(view, name),
            minted.label,
            chosen.label,
            chosen.life,
            ids.text(spec.id),
            ids.text(minted.floor(spec.id)),
            *added,
            b"" if spec.max_deleted is None else ids.text(spec.max_deleted),
        )
        [reply] = yield Batch([command], attempt=True)
        view.known.pop(name, None)
        if not isinstance(reply, ReplyError):
            return b"OK"
        if reply.code != "BSSTALE":
            raise reply
    raise ReplyError(f"ERR the strands of {name!r} kept changing. Try again.")


def _check_setid(last: Id, added: int | None, ends: dict[Strand, tuple[Id, dict[bytes, Any]]]) -> None:
    tops = [
        strand.user(strict_id(info[b"last-entry"][0]))
        for strand, (_, info) in ends.items()
        if info[b"last-entry"]
    ]
    if tops and last < max(tops):
        raise ReplyError("ERR The ID specified in XSETID is smaller than the target stream top item")
    length = sum(info[b"length"] for _, info in ends.values())
    if length and added is not None and added < length:
        raise ReplyError("ERR The entries_added specified in XSETID is smaller than the target stream length")
    end = max(end for end, _ in ends.values())
    if last < end:
        raise RefusedError(
            "XSETID",
            f"{ids.text(last).decode()} is smaller than the stream's last ID {ids.text(end).decode()}; "
            "moving back would mint IDs twice",
            "Use a larger ID, or DEL the stream to start over",
        )


def _split_added(
    view: View, added: int | None, ends: dict[Strand, tuple[Id, dict[bytes, Any]]]
) -> tuple[bytes | int, bytes | int]:
    """ENTRIESADDED counts the whole stream: what the other strands count is left to the chosen strand."""
    if added is None:
        return b"", b""
    minted = chosen = others = 0
    for strand, (_, info) in ends.items():
        if strand == view.minted(strand.name):
            minted = info[b"length"]
        elif strand == view.chosen(strand.name):
            chosen = info[b"length"]
        else:
            others += info[b"entries-added"]
    return minted, max(chosen, added - minted - others)

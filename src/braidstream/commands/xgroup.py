"""XGROUP: groups, their consumers and their scope. A group is a native group on every strand of the stream.

So the engine keeps pending lists, delivery counts and idle times, and a group's position is a frontier:
an entry that arrives late from another region is still delivered.
"""

from typing import Any, Final, NoReturn

from braidstream.commands.arguments import Argv, fail, integer, option, shown, strict_id
from braidstream.errors import ReplyError
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.registry import EVERYWHERE, ONCE, Registry, bell, group_start
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.append import KNOWN
from braidstream.plan.lookup import look, require_region
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import until_current
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
#
# XGROUP SCOPE, TAKE and GIVE: which regions deliver which strands to a group (model/registry.py).
#
# everywhere    every region delivers all strands; the default
# once          the strands of a region are delivered by one region, their owner: the region itself, until
#               another one takes them or gets them

SYNTAX: Final = "ERR syntax error. Try XGROUP HELP."


def no_group(name: bytes, group: bytes) -> NoReturn:
    """NOGROUP, as XGROUP and XINFO word it."""
    fail(f"NOGROUP No such consumer group '{shown(group)}' for key name '{shown(name)}'")


def parse_scope(word: bytes) -> bytes:
    scope = option(word).lower()
    if scope not in (ONCE, EVERYWHERE):
        fail("ERR SCOPE must be EVERYWHERE or ONCE")
    return scope


def parse_change(view: View, argv: Argv) -> Command:
    """The words of a change, as the function reads them.

    XGROUP SCOPE key group EVERYWHERE|ONCE
    XGROUP TAKE key group REGION id
    XGROUP GIVE key group REGION id TO REGION id [TIMEOUT ms]
    """
    which = option(argv[1])
    if which == b"SCOPE":
        return ("scope", parse_scope(argv[4]))
    region = _region(view, argv, 4)
    if which == b"TAKE":
        return ("take", region)
    if option(argv[6]) != b"TO" or len(argv) == 10:
        fail(SYNTAX)
    to, timeout_ms = _region(view, argv, 7, is_left=False), 0
    if len(argv) == 11:
        if option(argv[9]) != b"TIMEOUT":
            fail(SYNTAX)
        timeout_ms = integer(argv[10], "ERR timeout is not an integer or out of range")
        if not 0 < timeout_ms < 2**40:
            fail("ERR timeout is not an integer or out of range")
    return ("give", region, to, timeout_ms)


def _region(view: View, argv: Argv, at: int, *, is_left: bool = True) -> int:
    """The number after REGION. is_left: it may be a region that was removed for good."""
    if len(argv) <= at + 1 or option(argv[at]) != b"REGION":
        fail(SYNTAX)
    number = integer(argv[at + 1], "ERR region is not an integer or out of range")
    known = view.region.everyone if is_left else view.region.writers
    if number not in known:
        regions = ", ".join(map(str, sorted(known)))
        fail(f"ERR there is no region {number} here. This region knows: {regions}")
    return number


def change_scope(view: View, name: bytes, group: bytes, words: Command) -> Plan[bytes]:
    """XGROUP SCOPE, TAKE and GIVE. In a region that is not the owner, GIVE asks the owner to hand over."""
    left = b" ".join(b"%d" % each for each in view.region.left)
    gone: Command = (left, min(view.region.writers, default=0)) if words[0] == "give" else ()

    def command() -> Plan[Command | None]:
        registry = yield from look(view, name)
        if group not in registry.groups:
            no_group(name, group)
        where = (keys.meta(name), *bell(name, registry.bell))
        own = (group, registry.bell, view.region.writer)
        return ("FCALL", "bs_group_scope", len(where), *where, *own, *words, *gone)

    yield from until_current(view, name, command)
    return b"OK"


# ----------------------------------------------------------------------------------------------------
# Xgroup

SUBCOMMANDS: Final = {
    b"CREATE": (5, None),
    b"SETID": (5, None),
    b"DESTROY": (4, 4),
    b"CREATECONSUMER": (5, 5),
    b"DELCONSUMER": (5, 5),
    b"SCOPE": (5, 5),
    b"TAKE": (6, 6),
    b"GIVE": (9, 11),
    b"HELP": (2, 2),
}
_KEY_NEEDED: Final = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)


def manage(view: View, argv: Argv) -> Plan[Any]:
    """XGROUP CREATE | SETID | DESTROY | CREATECONSUMER | DELCONSUMER | SCOPE | TAKE | GIVE | HELP."""
    which = option(argv[1])
    if which == b"HELP":
        [reply] = yield Batch([tuple(argv)], resend=True)
        return reply
    if which in (b"CREATE", b"SETID"):
        return (yield from _place(view, argv, which == b"CREATE"))
    if which == b"DESTROY":
        return (yield from _destroy(view, argv[2], argv[3]))
    if which in (b"SCOPE", b"TAKE", b"GIVE"):
        return (yield from change_scope(view, argv[2], argv[3], parse_change(view, argv)))
    return (yield from _consumer(view, argv, which == b"CREATECONSUMER"))


def _place(view: View, argv: Argv, create: bool) -> Plan[bytes]:
    """XGROUP CREATE and SETID."""
    name, group, word = argv[2], argv[3], argv[4]
    mkstream, read, once, at = False, None, False, 5
    while at < len(argv):
        if create and option(argv[at]) == b"MKSTREAM":
            mkstream, at = True, at + 1
        elif option(argv[at]) == b"ENTRIESREAD" and at + 1 < len(argv):
            read, at = integer(argv[at + 1]), at + 2
            if read < -1:
                fail("ERR value for ENTRIESREAD must be positive or -1")
        elif create and option(argv[at]) == b"SCOPE" and at + 1 < len(argv):
            once, at = parse_scope(argv[at + 1]) == ONCE, at + 2
        else:
            typed = shown(argv[1])
            fail(f"ERR unknown subcommand or wrong number of arguments for '{typed}'. Try XGROUP HELP.")

    home, is_stale = view.home(name), False

    def command() -> Plan[Command | None]:
        nonlocal mkstream, is_stale
        if is_stale:
            view.forget_strand(home)
        registry = yield from look(view, name)
        # With peers the stream may exist in another region, which is not known here.
        mkstream = mkstream or (create and view.region.journal_writer > 0)
        if not registry.exists and not mkstream:
            fail(_KEY_NEEDED)
        if not create and group not in registry.groups:
            no_group(name, group)
        start = _start(word, create)
        if create and group in registry.groups:
            fail("BUSYGROUP Consumer Group name already exists")
        strands = _wanted(view, name, registry) if create else registry.strands
        known = view.has_seen(home)
        if create and not known and (is_stale or view.carriage.may_look_again):
            yield from require_region(view)
        is_stale = True  # if this is called again
        function = "bs_group_create" if create else "bs_group_setid"
        words = b" MKSTREAM" * mkstream + b" ONCE" * once + (b" " + KNOWN) * known
        flag = b"%d%b" % (view.region.writer, words)
        return _command(function, name, (group, registry.bell), strands, start, read, flag)

    yield from until_current(view, name, command)
    return b"OK"


def join_command(registry: Registry, name: bytes, group: bytes, *, writer: int) -> Command:
    """Create the groups that strands lack although the registry has them. Answers how many.

    writer: our own.
    """
    which = group, registry.bell
    return _command("bs_group_join", name, which, registry.strands, ids.ZERO, None, b"%d" % writer)


def _start(word: bytes, create: bool) -> Id | None:
    """A group's start; None for `$`. SETID, unlike CREATE, also accepts - and +."""
    if option(word) == b"$":
        return None
    if not create and word in (b"-", b"+"):
        return ids.ZERO if word == b"-" else ids.LAST
    return strict_id(word)


def _wanted(view: View, name: bytes, registry: Registry) -> tuple[Strand, ...]:
    """The strands for a new group: existing ones, and those that are likely to be created."""
    if registry.is_log:
        return registry.strands
    likely = [Strand(name, keys.GENERATED, writer) for writer in view.region.writers]
    if view.region.id_mode != "strict":
        likely.append(view.chosen(name))
    labels = {strand.label for strand in registry.strands}
    return (*registry.strands, *(strand for strand in likely if strand.label not in labels))


def _command(
    function: str,
    name: bytes,
    which: tuple[bytes, bytes],
    strands: tuple[Strand, ...],
    start: Id | None,
    read: int | None,
    flag: bytes,
) -> Command:
    """which: the group, and the stamp of the stream's bell."""
    (group, stamp), words = which, list[bytes | int]()
    for strand in strands:
        begin = b"$" if start is None else ids.text(strand.floor(start))
        count: bytes | int = b"" if read is None else read
        words += [strand.label, strand.life, begin, count if len(strands) == 1 or read is None else b""]
    own = keys.turn(name, group), *bell(name, stamp)
    where = (keys.meta(name), *(strand.key for strand in strands), *own)
    later = group_start(start or ids.ZERO, user_counted=read is not None)
    return ("FCALL", function, len(where), *where, group, later, flag, stamp, *words)


def _destroy(view: View, name: bytes, group: bytes) -> Plan[int]:
    journal_writer = b"%d" % view.region.journal_writer if view.region.journal_writer else b""

    def command() -> Plan[Command | None]:
        registry = yield from look(view, name)
        if not registry.exists:
            fail(_KEY_NEEDED)
        which, strands = (group, registry.bell), registry.strands
        return _command("bs_group_destroy", name, which, strands, None, None, journal_writer)

    return int((yield from until_current(view, name, command)))


def _consumer(view: View, argv: Argv, create: bool) -> Plan[int]:
    """XGROUP CREATECONSUMER and DELCONSUMER: a consumer is created on one strand, deleted on all."""
    name, group, consumer = argv[2:5]
    registry = yield from look(view, name)
    if not registry.exists:
        fail(_KEY_NEEDED)
    if group not in registry.groups:
        no_group(name, group)
    try:
        if create:
            return (yield from _create_consumer(registry, group, consumer))
        return (yield from _delete_consumer(view, registry, group, consumer))
    except ReplyError as error:
        # The group was destroyed since we looked, and with it strands that never had an entry.
        if not error.text.startswith(("NOGROUP", "ERR no such key", _KEY_NEEDED)):
            raise
        no_group(name, group)


def _create_consumer(registry: Registry, group: bytes, consumer: bytes) -> Plan[int]:
    # Of one strand the engine itself tells. A list of all consumers takes time for each of them.
    strands = registry.strands if len(registry.strands) > 1 else ()
    looks: list[Command] = [("XINFO", "CONSUMERS", strand.key, group) for strand in strands]
    replies = (yield Batch(looks, resend=True)) if looks else []
    if any(facts(info)[b"name"] == consumer for reply in replies for info in reply):
        return 0
    [made] = yield Batch([("XGROUP", "CREATECONSUMER", registry.strands[0].key, group, consumer)])
    return int(made)


def _delete_consumer(view: View, registry: Registry, group: bytes, consumer: bytes) -> Plan[int]:
    kept = yield from _hidden(view, registry, group, consumer)
    commands: list[Command] = [
        ("XGROUP", "DELCONSUMER", strand.key, group, consumer)
        for strand in registry.strands
        if strand not in kept
    ]
    if not commands:
        return 0
    return sum((yield Batch(commands, atomic=view.carriage.one_step(len(commands)))))


def _hidden(view: View, registry: Registry, group: bytes, consumer: bytes) -> Plan[set[Strand]]:
    """The strands of other owners in which a consumer has pending entries. They are not shown here, and
    deleting them would count as acknowledging them: the owner would skip them."""
    owned = registry.owned(group, view.region)
    others = [strand for strand in registry.strands if strand not in owned]
    if not others:
        return set()
    looks: list[Command] = [("XPENDING", strand.key, group, "-", "+", 1, consumer) for strand in others]
    replies = yield Batch(looks, resend=True)
    return {strand for strand, reply in zip(others, replies, strict=True) if reply}

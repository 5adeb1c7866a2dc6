"""XGROUP SCOPE, TAKE and GIVE: which regions deliver which strands to a group (model/scope.py).

everywhere    every region delivers all strands; the default
once          the strands of a region are delivered by one region, their owner: the region itself, until
              another one takes them or gets them
"""

from typing import Final, NoReturn

from braidstream.commands.arguments import Argv, fail, integer, option, shown
from braidstream.model import keys
from braidstream.model.command import Command
from braidstream.model.meta import bell
from braidstream.model.scope import EVERYWHERE, ONCE
from braidstream.protocol.lookup import look
from braidstream.protocol.plan import Plan
from braidstream.protocol.retries import until_current
from braidstream.protocol.stream_view import View

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
    known = (*view.region.writers, *view.region.left) if is_left else view.region.writers
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

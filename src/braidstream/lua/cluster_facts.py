"""Which region a cluster is: a second library, `braidstream_region`, that every node holds.

A hash like bs:config has a slot, so one node would hold it, and every client would depend on that node. A
library has no slot. It goes to replicas, survives a failover and FLUSHALL, and a read of it has no keys:

    FCALL_RO bs_region 0    region 1 name us-east writer 1 ...      the fields of bs:config

Docs: docs/decisions/0022-a-cluster-holds-its-facts-on-every-node.md.
"""

from collections.abc import Sequence
from typing import Final

from braidstream.errors import BraidError, ReplyError
from braidstream.lua import VERSION, installed, refuse_newer, source
from braidstream.model.fields import ConfigField
from braidstream.model.strand import facts as paired
from braidstream.plan.lookup import NODE_FACTS
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import Retries

NAME: Final = "braidstream_region"
# Both libraries.
_OURS: Final = "braidstream*"
# Which region it is.
WHO: Final = (ConfigField.REGION, ConfigField.NAME)
# Facts that differ in one of these are not joined.
_SAME: Final = (*WHO, ConfigField.IDENTITY)

Facts = dict[bytes, bytes]


def facts_library(facts: Facts) -> str:
    """The text of the library. Every byte of a value is escaped: a name may contain anything."""
    words = ", ".join(_quoted(word) for pair in facts.items() for word in pair)
    callback = f"function() return {{ {words} }} end"
    return (
        f"#!lua name={NAME}\nredis.register_function {{ function_name = 'bs_region', "
        f"flags = {{ 'no-writes' }}, callback = {callback} }}\n"
    )


def _quoted(word: bytes) -> str:
    return "'" + "".join(f"\\{byte:03d}" for byte in word) + "'"


def read_facts() -> Plan[Facts | None]:
    """The facts that a node holds; None if it holds none."""
    [reply] = yield Batch([NODE_FACTS], resend=True, attempt=True)
    if not isinstance(reply, ReplyError):
        return paired(reply)
    if is_missing(reply):
        return None
    raise reply


def is_missing(reply: ReplyError) -> bool:
    """Whether a node refused a call because it lacks the function."""
    return "not found" in reply.text.lower()


def load_facts(facts: Facts) -> Plan[bool]:
    """Store the first facts of a node. False if it holds some already."""
    return (yield from _load(facts_library(facts)))


def put_facts(facts: Facts) -> Plan[None]:
    """Store the facts on a node, joined with those that it holds: another change may have stored some.

    The engine cannot compare before it replaces a library. So a MULTI returns what it has replaced; if that
    is not what was read before, it is joined and stored too.
    """
    retries = Retries("others kept changing which region this node is", error=BraidError)
    here = yield from read_facts()
    while True:
        retries.count()
        if here is None:
            if (yield from load_facts(facts)):
                return
            here = yield from read_facts()
            continue
        facts = join_facts([facts, here])
        if facts == here:
            return
        replaced = yield from _replace(facts)
        if replaced is None or replaced == here:
            return
        facts, here = join_facts([facts, replaced]), facts


def _replace(facts: Facts) -> Plan[Facts | None]:
    """Store the facts; returns those that the node had until now."""
    load = ("FUNCTION", "LOAD", "REPLACE", facts_library(facts))
    before, loaded = yield Batch([NODE_FACTS, load], atomic=True, attempt=True)
    if isinstance(loaded, ReplyError):
        raise loaded
    return None if isinstance(before, ReplyError) else paired(before)


def join_facts(found: Sequence[Facts]) -> Facts:
    """The facts with the highest `topology`, with the writers and the removed regions of all.

    These sets only grow, except that a removed region is not a writer. So they survive two changes at once,
    where a failover lost the lock. So does what `_lasting` lists. Of other facts those of the newest remain.
    A node of another cluster, which was a region of the same number and name, adds nothing: its identity
    differs.
    """
    newest = max(found, key=_topology)
    same = [facts for facts in found if all(facts.get(field) == newest.get(field) for field in _SAME)]
    left = set[int]().union(*(numbers(facts, ConfigField.LEFT) for facts in same))
    writers = set[int]().union(*(numbers(facts, ConfigField.WRITERS) for facts in same)) - left
    return with_topology(newest, with_numbers(newest, writers, left) | _lasting(newest, same))


def _lasting(newest: Facts, same: Sequence[Facts]) -> Facts:
    """When the region got its first peer, whether it has adopted streams, and the fence.

    A fence is removed some day, so that of older facts does not count. Of two changes at once, the one with
    a fence wins: a region must not serve clients too early.
    """
    found = Facts()
    times = [int(facts[ConfigField.MET]) for facts in same if ConfigField.MET in facts]
    if times:
        found[ConfigField.MET] = b"%d" % max(times)
    if any(ConfigField.ADOPTED in facts for facts in same):
        found[ConfigField.ADOPTED] = b"1"
    for facts in (newest, *same):
        if ConfigField.FENCED in facts and _topology(facts) == _topology(newest):
            found.setdefault(ConfigField.FENCED, facts[ConfigField.FENCED])
    return found


def with_topology(known: Facts, wanted: Facts) -> Facts:
    """What is wanted, with the next `topology` if it differs from what is known."""
    return wanted if wanted == known else {**wanted, ConfigField.TOPOLOGY: b"%d" % (_topology(known) + 1)}


def _topology(facts: Facts) -> int:
    return int(facts[ConfigField.TOPOLOGY])


def numbers(facts: Facts, field: bytes) -> set[int]:
    return {*map(int, facts.get(field, b"").split())}


def with_numbers(facts: Facts, writers: set[int], left: set[int]) -> Facts:
    """The facts with these writers and removed regions."""
    changed = {ConfigField.WRITERS: _text(writers)}
    if left:
        changed[ConfigField.LEFT] = _text(left)
    return {**facts, **changed}


def _text(chosen: set[int]) -> bytes:
    return b" ".join(b"%d" % number for number in sorted(chosen))


def _load(text: str) -> Plan[bool]:
    [reply] = yield Batch([("FUNCTION", "LOAD", text)], attempt=True)
    if not isinstance(reply, ReplyError):
        return True
    if "already exists" in reply.text:
        return False
    raise reply


def load_functions(*, force: bool = False) -> Plan[int]:
    """Bring a node to this version of the engine functions. Returns the version it had before.

    `lua.load` does it under WATCH. Here no key could be WATCHed: which one the node holds changes.
    """
    before = yield from installed()
    if not force:
        refuse_newer(before, VERSION)
    if before < VERSION or force:
        yield Batch([("FUNCTION", "LOAD", "REPLACE", source())])
    return before


def read_libraries() -> Plan[list[bytes]]:
    """The texts of both libraries, from a node that has them. Empty if it lacks one."""
    [rows] = yield Batch([("FUNCTION", "LIST", "LIBRARYNAME", _OURS, "WITHCODE")], resend=True)
    found = [paired(row)[b"library_code"] for row in rows]
    return found if len(found) == 2 else []


def load_libraries(texts: Sequence[bytes]) -> Plan[None]:
    """Give both libraries to a node that lacks them: a primary that was added later."""
    for text in texts:
        yield from _load(text.decode())

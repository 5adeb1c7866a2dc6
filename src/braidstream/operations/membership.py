"""Make a database or a cluster a region, and change how it behaves: `braid init` and `braid tune`."""

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

from braidstream.errors import (
    BraidError,
    ConfigError,
    LostPartError,
    NotARegionError,
    RegionTakenError,
    ReplyError,
)
from braidstream.lua.cluster_facts import (
    WHO,
    Facts,
    join_facts,
    load_facts,
    load_functions,
    put_facts,
    read_facts,
    with_topology,
)
from braidstream.model.fields import ConfigField
from braidstream.model.ids import CLOCK_BOUND_MS, LAST_WRITER
from braidstream.model.keys import CONFIG, PREFIX, TUNE, is_of_stream
from braidstream.model.region import DURABILITY, FLUSHED, ID_MODES, Region
from braidstream.model.strand import Command
from braidstream.plan.lookup import info_facts, read_info, read_ms, read_region, scan_page
from braidstream.plan.plan import Batch, Plan, ending_watch
from braidstream.plan.retries import Retries

# Smaller changes of a clock difference are not written.
NOTED_MS: Final = 1_000
# The ID mode of a new region.
STRICT: Final = ID_MODES[0]
# Fields that follow the first ones, for a region that lost them. `braid init` writes identity and library.
_FURTHER: Final = {
    ConfigField.IDENTITY: b"",
    ConfigField.LIBRARY: b"1",
    ConfigField.RUN: b"-",
    ConfigField.ALIVE: b"0",
}


def initialise(region: int, name: str, *, fenced: bool = False, id_mode: str = STRICT) -> Plan[Region]:
    """Write `bs:config`, once; repeating it changes nothing. A server that lost data is refused.

    fenced: it will be restored. Serve no client yet, and write what `bs:config` lost.
    """
    check_names(region, name)
    yield from refuse_eviction()
    known = yield from ending_watch(_written(first_facts(region, name, id_mode), fenced=fenced))
    if (known.id, known.name) != (region, name):
        raise RegionTakenError(has=f"region {known.id} ({known.name})", wanted=f"region {region} ({name})")
    return known if known.identity else (yield from _identify())


def _written(first: dict[bytes, bytes], *, fenced: bool) -> Plan[Region]:
    """What `bs:config` says, after this or another client has written it."""
    while True:
        yield Batch([("WATCH", CONFIG)])
        try:
            known = yield from _whole_region()
        except NotARegionError:
            missing = first | ({ConfigField.FENCED: FLUSHED} if fenced else {})
        except LostPartError as error:
            again = {**first, **_FURTHER}
            missing = {field: again[field] for field in error.fields}
            if not fenced:
                raise LostPartError(error.fields, first[ConfigField.NAME], _go_on(missing)) from None
            missing |= yield from _all_in_doubt()
        else:
            yield Batch([("UNWATCH",)])
            return known
        yield Batch([("HSET", CONFIG, *(word for pair in missing.items() for word in pair))], atomic=True)


def _all_in_doubt() -> Plan[dict[bytes, bytes]]:
    """A fence, and a window of doubt over all times: it is unknown what else was lost, and when."""
    now_ms = yield from read_ms()
    window = b"0-%d" % (now_ms + CLOCK_BOUND_MS)
    process = {field: _FURTHER[field] for field in (ConfigField.RUN, ConfigField.ALIVE)}
    return {**process, ConfigField.DOUBTS: window, ConfigField.FENCED: b"1"}


def _whole_region() -> Plan[Region]:
    """The region. LostPartError also if there are streams, and nothing says that functions were ever loaded:
    no client can have written them after a `braid init` that was interrupted."""
    known = yield from read_region()
    if not known.library and not known.fenced and (yield from _has_streams()):
        identity = () if known.identity else (ConfigField.IDENTITY,)
        raise LostPartError([*identity, ConfigField.LIBRARY], known.name.encode())
    return known


def _has_streams() -> Plan[bool]:
    cursor = 0
    while True:
        cursor, found = yield from scan_page(cursor, PREFIX + b"*")
        if any(map(is_of_stream, found)):
            return True
        if not cursor:
            return False


def _go_on(missing: dict[bytes, bytes]) -> str:
    words = " ".join(shlex.quote(word.decode()) for pair in missing.items() for word in pair)
    return (
        ". If no other region has it, restore a backup; or go on with what is left: "
        f"redis-cli HSET {CONFIG.decode()} {words}, and run this again."
    )


def check_names(region: int, name: str) -> None:
    """Refuse a number or a name that a region cannot have."""
    if not 1 <= region <= LAST_WRITER:
        raise BraidError(
            f"region {region} is not between 1 and {LAST_WRITER}. Give each region its own number there."
        )
    if not name or len(name) > 64:
        raise BraidError("a region's name has 1 to 64 characters. Use a short one, like us-east.")


def first_facts(region: int, name: str, id_mode: str) -> dict[bytes, bytes]:
    """What a new region is: the fields of `bs:config`."""
    number = b"%d" % region
    return {
        ConfigField.REGION: number,
        ConfigField.NAME: name.encode(),
        ConfigField.ID_MODE: id_mode.encode(),
        ConfigField.WRITER: number,
        ConfigField.WRITERS: number,
        ConfigField.TOPOLOGY: b"1",
    }


def _identify() -> Plan[Region]:
    """Record which server became this region. A promoted replica has the same record."""
    yield Batch([("HSET", CONFIG, ConfigField.IDENTITY, (yield from _run_id()))])
    return (yield from read_region())


def refuse_eviction() -> Plan[None]:
    """Refuse eviction: an evicted strand loses its last ID. INFO works also where CONFIG is forbidden."""
    policy = (yield from read_info("memory")).get(b"maxmemory_policy", b"noeviction").decode()
    if policy.startswith("allkeys"):
        raise BraidError(
            f"this server evicts any key when memory is full (maxmemory-policy {policy}). A strand would be "
            "lost with its last ID. Set maxmemory-policy to noeviction or volatile-*, and run this again."
        )


def set_fence(up: bool) -> Plan[Region]:
    """Whether a region serves clients. Running clients follow within a second."""
    fence: Command = ("HSETNX", CONFIG, ConfigField.FENCED, 1) if up else ("HDEL", CONFIG, ConfigField.FENCED)
    yield Batch([fence, ("HINCRBY", CONFIG, ConfigField.TOPOLOGY, 1)])
    return (yield from read_region())


def note_marked() -> Plan[None]:
    """What clients wrote to a flushed server is marked. Everything that comes now is restored."""
    yield Batch([("HSET", CONFIG, ConfigField.FENCED, 1)])


def meet(writers: Iterable[int]) -> Plan[Region]:
    """Add writers to a region. Running clients follow within a second.

    Writes nothing if the region has them already: it may refuse writes at the moment.
    """
    wanted, known = set(writers), (yield from read_region())
    if wanted.issubset(known.everyone):
        return known
    return (yield from _change_writers("meet", wanted))


def part(writers: Iterable[int]) -> Plan[Region]:
    """Mark writers as gone for good. Their entries stay."""
    return (yield from _change_writers("part", writers))


def _change_writers(verb: str, writers: Iterable[int]) -> Plan[Region]:
    """One function call, safe with concurrent ones. It is idempotent, so it may be resent."""
    [reply] = yield Batch(
        [("FCALL", "bs_region_writers", 1, CONFIG, verb, *writers)], resend=True, attempt=True
    )
    if isinstance(reply, ReplyError):
        if reply.code != "BSSELF":
            raise reply
        known = yield from read_region()
        raise BraidError(
            f"this is region {known.id} ({known.name}) itself. Run it with the file of the others."
        )
    return Region.parse(reply)


class Waiting(IntEnum):
    """Which clients wait until the home strands are raised (lua/database.lua)."""

    NOBODY = 0
    LOGS = 1
    EVERYBODY = 2


def show_alive(highest_ms: int = 0, *, raised: bool = False) -> Plan[tuple[Waiting, bool]]:
    """Record which process serves the region now, and its highest generated ID. If the process has changed,
    writes since the last record may be lost (Region.doubts).

    Returns which clients wait until the home strands are raised (`raised`: they are), and whether the region
    is fenced. Does nothing if the server refuses writes; the daemon calls it again.
    """
    [info] = yield Batch([("INFO", "server")], resend=True, attempt=True)
    if isinstance(info, ReplyError):
        return Waiting.NOBODY, False
    run_id = info_facts(info).get(b"run_id", b"")
    call = ("FCALL", "bs_region_alive", 1, CONFIG, run_id, highest_ms, int(raised))
    [reply] = yield Batch([call], attempt=True)
    waits, fenced = (0, 0) if isinstance(reply, ReplyError) else reply
    return Waiting(waits), bool(fenced)


def note_behind(writer: int, behind_ms: int) -> Plan[None]:
    """Record by how much a peer's clock is behind ours; 0 if it is not. Small changes are not written."""
    known = dict((yield from read_region()).behind_ms).get(writer, 0)
    if not behind_ms and known:
        yield Batch([("HDEL", CONFIG, ConfigField.BEHIND + b"%d" % writer)])
    elif abs(behind_ms - known) > NOTED_MS:
        yield Batch([("HSET", CONFIG, ConfigField.BEHIND + b"%d" % writer, behind_ms)])


def check_id_mode(mode: str) -> None:
    if mode not in ID_MODES:
        raise BraidError(f"{mode!r} is no ID mode. Choose one of: {', '.join(ID_MODES)}.")


def tune_id_mode(mode: str) -> Plan[Region]:
    """Set which IDs XADD accepts in this region. Running clients follow within a second."""
    check_id_mode(mode)
    yield from read_region()
    yield Batch([("HSET", CONFIG, ConfigField.ID_MODE, mode), ("HINCRBY", CONFIG, ConfigField.TOPOLOGY, 1)])
    return (yield from read_region())


def tune_durability(value: str | None) -> Plan[None]:
    """Set what the region's daemons wait for before they send an entry; None: what their file says.

    They follow within seconds.
    """
    yield Batch([("HDEL", TUNE, "durability") if value is None else ("HSET", TUNE, "durability", value)])


def read_durability() -> Plan[str]:
    """What `tune_durability` set; empty if nothing, or if it cannot be read."""
    [found] = yield Batch([("HGET", TUNE, "durability")], resend=True, attempt=True)
    text = found.decode("ascii", "replace") if isinstance(found, bytes) else ""
    return text if re.match(DURABILITY, text) else ""


# ----------------------------------------------------------------------------------------------------
#
# Make a cluster a region: what `braid init` runs on its primaries.
#
# Two concurrent calls for different regions both begin with the primary whose ID is the smallest. The
# engine lets one of them create the facts there, and the other one finds them. If a call ends half-way, the
# next one completes it.

# Runs a plan on one primary.
Node = Callable[[Plan[Any]], Any]


def initialise_cluster(
    primaries: Sequence[Node],
    region: int,
    name: str,
    *,
    fenced: bool = False,
    id_mode: str = STRICT,
    force: bool = False,
) -> tuple[Region, int]:
    """Store the facts and the functions on every primary; repeating it changes nothing. force: replace the
    functions, whatever they are.

    fenced: serve no client yet, if a primary has no facts: it is new, or lost its data. The fence is put up
    before the functions are loaded, because clients can write from then on.

    Returns the region, and the lowest version of the functions that a primary had before.
    """
    check_names(region, name)
    nodes = sorted(primaries, key=lambda node: bytes(node(_node_id())))
    for node in nodes:
        node(refuse_eviction())
    facts = _agree(nodes, first_facts(region, name, id_mode), fenced=fenced)
    before = min(node(load_functions(force=force)) for node in nodes)
    return Region.parse([word for pair in facts.items() for word in pair], is_cluster=True), before


def _agree(nodes: Sequence[Node], first: Facts, *, fenced: bool) -> Facts:
    """The facts of all nodes, the same on each of them afterwards. first: if none of them has any."""
    retries = Retries("others kept changing which region this cluster is", error=BraidError)
    while True:
        retries.count()
        found = [node(read_facts()) for node in nodes]
        known = agreed_facts([each for each in found if each is not None])
        if known is None:
            fence = {ConfigField.FENCED: FLUSHED} if fenced else {}
            nodes[0](load_facts({**first, **fence, ConfigField.IDENTITY: nodes[0](_run_id())}))
            continue  # read what this or another call has stored
        if any(known[field] != first[field] for field in WHO):
            raise RegionTakenError(has=_shown(known), wanted=_shown(first))
        if fenced and None in found:
            known = with_topology(known, {ConfigField.FENCED: b"1", **known})
        if all(each == known for each in found):
            return known
        for node in nodes:
            node(put_facts(known))


def agreed_facts(found: Sequence[Facts]) -> Facts | None:
    """The facts of several nodes, joined. An error if they belong to different regions."""
    if not found:
        return None
    refuse_other_regions(map(_shown, found))
    return join_facts(sorted(found, key=lambda each: each[ConfigField.IDENTITY], reverse=True))


def refuse_other_regions(shown: Iterable[str]) -> None:
    """An error if the nodes of a cluster say that they are different regions."""
    regions = sorted({*shown})
    if len(regions) > 1:
        raise ConfigError(
            f"the nodes of this cluster are different regions: {' and '.join(regions)}. One of them was "
            "added with the functions of its former region. On that node, run: FUNCTION DELETE "
            "braidstream_region. Then run: braid init"
        )


def _shown(facts: Facts) -> str:
    number, name = (facts[field].decode("utf-8", "replace") for field in WHO)
    return f"region {number} ({name})"


def _node_id() -> Plan[bytes]:
    [reply] = yield Batch([("CLUSTER", "MYID")], resend=True)
    return bytes(reply)


def _run_id() -> Plan[bytes]:
    return (yield from read_info("server"))[b"run_id"]

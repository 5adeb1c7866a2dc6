"""Make a cluster a region: what `braid init` runs on its primaries.

Two concurrent calls for different regions both begin with the primary whose ID is the smallest. The engine
lets one of them create the facts there, and the other one finds them. If a call ends half-way, the next one
completes it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from braidstream.admin.membership import STRICT, check_names, first_facts, refuse_eviction
from braidstream.errors import BraidError, ConfigError, RegionTakenError
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
from braidstream.model.region_config import FLUSHED, Region
from braidstream.protocol.identify import info_facts
from braidstream.protocol.plan import Batch, Plan
from braidstream.protocol.retries import Retries

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
    [info] = yield Batch([("INFO", "server")], resend=True)
    return info_facts(info)[b"run_id"]

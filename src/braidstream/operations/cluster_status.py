"""A region that is a cluster, as `braid status` shows it: a view of each node, and all of them as one.

What is wrong with a node, and with the cluster, is in `View.node_problems` of the whole.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from braidstream.errors import BraidError, NotARegionError, ReplyError
from braidstream.lua import VERSION
from braidstream.model.region import Region
from braidstream.operations.cluster_map import READ_NODES, ClusterNode, by_itself, spans_text, unserved
from braidstream.operations.status import Memory, Problem, View, clock_problem, read_about, server_problems
from braidstream.plan.lookup import ASK_NODE, node_region
from braidstream.plan.plan import Plan

_AGAIN: Final = "Run braid init again."


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node and its view. view.region: None if it lacks the functions or the facts about the region."""

    node: ClusterNode
    view: View


def read_node_view(number: int, node: ClusterNode, peers: Sequence[int]) -> Plan[NodeView]:
    """One round trip. A node has the keys of its own slots only: what daemons store is on one of them."""
    view, found = yield from read_about(View(number, node.name), peers, [*ASK_NODE, READ_NODES])
    *facts, listed = found
    node = by_itself(node, listed)
    try:
        return NodeView(node, view if view.error else replace(view, region=node_region(*facts)))
    except NotARegionError:
        return NodeView(node, view)
    except ReplyError as error:
        return NodeView(node, replace(view, error=str(error), code=error.code))


def join_nodes(number: int, name: str, nodes: Sequence[NodeView]) -> View:
    """The view of the whole region."""
    sound = [each.view for each in nodes if not each.view.error]
    known = [view.region for view in sound if view.region is not None]
    if not known:
        error: BraidError = NotARegionError()
        lost = next((each.view for each in nodes if each.view.error), None)
        text, code = (error.args[0], error.code) if sound or lost is None else (lost.error, lost.code)
        return View(number, name, error=str(text), code=code)
    region = max(known, key=lambda each: each.topology)
    primaries = [each.view for each in nodes if each.node.is_primary and not each.view.error]
    holder = next((view for view in primaries if view.daemons), sound[0])
    return View(
        number,
        name,
        region=replace(region, library=max(each.library for each in known)),
        now_ms=holder.now_ms,
        engine=_engine(nodes, sound),
        memory=Memory(sum(v.memory.used for v in primaries), sum(v.memory.most for v in primaries)),
        daemons=holder.daemons,
        claims=frozenset(claim for view in primaries for claim in view.claims),
        clock_ms=statistics.median_low([view.clock_ms for view in sound]),
        clock_error_ms=max(view.clock_error_ms for view in sound),
        nodes=tuple(_node_facts(each) for each in nodes),
        node_problems=tuple(_problems(name, region, nodes)),
    )


def _engine(nodes: Sequence[NodeView], sound: Sequence[View]) -> str:
    engines = ", ".join(sorted({view.engine for view in sound}))
    primaries = sum(bool(each.node.slots) for each in nodes)
    replicas = sum(not each.node.is_primary for each in nodes)
    copies = f", {replicas} replica{'s' if replicas > 1 else ''}" if replicas else ""
    return f"{engines}, {primaries} primar{'ies' if primaries > 1 else 'y'}{copies}"


def _node_facts(each: NodeView) -> dict[str, Any]:
    """For scripts."""
    view = each.view
    return {
        "name": each.node.name,
        "role": "primary" if each.node.is_primary else "replica",
        "slots": sum(last - first + 1 for first, last in each.node.slots),
        "error": view.error or None,
        "engine": view.engine,
        "functions": view.region.library if view.region else None,
        "memory": {"used": view.memory.used, "max": view.memory.most},
        "clock_ms": round(view.clock_ms),
    }


def _problems(name: str, region: Region, nodes: Sequence[NodeView]) -> Iterator[Problem]:
    missing = unserved([each.node for each in nodes])
    if missing:
        text = f"no node serves the slots {spans_text(missing)}: commands on their streams fail"
        yield Problem("slots", name, text, "Bring their primary back, or run: redis-cli --cluster fix")
    sound = [each.view.clock_ms for each in nodes if not each.view.error]
    middle = statistics.median_low(sound)
    for each in nodes:
        view, where = each.view, (each.node.name,)
        if each.node.has_failed or view.error:
            why = view.error.rstrip(".") or "the other nodes say that it has failed"
            role = "a primary" if each.node.is_primary else "a replica"
            text = f"{role} cannot be used: {why}"
            yield Problem("node", name, text, "Check the server, its address and the password.", where)
            continue
        found = [*server_problems(view), *clock_problem(view, middle), *_of_functions(view, region)]
        for problem in found:
            yield replace(problem, where=name, nodes=where)


def _of_functions(view: View, region: Region) -> Iterator[Problem]:
    has = view.region
    if has is None:
        text = "it lacks the engine functions, so clients cannot use its streams"
        yield Problem("functions", view.name, text, _AGAIN)
    elif has.library < VERSION:
        text = f"its engine functions have version {has.library}, this program needs {VERSION}"
        yield Problem("version", view.name, text, _AGAIN)
    if has is not None and (has.id, has.name) != (region.id, region.name):
        text = f"it says that it belongs to region {has.id} ({has.name})"
        fix = "On that node: FUNCTION DELETE braidstream_region. Then run braid init again."
        yield Problem("identity", view.name, text, fix)
    elif has is not None and has.topology < region.topology:
        text = "it has older facts about the region than other nodes, so its clients use old settings"
        yield Problem("facts", view.name, text, _AGAIN)

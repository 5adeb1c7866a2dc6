"""The nodes of a cluster and their slots, as one of them sees them: CLUSTER NODES and CLUSTER SLOTS."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from braidstream.clusters.slots import READ_SLOTS, SLOTS, node_places
from braidstream.engine.sentinels import Place
from braidstream.errors import ReplyError
from braidstream.plan.plan import Batch, Plan

_NAMED: Final = 5
# Nodes that are no members yet, or whose address is not known.
_STRANGERS: Final = frozenset(("handshake", "noaddr"))

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """slots: first and last of each range that it serves. moving: slots on their way from or to it, by the
    node itself: others do not know them."""

    id: str
    host: str
    port: int
    flags: frozenset[str]
    slots: tuple[Span, ...] = ()
    moving: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def place(self) -> Place:
        return self.host, self.port

    @property
    def is_primary(self) -> bool:
        return "master" in self.flags

    @property
    def has_failed(self) -> bool:
        """Whether the cluster says so."""
        return "fail" in self.flags


READ_NODES: Final = ("CLUSTER", "NODES")


def read_nodes(host: str) -> Plan[list[ClusterNode]]:
    """All nodes. host: of the one that is asked. It names itself without a host if it knows no better."""
    text, slots = yield Batch([READ_NODES, READ_SLOTS], resend=True, attempt=True)
    if isinstance(text, ReplyError):
        raise text
    places = {} if isinstance(slots, ReplyError) else node_places(slots, host)
    return parse_nodes(bytes(text), host, places)


def by_itself(node: ClusterNode, text: Any) -> ClusterNode:
    """The same node, with the slots that it says it has. text: its own reply to CLUSTER NODES."""
    found = [] if isinstance(text, ReplyError) else parse_nodes(bytes(text), node.host, {})
    own = next((each for each in found if each.id == node.id), node)
    return replace(node, slots=own.slots, moving=own.moving)


def parse_nodes(text: bytes, host: str, places: dict[str, Place]) -> list[ClusterNode]:
    """The nodes in a reply to CLUSTER NODES. places: where clients reach them, if that is known."""
    found = list[ClusterNode]()
    for line in text.decode().splitlines():
        node, where, words, _, _, _, _, _, *slots = line.split()
        flags = frozenset(words.split(","))
        if flags & _STRANGERS:
            continue
        at = where.partition("@")[0].rpartition(":")
        place = places.get(node, (at[0] or host, int(at[2])))
        spans = tuple(_span(each) for each in slots if not each.startswith("["))
        moving = tuple(int(each[1:].partition("-")[0]) for each in slots if each.startswith("["))
        found.append(ClusterNode(node, *place, flags, spans, moving))
    return found


def _span(text: str) -> Span:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def unserved(nodes: Sequence[ClusterNode]) -> list[Span]:
    """The slots that no node serves, or only one that has failed."""
    spans = sorted(span for node in nodes if not node.has_failed for span in node.slots)
    found, following = list[Span](), 0
    for first, last in [*spans, (SLOTS, SLOTS)]:
        if first > following:
            found.append((following, first - 1))
        following = max(following, last + 1)
    return found


def spans_text(spans: Sequence[Span]) -> str:
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def place_text(where: str, nodes: Sequence[str]) -> str:
    """A region, and which nodes of it."""
    if not nodes:
        return where
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return f"{where} ({', '.join(nodes[:_NAMED])}{more})"

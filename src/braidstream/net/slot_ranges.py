"""Which primary of a cluster serves which slots: the reply to CLUSTER SLOTS. No I/O."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from braidstream.net.sentinels import Place

SLOTS: Final = 16_384
READ_MAP: Final = ("CLUSTER", "SLOTS")


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Both ends are included."""

    first: int
    last: int
    primary: Place
    replicas: tuple[Place, ...]


def parse_slots(reply: Iterable[Any], answered_by: str) -> Iterator[SlotRange]:
    """answered_by: the host of the node that replied."""
    for first, last, *nodes in reply:
        primary, *replicas = (_place(node, answered_by) for node in nodes)
        yield SlotRange(int(first), int(last), primary, tuple(replicas))


def _place(node: Any, answered_by: str) -> Place:
    """A node names itself with an empty host if it has not learned its own address, or if its cluster shares
    one address."""
    host = bytes(node[0] or b"").decode()
    return (host if host not in ("", "?") else answered_by), int(node[1])

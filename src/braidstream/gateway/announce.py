"""The gateways as a cluster: what cluster clients see if `--announce` names the gateways.

    slots 0-8191        10.0.0.1:6390     Every gateway serves every slot, so no client is redirected.
    slots 8192-16383    10.0.0.2:6390     The slots only spread clients over the gateways.

A gateway that does not answer is left out, and the slots are dealt to the others. The gateways do not know
each other otherwise. This says nothing of the engine behind them, which may be one server or a cluster.
"""

import asyncio
import re
import ssl
from collections.abc import Sequence
from hashlib import blake2b
from ipaddress import ip_address
from typing import Any, Final

from braidstream.clusters.command_keys import slot_of
from braidstream.clusters.slots import SLOTS
from braidstream.engine.resp import Words, encode
from braidstream.engine.sentinels import Place
from braidstream.errors import RefusedError
from braidstream.model.strand import bulk
from braidstream.observability.events import emit

_PROBE_S: Final = 1.0
_ANSWERS_WITHIN_S: Final = 2.0
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_NOWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - refused
_ANSWERED: Final = frozenset((b"SLOTS", b"SHARDS", b"NODES", b"INFO", b"MYID", b"KEYSLOT"))
_INFO: Final = (
    "cluster_state:ok\r\ncluster_slots_assigned:{slots}\r\ncluster_slots_ok:{slots}\r\n"
    "cluster_slots_pfail:0\r\ncluster_slots_fail:0\r\ncluster_known_nodes:{nodes}\r\ncluster_size:{nodes}\r\n"
    "cluster_current_epoch:1\r\ncluster_my_epoch:1\r\n"
)


def parse_announced(text: str) -> tuple[Place, ...]:
    """HOST:PORT,HOST:PORT,... ValueError if a client could not connect to one of them."""
    places = list[Place]()
    for word in text.split(","):
        found = _ADDRESS.fullmatch(word.strip())
        place = (found[1].strip("[]"), int(found[2])) if found else ("", 0)
        if not 0 < place[1] <= 65535 or not _is_host(place[0]):
            raise ValueError(f"{word.strip()!r} is not a gateway's address. Write HOST:PORT,HOST:PORT,...")
        if place[0] in _NOWHERE:
            raise ValueError(f"clients cannot connect to {word.strip()}. Name an address that they reach.")
        if place in places:
            raise ValueError(f"{word.strip()} is named twice. Name each gateway once.")
        places.append(place)
    return tuple(places)


def _is_host(host: str) -> bool:
    try:
        return bool(host.encode("idna"))
    except UnicodeError:  # a part of it is empty or too long
        return False


def node_id(place: Place) -> bytes:
    """The same at every gateway, and after a restart."""
    return blake2b(_shown(place).encode(), digest_size=20).hexdigest().encode()


def refusal_of(words: Words) -> RefusedError | None:
    """The error for a CLUSTER command that only a real cluster can run."""
    about = words[1].upper() if words[0].upper() == b"CLUSTER" and len(words) > 1 else b"SLOTS"
    if about in _ANSWERED:
        return None
    command = f"CLUSTER {about.decode('ascii', 'replace')}"
    if about in (b"COUNTKEYSINSLOT", b"GETKEYSINSLOT"):
        return RefusedError(command, "the gateway has no index of the keys of a slot", "Use SCAN")
    why = "the nodes of this cluster are gateways, which --announce names"
    return RefusedError(command, why, "Run it at a node of the engine's own cluster, if it is one")


class Announced:
    """See the top of the file. uses_tls: the gateways listen with TLS."""

    def __init__(self, places: Sequence[Place], *, uses_tls: bool) -> None:
        self._places = sorted(places)  # however they were listed, all gateways deal the same slots
        self._lost = set[Place]()
        self._answered = set[Place]()
        self._own: Place | None = None
        self._tls = _unverified() if uses_tls else None

    # What clients see

    def reply_to(self, words: Words, resp: int) -> bytes:
        """The reply to a command that `refusal_of` does not refuse, and that the engine would accept."""
        about = words[1].upper() if words[0].upper() == b"CLUSTER" else b""
        if about == b"KEYSLOT":
            return b":%d\r\n" % slot_of(words[2])
        if about == b"SLOTS":
            return encode([[*slots, _endpoint(place)] for place, slots in self._dealt()], resp, b"")
        if about == b"SHARDS":
            return encode([self._shard(place, slots) for place, slots in self._dealt()], resp, b"")
        if about == b"MYID":
            return bulk(node_id(self._myself))
        if about == b"NODES":
            return _text("".join(self._node(place, slots) for place, slots in self._dealt()), resp)
        if about == b"INFO":
            return _text(_INFO.format(slots=SLOTS, nodes=len(self._listed)), resp)
        return b"+OK\r\n"  # READONLY, READWRITE, ASKING

    @property
    def _listed(self) -> list[Place]:
        """Without those that answered and no longer do. What we never reached, clients may reach."""
        gone = (self._lost & self._answered) - {self._own}
        return [each for each in self._places if each not in gone] or self._places

    @property
    def _myself(self) -> Place:
        """The first one if this gateway does not recognise its own address, as behind a port mapping."""
        return self._own or self._listed[0]

    def _dealt(self) -> list[tuple[Place, list[int]]]:
        """The first and last slot of each gateway."""
        listed = self._listed
        ends = [SLOTS * number // len(listed) for number in range(len(listed) + 1)]
        return [(place, [ends[at], ends[at + 1] - 1]) for at, place in enumerate(listed)]

    def _node(self, place: Place, slots: list[int]) -> str:
        flags = "myself,master" if place == self._myself else "master"
        name, bus = node_id(place).decode(), place[1] + 10_000
        return f"{name} {_shown(place)}@{bus} {flags} - 0 0 1 connected {slots[0]}-{slots[1]}\n"

    def _shard(self, place: Place, slots: list[int]) -> dict[bytes, Any]:
        host, port = place[0].encode(), place[1]
        node = {
            b"id": node_id(place),
            b"port" if self._tls is None else b"tls-port": port,
            b"ip": host,
            b"endpoint": host,
            b"role": b"master",
            b"replication-offset": 0,
            b"health": b"online",
        }
        return {b"slots": slots, b"nodes": [node]}

    # Which gateways answer

    async def watch(self, listen: Place) -> None:
        """Keep the list up to date. listen: where this gateway listens."""
        await asyncio.gather(*(self._watch_one(place, listen) for place in self._places))

    async def _watch_one(self, place: Place, listen: Place) -> None:
        while True:
            answers = await self._answers(place, listen)
            if answers:
                self._answered.add(place)
            if answers and place in self._lost:
                self._lost.discard(place)
                emit("announced.up", gateway=_shown(place))
            elif not answers and place not in self._lost:
                self._lost.add(place)
                emit("announced.lost", gateway=_shown(place))
            await asyncio.sleep(_PROBE_S)

    async def _answers(self, place: Place, listen: Place) -> bool:
        """QUIT costs the other gateway little: it does not use the engine, and needs no login.

        With TLS it costs a handshake, which is an answer already. The gateway may then want a
        certificate that we lack.
        """
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                reader, writer = await asyncio.open_connection(*place, ssl=self._tls)
                try:
                    if self._own is None and _leads_to(listen, writer):
                        self._own = place
                    writer.write(b"QUIT\r\n")
                    return self._tls is not None or bool(await reader.read(1))
                finally:
                    writer.close()
        except OSError:
            return False


def _leads_to(listen: Place, writer: asyncio.StreamWriter) -> bool:
    """Whether a connection ends at this address of this machine, or at any if it listens on all."""
    here, there = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
    if not here or not there or there[1] != listen[1]:  # none if it was closed at once
        return False
    if not ip_address(listen[0]).is_unspecified:
        return bool(there[0] == listen[0])
    return bool(here[0] == there[0] or ip_address(there[0]).is_loopback)


def _unverified() -> ssl.SSLContext:
    """Only to see whether a gateway answers: nothing is sent to it but QUIT."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _shown(place: Place) -> str:
    return f"{place[0]}:{place[1]}"


def _endpoint(place: Place) -> list[Any]:
    return [place[0].encode(), place[1], node_id(place), []]


def _text(text: str, resp: int) -> bytes:
    """As the engine sends a text for people: a verbatim string in RESP3."""
    return bulk(text.encode()) if resp == 2 else b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text.encode())

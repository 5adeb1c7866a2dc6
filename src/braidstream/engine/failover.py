"""A planned failover that loses nothing, whatever clients write to the old primary.

    pause writes     replicas have all     SENTINEL FAILOVER     promoted     REPLICAOF     unpause, reconnect
         |---------------- up to a second ------|---------- about a second -------|-------------|

SENTINEL FAILOVER alone promotes a replica while clients still write to the old primary, and demotes that
about 10 s later. Here the old primary accepts no write from before the promotion until it is a replica: a
write that waits there is refused with READONLY then, and none is acknowledged that the new primary lacks.

The pause blocks PUBLISH too, with which sentinels talk to each other through the primary. They also use the
replicas for that, so they go on; but they may report the paused primary as down.

Every step has a time limit. If one fails before the promotion, the pause ends at once. If this process dies,
the pause ends by itself (SPARE_S): by then the sentinels have demoted a primary that was replaced.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from braidstream.engine.address import Address
from braidstream.engine.connection import Connection, connect
from braidstream.engine.sentinels import Place, Sentinels
from braidstream.errors import BraidError, LostError, ReplyError
from braidstream.model.strand import Command
from braidstream.plan.lookup import info_facts
from braidstream.plan.plan import Batch

TIMEOUT_S: Final = 10.0
# The pause outlives the time limit by this: the sentinels demote an old primary after some 10 s.
SPARE_S: Final = 20.0
DEMOTED_WITHIN_S: Final = 30.0
GOOD_WITHIN_S: Final = 3.0
POLL_S: Final = 0.02
SILENCE_S: Final = 5.0
# A replica that is further behind would keep clients waiting.
MOST_BEHIND_BYTES: Final = 16_000_000
NONE_TO_PROMOTE: Final = (
    "the sentinels know no replica that they would promote. {} Check that they reach one whose "
    "replica-priority is not 0."
)

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """old, new: the primaries. paused_s: how long writes waited."""

    old: str
    new: str
    paused_s: float


@dataclass(frozen=True, slots=True)
class _Offsets:
    """How far the primary has written, and how far each of its replicas has confirmed."""

    primary: int
    replicas: dict[str, int]

    @property
    def behind(self) -> list[str]:
        return [name for name, offset in self.replicas.items() if offset < self.primary]


async def fail_over(address: Address, tell: Tell, within_s: float = TIMEOUT_S) -> Done:
    """within_s: how long writes may wait for the promotion. Raises BraidError if a step fails."""
    sentinels = address.sentinels
    assert sentinels is not None
    if (await sentinels.query()).failing_over:
        raise BraidError("a failover is already under way. Wait until it has ended, and run this again.")
    old = await address.resolve()
    async with _connected(old) as conn:
        await _check(conn)
        if not any(await sentinels.priorities()):
            raise BraidError(NONE_TO_PROMOTE.format("Nothing was changed."))
        tell(f"{old} is the primary")
        began = time.monotonic()
        try:
            async with asyncio.timeout(within_s):
                await _send(conn, _pause(within_s + SPARE_S))
                tell("writes wait")
                await _until_in_step(conn, tell)
                await _promote(sentinels)
                tell("the sentinels promote a replica")
                new = await _until_promoted(sentinels, old.place)
        except BaseException as error:
            await _unpause(conn, old)
            if isinstance(error, TimeoutError):
                raise BraidError(await _why_late(conn, within_s)) from None
            raise
        tell(f"{_text(new)} is the primary now")
        await _demote(conn, new)
        paused_s = time.monotonic() - began
        await _send(conn, ("CLIENT", "UNPAUSE"))
        tell(f"{old} is a replica now")
        with suppress(BraidError):
            await _disconnect_clients(conn)
    return Done(str(old), _text(new), paused_s)


@asynccontextmanager
async def _connected(address: Address) -> AsyncIterator[Connection]:
    conn = await connect(address, primary=True, silence_s=SILENCE_S)
    try:
        yield conn
    finally:
        conn.close()


async def _send(conn: Connection, command: Command) -> Any:
    [reply] = await conn.send(Batch([command], resend=True, attempt=True))
    if isinstance(reply, ReplyError):
        if reply.code == "NOPERM":
            name = " ".join(str(word) for word in command[:2])
            raise BraidError(f"{reply.text}. {name} needs the URL of an administrator: --url URL")
        raise reply
    return reply


def _pause(seconds: float) -> Command:
    return ("CLIENT", "PAUSE", int(seconds * 1000), "WRITE")


async def _unpause(conn: Connection, address: Address) -> None:
    """Also if the connection is lost: clients must not wait for a process that gave up."""
    try:
        await asyncio.shield(_send(conn, ("CLIENT", "UNPAUSE")))
    except LostError:
        with suppress(BraidError):
            async with _connected(address) as again:
                await _send(again, ("CLIENT", "UNPAUSE"))


async def _check(conn: Connection) -> None:
    """Refuse what would keep clients waiting for nothing."""
    await _send(conn, ("ROLE",))  # the right to do it later
    offsets = await _offsets(conn)
    if not offsets.replicas:
        raise BraidError("no replica is connected to the primary. Start one, and run this again.")
    for name, offset in offsets.replicas.items():
        if offsets.primary - offset > MOST_BEHIND_BYTES:
            raise BraidError(
                f"replica {name} is {offsets.primary - offset:,} bytes behind. Run this again when it has "
                "caught up, or take it away."
            )


async def _until_in_step(conn: Connection, tell: Tell) -> None:
    """Replicas confirm once a second. No write is accepted, so the primary's offset stays."""
    while (offsets := await _offsets(conn)).behind or not offsets.replicas:
        await asyncio.sleep(POLL_S)
    tell(f"{len(offsets.replicas)} of {len(offsets.replicas)} replicas have everything")


async def _offsets(conn: Connection) -> _Offsets:
    facts = info_facts(await _send(conn, ("INFO", "replication")))
    replicas = dict[str, int]()
    for name, text in facts.items():
        if name.startswith(b"slave") and name[5:].isdigit():
            words = dict(pair.split(b"=", 1) for pair in text.split(b","))
            if words[b"state"] == b"online":
                replicas[f"{words[b'ip'].decode()}:{words[b'port'].decode()}"] = int(words[b"offset"])
    return _Offsets(int(facts[b"master_repl_offset"]), replicas)


async def _promote(sentinels: Sentinels) -> None:
    """Sentinels that report a paused primary as down want newer facts of its replicas, for about a second."""
    until = time.monotonic() + GOOD_WITHIN_S
    while True:
        try:
            return await sentinels.fail_over()
        except ReplyError as error:
            if error.code != "NOGOODSLAVE":
                raise
            if time.monotonic() > until:
                raise BraidError(NONE_TO_PROMOTE.format("Writes go on.")) from None
        await asyncio.sleep(POLL_S)


async def _until_promoted(sentinels: Sentinels, old: Place) -> Place:
    while True:
        sentinels.expire()
        with suppress(LostError):
            if (new := await sentinels.primary()) != old:
                return new
        await asyncio.sleep(POLL_S)


async def _demote(conn: Connection, new: Place) -> None:
    """The sentinels would do it too, some 10 s later. Until then the pause goes on."""
    await _send(conn, _pause(DEMOTED_WITHIN_S))
    with suppress(BraidError):
        await _send(conn, ("REPLICAOF", *new))
    try:
        async with asyncio.timeout(DEMOTED_WITHIN_S - 1):
            while (await _send(conn, ("ROLE",)))[0] != b"slave":
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise BraidError(
            f"{_text(new)} is the primary now, but {conn.name} has not become its replica, and will accept "
            f"writes that are lost. Type there: REPLICAOF {new[0]} {new[1]}"
        ) from None


async def _disconnect_clients(conn: Connection) -> None:
    """Readers and idle clients reconnect to the new primary. Writes that waited are answered by now.

    Not the sentinels: they wait a second before they reconnect, longer than a short down-after-milliseconds.
    """
    ours = await _send(conn, ("CLIENT", "ID"))
    for kind in ("pubsub", "normal"):
        listed = (await _send(conn, ("CLIENT", "LIST", "TYPE", kind))).splitlines()
        clients = [dict(word.split(b"=", 1) for word in line.split() if b"=" in word) for line in listed]
        for client in clients:
            if not client[b"name"].startswith(b"sentinel-") and int(client[b"id"]) != ours:
                with suppress(ReplyError):
                    await _send(conn, ("CLIENT", "KILL", "ID", client[b"id"]))


async def _why_late(conn: Connection, within_s: float) -> str:
    with suppress(BraidError):
        if behind := (await _offsets(conn)).behind:
            return (
                f"after {within_s:g} s replica {', '.join(behind)} did not have everything. Nothing was "
                "changed, and writes go on. Check that replica, or give it more time: --timeout SECONDS"
            )
    return (
        f"the sentinels have not promoted a replica within {within_s:g} s. Writes go on. Check their logs. "
        "If a failover is still under way, writes may be lost, as with SENTINEL FAILOVER."
    )


def _text(place: Place) -> str:
    return "{}:{}".format(*place)

"""A peer of the daemon: is it the region that the file names, its link, what waits for it, its status."""

import asyncio
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from braidstream import lua
from braidstream.config import Selection, is_exchanged
from braidstream.errors import BraidError, ConfigError, LostError, LostPartError, NotARegionError, ReplyError
from braidstream.model import keys
from braidstream.model.fields import ConfigField
from braidstream.model.region import Region
from braidstream.observability.events import Repeated, emit
from braidstream.operations.status import LinkState, LinkStatus
from braidstream.plan.plan import Batch, Plan
from braidstream.replication.daemon.peer_lag import Lag
from braidstream.replication.daemon.queue import Queue
from braidstream.replication.endpoint import Endpoint, OwnError, reason
from braidstream.replication.link.region_link import RegionLink
from braidstream.replication.region_facts import region_of

# ----------------------------------------------------------------------------------------------------
#
# Checks before anything is sent: is a server the region that the file says, and may two regions replicate?
#
# Every refusal is a ConfigError: a retry does not help, an operator must change a file or a server.

CLAIM_S: Final = 15
RENEW_S: Final = 5.0


def check_region(found: Region, wanted: tuple[int, str], where: object) -> None:
    """The server at `where` must be the region that the file lists there."""
    if (found.id, found.name) != wanted:
        number, name = wanted
        raise ConfigError(
            f"the file says that {where} is region {number} ({name}), but the server says that it is region "
            f"{found.id} ({found.name}). Nothing is sent to it. Correct its url, id or name in the file."
        )
    if found.writer != found.id:
        raise ConfigError(
            f"bs:config of region {found.id} ({found.name}) has writer {found.writer}. Both numbers must be "
            "the same. Nothing is sent to it. Correct the field writer there."
        )
    if not found.library:  # also if its `braid init` was interrupted: it has no functions then
        raise LostPartError([ConfigField.LIBRARY], found.name.encode())
    if found.library < lua.OLDEST:
        raise ConfigError(
            f"region {found.id} ({found.name}) has version {found.library} of the braidstream functions, "
            f"links need {lua.OLDEST} or newer. Bring it up to date: "
            f"braid init --url URL --region {found.id} --name {found.name}"
        )


def check_pair(here: Region, there: Region) -> None:
    """Two regions may replicate if they have different numbers and neither has removed the other."""
    if here.id == there.id:
        raise ConfigError(
            f"both servers are region {here.id}. Two regions with one number would generate the same IDs. "
            "Correct the file, or make one of them a new region in an empty database."
        )
    for one, other in ((here, there), (there, here)):
        if other.writer in one.left:
            raise ConfigError(
                f"region {other.id} ({other.name}) was removed from region {one.id} ({one.name}) for good. "
                f"Stop the daemon of {other.name}. To use its server again, empty it and add it with a new "
                "number: braid region add"
            )


async def claim(target: Endpoint, here: Region) -> None:
    """Only one server may replicate to a region as one number: two would generate the same IDs.

    A claim expires, so a server that replaces another one waits at most CLAIM_S.
    """
    try:
        holder = await target.run(_claim(here))
    except BraidError as error:
        # The node of a cluster that holds the claim is lost, or its slot moves: `keep_claim` tries again.
        if target.spares(error):
            return
        raise
    if holder not in (None, here.identity.encode()):
        raise ConfigError(
            f"another server replicates to this peer as region {here.id} ({here.name}). Two servers with one "
            "number generate the same IDs. Stop one of them, and make it a new region in an empty database."
        )


async def keep_claim(target: Endpoint, here: Region) -> None:
    """Renew it while the link is up. ConfigError if the peer has removed our region meanwhile."""
    while True:
        await asyncio.sleep(RENEW_S)
        await claim(target, here)
        try:
            there = await region_of(target)
        except BraidError:
            continue  # if it lasts, the link notices too
        check_pair(here, there)


def _claim(here: Region) -> Plan[bytes | None]:
    """The owner of the claim after our attempt; None if the peer refuses writes now."""
    key = keys.claim(here.writer)
    attempt = [("SET", key, here.identity, "NX", "EX", CLAIM_S), ("GET", key)]
    _, holder = yield Batch(attempt, attempt=True)
    if isinstance(holder, ReplyError):
        raise holder
    if holder == here.identity.encode():
        yield Batch([("EXPIRE", key, CLAIM_S)], attempt=True)
    return holder  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------------------------------
# Peer

RESTLESS_S: Final = 5.0
# If a stream was trimmed within TRIMS_S, pushes of its registry wait for PAUSE_S; up to this many streams.
TRIMS_S: Final = 1.0
PAUSE_S: Final = 0.1
TRIMMED_STREAMS: Final = 10_000
# An up link whose peer has not answered for this time is silent. After endpoint.SILENCE_S it is lost.
SILENT_S: Final = 2.0
# How an engine refuses a user: a retry does not help, an operator must change a file or a server.
_RIGHTS: Final = ("WRONGPASS", "NOAUTH", "NOPERM")
# How an engine answers that starts, or waits for its primary: it will be back.
_AWAY: Final = ("LOADING", "MASTERDOWN")


def is_misconfigured(error: Exception) -> bool:
    """Whether an operator must change something."""
    if isinstance(error, ReplyError):
        return error.code in _RIGHTS
    return isinstance(error, ConfigError | NotARegionError)


def why_down(error: Exception) -> str:
    """The reason of an error; for a lost connection without the advice for clients."""
    return f"{error.address}: {error.why}" if isinstance(error, LostError) else reason(error)


@dataclass(slots=True)
class Peer:
    """A peer, the link to it while it is up, and the streams that wait for the link.

    fresh: streams with new entries, sent in bundles, and streams that may be new to the peer. They do not
    wait for syncs in `queue`.
    alone: those with new entries that cannot be in a bundle.
    trimmed_s: when a stream was last trimmed at the peer. Each trim changes the registry, which we hear of.
    restless: the delay before the next check of a stream that still changes, as one with pending entries.
    measured_ms: when the lag was last measured. state, since_s, why: of the link, for `braid status`.
    refused: changes that the peer refused; refusal, refused_s: the last of them.
    clock_ms: how far the peer's clock is ahead, when it was last measured.
    selections: of this region and the peer: which streams they exchange.
    """

    id: int
    name: str
    endpoint: Endpoint
    link: RegionLink | None = None
    fresh: Queue = field(default_factory=Queue)
    alone: Queue = field(default_factory=Queue)
    queue: Queue = field(default_factory=Queue)
    sweep: asyncio.Event = field(default_factory=asyncio.Event)
    swept: bool = False
    trimmed_s: dict[bytes, float] = field(default_factory=dict)
    restless: dict[bytes, float] = field(default_factory=dict)
    lag: Lag = field(default_factory=Lag)
    measured_ms: int = 0
    state: LinkState = "starting"
    since_s: float = field(default_factory=lambda: _now())
    why: str = ""
    refused: int = 0
    refusal: str = ""
    refused_s: float = 0.0
    clock_ms: int | None = None
    selections: tuple[Selection, ...] = ()
    _sent: tuple[int, int] = (0, 0)  # entries and bytes of earlier links
    _trouble: Repeated = field(default_factory=Repeated)
    _refusals: Repeated = field(default_factory=Repeated)

    def takes(self, name: bytes) -> bool:
        """Whether the stream is exchanged with this peer."""
        return is_exchanged(name, self.selections)

    def select(self, selections: tuple[Selection, ...]) -> None:
        """From now on other streams are exchanged: compare all of them again."""
        self.selections = selections
        self.lag = Lag(self.lag.writer)
        self.sweep.set()

    def note_trim(self, name: bytes) -> None:
        if len(self.trimmed_s) >= TRIMMED_STREAMS:
            self.trimmed_s.clear()
        self.trimmed_s[name] = time.monotonic()

    def pause_s(self, name: bytes) -> float:
        """The delay before a stream is compared after a push of its registry: none, unless it is trimmed all
        the time. Then each comparison would cause the next one."""
        is_busy = time.monotonic() - self.trimmed_s.get(name, -math.inf) < TRIMS_S
        return PAUSE_S if is_busy else 0.0

    def later(self, name: bytes, first_s: float) -> float:
        """The delay before the next check of a stream: exponential backoff with a cap."""
        delay = self.restless[name] = min(RESTLESS_S, 2 * self.restless.get(name, first_s / 2))
        return delay

    def up(self, link: RegionLink) -> None:
        now = _now()
        self.link, self.state, self.since_s, self.why = link, "up", now, ""
        self.lag.writer = link.here.writer
        self._refusals.over(now)
        via = self.endpoint.address.via
        more = {} if via is None else {"receiver": via}
        emit("link.up", peer=self.name, **more, **self._trouble.over(now))

    def down(self, error: Exception, own: Endpoint) -> None:
        """The link ended, or could not be opened. If our own engine was lost, that is logged elsewhere."""
        if self.link is not None:
            self._sent = self.sent
            self.lag.lost(self.link.sent_upto, round(time.time() * 1000))
            self.link = None
        now = _now()
        state: LinkState = "misconfigured" if is_misconfigured(error) else "down"
        is_lost = isinstance(error, LostError) and error.address == str(own.address)
        is_own = is_lost or isinstance(error, OwnError)
        self.why = "this region's own engine is lost" if is_own else why_down(error)
        if state != self.state:
            self.state, self.since_s = state, now
        if is_own:
            return  # logged as source.lost, once for all links
        is_away = isinstance(error, ReplyError) and error.code in _AWAY
        event = "link.lost" if isinstance(error, LostError) or is_away else "link.failed"
        if state == "misconfigured":
            event = "peer.misconfigured"
        self._trouble.log(event, now, peer=self.name, why=self.why)

    def refuse(self, stream: bytes, error: Exception) -> None:
        """A change was refused: log it once, and once a minute while that continues."""
        now = _now()
        self.refused += 1
        self.refusal, self.refused_s = reason(error), now
        self._refusals.log("link.refused", now, peer=self.name, stream=stream, why=self.refusal)

    def accepted(self) -> None:
        """A round succeeded. Clear the refusal if there was none for a while."""
        if self.refusal and _now() - self.refused_s > 2 * RESTLESS_S:
            self.refusal = ""
            self._refusals.over(_now())

    def note_clock(self, ahead_ms: int) -> None:
        self.clock_ms = ahead_ms

    @property
    def sent(self) -> tuple[int, int]:
        """Entries and bytes, since the daemon started."""
        if self.link is None:
            return self._sent
        window = self.link.window
        return self._sent[0] + window.sent_entries, self._sent[1] + window.sent_bytes

    def status(self, now_ms: int) -> LinkStatus:
        """now_ms: by the own engine's clock."""
        self.accepted()
        behind = self.lag.behind
        entries, size = self.sent
        state, since_s, why = self.state, self.since_s, self.why
        waiting_s, holes = self.endpoint.waiting_s, {} if self.link is None else self.link.holes
        if state == "up" and waiting_s > SILENT_S:
            state, since_s = "silent", _now() - waiting_s
            why = f"{self.endpoint.address}: no answer for {waiting_s:.0f} s"
        return LinkStatus(
            state=state,
            since_ms=now_ms - round((_now() - since_s) * 1000),
            why=why,
            lag_entries=None if behind is None else behind.entries,
            lag_ms=None if behind is None else behind.age_ms(now_ms),
            entries=entries,
            bytes=size,
            refused=self.refused,
            refusal=self.refusal,
            clock_ms=self.clock_ms,
            holes=len(holes),
            hole=next(iter(holes.values()), ""),
        )


def apart(peers: Iterable[Peer], name: bytes) -> set[int]:
    """The regions that do not exchange a stream with this one."""
    return {peer.id for peer in peers if not peer.takes(name)}


def _now() -> float:
    return asyncio.get_running_loop().time()

"""Sends a batch to the nodes of a cluster (redirects.py), over connections that are not redis-py's.

    Delivery        follows redirects, waits for nodes that are lost, joins the replies
    Carrier         what it needs: one exchange with one node, and a wait at several nodes at once

A connection that could not be opened, or was lost while an idempotent batch was sent, is no different from a
node that refuses: the map is read again and the commands follow. If a write was sent, the error is raised.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

from redis.exceptions import AskError, ClusterDownError, ResponseError, TryAgainError

from braidstream.clusters.command_keys import NativeKeys
from braidstream.clusters.redirects import FOLLOW_S, Leg, Patience, Round, deliver, drive, without_losses
from braidstream.clusters.slots import SlotMap
from braidstream.engine.redis_py import parse_error, reply_error, resp2
from braidstream.engine.sentinels import Place
from braidstream.errors import LostError, ReplyError
from braidstream.model.strand import Command
from braidstream.plan.plan import Batch, Exchange, Replies, unpack


class Carrier(Protocol):
    """One client's connections to the nodes."""

    async def exchange(self, place: Place | None, legs: list[Leg], writes: bool) -> list[list[Any]]:
        """Send what the legs say to one node; None: to any. Returns the replies to each leg, errors as
        values. Raises LostError; `wrote` if a write may have been applied."""
        ...

    async def race(self, places: list[Place], legs: list[Leg], writes: bool) -> list[list[Any]]:
        """Wait at several nodes until one has a reply, then end the other waits. A LostError is a reply."""
        ...


class BatchCarrier:
    """A carrier for plans that neither wait nor WATCH."""

    async def deliver(
        self, batch: Batch, slots: SlotMap, *, patience: Patience | None = None, **how: Any
    ) -> Replies:
        """The replies as a plan gets them. how: see `Delivery`. A kept loss is an error reply."""
        found = await Delivery(slots, self, **how).send(batch, patience=patience)
        assert found is not None, "it does not WATCH"
        return unpack(batch, [_as_reply(each) for each in found], resp2)

    async def send_to(self, place: Place | None, batch: Batch) -> Replies:
        """Send a batch to one node, whatever its keys; None: to any."""
        raise NotImplementedError

    async def exchange(self, place: Place | None, legs: list[Leg], writes: bool) -> list[list[Any]]:
        sent = [leg.wire() for leg in legs]
        read = iter(await self.send_to(place, Exchange([*chain.from_iterable(sent)], resend=not writes)))
        return [[*islice(read, len(commands))] for commands in sent]

    async def race(self, places: list[Place], legs: list[Leg], writes: bool) -> list[list[Any]]:
        raise NotImplementedError("no batch of its plans waits")


def no_keys(command: Command) -> Sequence[Any]:
    """For batches of plans, whose commands are all in the table of command_keys.py."""
    return ()


def redirect(reply: Any) -> Any:
    """A reply as redirects.py expects it: redirects as redis-py's exceptions."""
    if isinstance(reply, ReplyError) and reply.is_redirect:
        return parse_error(reply.text)
    return reply


def shown(reply: Any) -> Any:
    """A reply for the user: our errors instead of redis-py's, and never a redirect."""
    if isinstance(reply, AskError | TryAgainError):
        return ReplyError(
            f"CLUSTERDOWN the slot of this command has been moving for {FOLLOW_S:g} s. Nothing was changed. "
            "Try again"
        )
    return reply_error(reply) if isinstance(reply, ResponseError) else reply


def _as_reply(reply: Any) -> Any:
    return ReplyError(f"LOST {reply}") if isinstance(reply, LostError) else reply


def _unreachable(lost: LostError) -> ClusterDownError:
    return ClusterDownError(f"CLUSTERDOWN {lost}")


def _unsent(reply: Any) -> Any:
    """A lost connection as a node that refuses, if nothing can have been written."""
    return _unreachable(reply) if isinstance(reply, LostError) and not reply.wrote else reply


class Delivery:
    """Delivers batches. home: the node for commands without keys; None: the carrier chooses.

    keeps_losses: a lost connection is the reply to the commands that were sent on it, and others go on.
    waits: a node that is lost is like one that refuses. Else it is a loss at once.
    """

    def __init__(
        self,
        slots: SlotMap,
        carrier: Carrier,
        *,
        home: Place | None = None,
        keys: NativeKeys = no_keys,
        keeps_losses: bool = False,
        waits: bool = True,
    ) -> None:
        self._slots, self._carrier, self._home, self._keys = slots, carrier, home, keys
        self._keeps_losses, self._waits = keeps_losses, waits

    async def send(
        self, batch: Batch, *, watching: bool = False, patience: Patience | None = None
    ) -> list[Any] | None:
        """The replies to all commands, MULTI and EXEC included. None: see `redirects.deliver`.

        patience: of a plan that begins again if the answer is None.
        """
        delivery = deliver(batch, self._keys, patience or Patience(), watching=watching)
        found = await drive(delivery, self._prepare, partial(self._round, batch))
        return None if found is None else [shown(reply) for reply in found]

    async def _prepare(self, turn: Round) -> None:
        for error in turn.moved:
            self._slots.note_moved(error.slot_id, (error.host, error.port))
        if turn.is_down:
            await self._slots.read()
            if self._home is not None and self._home not in self._slots.primaries:
                raise LostError("{}:{}".format(*self._home), "it is not a primary any more", wrote=False)
        if turn.pause_s:
            await asyncio.sleep(turn.pause_s)

    async def _round(self, batch: Batch, turn: Round) -> list[list[Any]]:
        legs, writes = turn.legs, not batch.resend
        places = [self._place(leg) for leg in legs]
        if turn.is_race and all(places):
            try:
                answers = await self._carrier.race([place for place in places if place], legs, writes)
            except LostError as lost:
                answers = [[lost] for _ in legs]
            return without_losses(legs, [[_unsent(redirect(each)) for each in some] for some in answers])
        load = dict[Place | None, list[int]]()
        for at, place in enumerate(places):
            load.setdefault(place, []).append(at)
        if len(load) == 1:
            [place] = load
            return without_losses(legs, await self._exchange(place, legs, writes))
        found = await asyncio.gather(
            *(self._exchange(place, [legs[at] for at in some], writes) for place, some in load.items()),
            return_exceptions=True,  # every connection is read to its end
        )
        read = dict[int, list[Any]]()
        for some, each in zip(load.values(), found, strict=True):
            if isinstance(each, BaseException):
                raise each
            read.update(zip(some, each, strict=True))
        return without_losses(legs, [read[at] for at in range(len(legs))])

    def _place(self, leg: Leg) -> Place | None:
        if leg.ask is not None:
            return self._slots.named(leg.ask)
        return self._home if leg.slot is None else self._slots.owner(leg.slot)

    async def _exchange(self, place: Place | None, legs: list[Leg], writes: bool) -> list[list[Any]]:
        try:
            if (
                place is None
                and (slot := next((leg.slot for leg in legs if leg.slot is not None), None)) is not None
            ):
                raise LostError("the cluster", f"no node serves slot {slot}", wrote=False)
            answers = await self._carrier.exchange(place, legs, writes)
        except LostError as lost:
            if not lost.wrote and place is not None:
                self._slots.unreachable.add(place)
            if not lost.wrote and self._waits:
                return [[_unreachable(lost) for _ in leg.wire()] for leg in legs]
            if any(leg.is_multi for leg in legs) or not (self._keeps_losses or all(leg.part for leg in legs)):
                raise
            return [[lost for _ in leg.wire()] for leg in legs]
        if place is not None and place in self._slots.unreachable:
            self._slots.unreachable.discard(place)
        return [list(map(redirect, some)) for some in answers]

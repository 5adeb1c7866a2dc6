"""`braidstream.asyncio.MultiRegion`: a client that changes region by itself, and cannot duplicate by it.

Messages get their numbers here, above the choice of a region, so a message that is sent again elsewhere is
the same message. The regions' own clients (`Member`) never number and never retry.

    a command ---> the active region ---> its reply
                       |
                       | away: the connection is lost, refused, or the region is fenced
                       v
            does it answer after all? ---> the command once more, if that is safe
                       |
                       v
            the first region that is open is active from now on
"""

import asyncio
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from braidstream.clients.aio import Pipeline, Redis
from braidstream.clients.aio_cluster import RedisCluster
from braidstream.clients.shared import USER_OPTIONS, Conversation, Sending, Session, without_user
from braidstream.clients.shared_multi_region import (
    AWAY,
    CAUGHT_UP_S,
    FRESH_S,
    READS,
    BehindWarning,
    OnChange,
    Regions,
    Seen,
    behind_text,
    check_open,
    has_messages,
    is_unknown,
    key_of,
    lacking,
    link_lag,
    lost_everywhere,
    may_follow,
    places,
    refused_later,
    stays_text,
)
from braidstream.engine.awaiting import end, in_background, is_running, new_lock
from braidstream.engine.redis_py import LOST
from braidstream.model.registry import CACHE_LIMIT, DAY_S
from braidstream.plan.plan import Plan
from braidstream.plan.view import Carriage

T = TypeVar("T")

# How often to look whether a region of higher preference is back.
_LOOK_EVERY_S = 1.0
# How long a read waits for entries that this client was given before; then it warns.
_BEHIND_S = 1.0
_MOST_PAUSE_S = 1.0


class Member:
    """One region, and its client. What the URL leads to, a server or a cluster, shows when it is first used.

    is_open: it is known, and `opened` need not be awaited.
    is_lost: it was left because it did not answer. A consumer that works there leaves at once.
    """

    def __init__(self, owner: "MultiRegion", place: tuple[str, str], options: dict[str, Any]) -> None:
        self.name, url = place
        self.url = without_user(url) if USER_OPTIONS & options.keys() else url
        self.client: Any = Redis.from_url(self.url, **options)
        self.is_lost = False
        self._owner, self._options = owner, options
        self._opening, self.is_open = new_lock(), False

    async def opened(self) -> Any:
        """The client. The first time it connects."""
        if self.is_open:
            return self.client
        async with self._opening:
            if not self.is_open:
                region = await self.client.run_plan(check_open())
                if region.is_cluster:
                    options = {name: each for name, each in self._options.items() if name != "config"}
                    alone, self.client = self.client, RedisCluster.from_url(self.url, **options)
                    await alone.aclose()
                self.client.session.producer = self._owner._numbering.producer
                self.name, self.is_open = region.name, True
        return self.client

    async def answers(self) -> bool:
        """Whether it serves clients: each primary answers, and it is not fenced."""
        with suppress(*AWAY, exceptions.RedisError):
            await (await self.opened()).run_on_primaries(check_open)
            return True
        return False

    # For consumers: they take their turn again, in the region that they go to then.

    async def converse(self, make: Conversation[T]) -> T:
        return await self._once(lambda client: client.converse(make))  # type: ignore[no-any-return]

    async def routed(self, *words: Any) -> Any:
        return await self._once(lambda client: client.routed(*words))

    async def _once(self, call: Callable[[Any], Any]) -> Any:
        try:
            return await call(await self.opened())
        except AWAY as error:
            await self._owner._leave(self, error)
            self.is_lost = self._owner._active is not self
            raise


class MultiRegion(Redis):
    """A client of several regions. It uses one at a time, and goes to another one when that does not answer.

    regions: braid.toml (its path, or what was read from it), or URLs in order of preference.
    prefer: the name of the region to use as long as it answers; by default the first one.
    idempotent: messages are sent again in another region if their reply is lost. False: no write is.
    producer: a name for its messages; random by default. Clients that run at once need different ones.
    failback_after: how many seconds the preferred region must be back, with all entries, before the client
        returns to it. None: it stays.
    within: how many seconds a command tries regions. timeout: how long it waits for a connection or a reply.
    behind: what to do if a region lacks entries that this client was given before, and a read would go
        backward: "warn" after a second, "wait" for as long as `within`, or "raise" BehindWarning.
    remember: for how many seconds streams must remember messages. Shorter times are raised. None: they stay.
    on_change: called with the names of two regions and a reason, after each change.

    All other arguments are those of Redis.
    """

    def __init__(
        self,
        regions: Regions,
        *,
        prefer: str | None = None,
        idempotent: bool = True,
        producer: str | bytes | None = None,
        failback_after: float | None = 60.0,
        within: float = 30.0,
        timeout: float = 1.0,
        behind: Literal["warn", "wait", "raise"] = "warn",
        remember: int | None = DAY_S,
        on_change: OnChange | None = None,
        **options: Any,
    ) -> None:
        found, config = places(regions, prefer)
        never = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": Retry(NoBackoff(), 0)}
        options = {**never, **options, "config": config}
        self._members = [Member(self, place, options) for place in found]
        super().__init__(
            connection_pool=self._members[0].client.connection_pool, idempotent=idempotent, producer=producer
        )
        self._active = self._members[0]
        self._numbering: Session = vars(self)["session"]
        self._within, self._failback_after, self._behind = within, failback_after, behind
        self._remember, self._on_change = remember, on_change
        self._seen, self._unchecked, self._lengthened = Seen(), set[bytes](), set[Any]()
        self._leaving, self._looked_at = new_lock(), float("-inf")
        self._looking: Any = None
        self._warns = True
        self._is_closed = False

    # Which region

    @property
    def region(self) -> str:
        """The name of the region that it uses now."""
        return self._active.name

    async def prefer(self, name: str) -> None:
        """Go to a region, given by name or URL, and prefer it from now on: before maintenance of another."""
        async with self._leaving:
            open_ones = [each for each in self._members if await each.answers()]  # this shows their names
            member = next((each for each in self._members if name in (each.name, each.url)), None)
            if member is None:
                names = ", ".join(each.name for each in self._members)
                raise ValueError(f"there is no region {name!r}. There are: {names}.")
            if member not in open_ones:
                raise exceptions.ConnectionError(f"region {name} does not answer. Nothing was changed.")
            self._members = [member, *(each for each in self._members if each is not member)]
            if self._active is not member:
                self._go(member, "preferred")

    async def _leave(self, member: Member, error: BaseException) -> bool:
        """A region has failed. If it does not answer now, go to the first one that does.

        Returns whether it answers. While one caller looks, the others wait for what it finds.
        """
        began = time.monotonic()
        async with self._leaving:
            if self._active is not member or self._looked_at > began:
                return False
            if await member.answers():
                return True
            for other in self._members:
                if other is not member and await other.answers():
                    member.is_lost = True
                    self._go(other, str(error))
                    break
            self._looked_at = time.monotonic()
            return False

    def _go(self, member: Member, why: str) -> None:
        before, self._active = self._active, member
        member.is_lost = False
        self._unchecked = set(self._seen.streams)
        self._look_for_return()
        if self._on_change is not None:
            self._on_change(before.name, member.name, why)

    def _look_for_return(self) -> None:
        """While another region than the preferred one is used, something looks whether that is back."""
        if self._failback_after is not None and not is_running(self._looking):  # as in a forked process
            after_s = max(self._failback_after, FRESH_S)  # a status may be as old as that
            self._looking = in_background(lambda: self._return(after_s))

    async def _return(self, after_s: float) -> None:
        since = dict[Member, float]()
        while self._active is not self._members[0] and not self._is_closed:
            await asyncio.sleep(_LOOK_EVERY_S)
            here = self._active
            for member in self._members[: self._members.index(here)]:
                if not await self._may_return(here, member):
                    since.pop(member, None)
                elif time.monotonic() >= since.setdefault(member, time.monotonic()) + after_s:
                    async with self._leaving:
                        if self._active is here:
                            self._go(member, "failback")
                    since.clear()
                    break

    async def _may_return(self, here: Member, member: Member) -> bool:
        """Whether a region answers, and has all that the active one has."""
        try:
            if await member.answers():
                lag = await (await here.opened()).run_plan(link_lag(member.name))
                return lag is not None and lag < CAUGHT_UP_S
        except exceptions.NoPermissionError as error:
            if self._warns:
                self._warns = False
                warnings.warn(stays_text(here.name, member.name, error), stacklevel=2)
        except (*AWAY, exceptions.RedisError):
            pass
        return False

    # Commands

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        is_generated = args[0] == "XADD" and len(args) > 2 and args[2] == "*"
        lane, args = self._numbering.mark(self, args)
        try:
            if args[0] == "XADD":
                if args[1] not in self._lengthened:
                    await self._lengthen(args[1])
            elif self._unchecked and args[0] in READS:
                await self._check(args)
            member = self._active
            if member is not self._members[0]:
                self._look_for_return()
            try:
                client = member.client if member.is_open else await member.opened()
                reply = await client.execute_command(*args, **options)
            except AWAY as error:
                again = lambda client: client.execute_command(*args, **options)  # noqa: E731
                reply = await self._somewhere(again, (args,), (member, error))
        except LOST as error:
            raise self._numbering.final_error(error, lane) from None
        finally:
            self._numbering.free(lane)
        if is_generated:
            self._seen.added(args[1], reply)
        else:
            self._seen.note(args, reply)
        return reply

    async def _execute_commands(self, call: Callable[[Any], Any], commands: list[Any]) -> list[Any]:
        """The same for a pipeline."""
        lane = self._numbering.mark_all(self, commands)
        with Sending(self._numbering, lane):
            sent = [args for args, _ in commands]
            for args in sent:
                if args[0] == "XADD" and args[1] not in self._lengthened:
                    await self._lengthen(args[1])
                elif self._unchecked and args[0] in READS:
                    await self._check(args)
            found: list[Any] = await self._somewhere(call, sent)
        for args, reply in zip(sent, found, strict=True):
            self._seen.note(args, reply)
        return found

    async def _somewhere(self, call: Callable[[Any], Any], commands: Any, failed: Any = None) -> Any:
        """The result of a call, from the active region or, if that is safe, from the next one.

        commands: those that the call sends; None: it cannot be repeated.
        failed: the region where it has failed already, and its error.
        """
        until, pause, before = time.monotonic() + self._within, 0.02, None
        while True:
            if failed is None:
                member = self._active
                try:
                    return await call(await member.opened())
                except AWAY as error:
                    failed = member, error
                except exceptions.ResponseError as error:
                    if before is None or not has_messages(commands):
                        raise
                    raise refused_later(error, before[0].name, before[1]) from None
            (member, lost), is_again = failed, before is not None and before[0] is failed[0]
            stays = await self._leave(member, lost)
            is_final = is_unknown(lost) or commands is None or not may_follow(commands)
            # A region that answers may still be too slow for a command. A message is worth more attempts.
            is_slow = stays and is_again
            if is_final or (is_slow and not has_messages(commands)) or time.monotonic() >= until:
                raise lost_everywhere(lost, commands) from None
            before, failed = failed, None
            if is_slow or (not stays and self._active is member):
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MOST_PAUSE_S)

    async def _once(self, call: Callable[[Any], Any]) -> Any:
        """The result of a call that cannot be repeated."""
        return await self._somewhere(call, None)

    async def _lengthen(self, name: Any) -> None:
        """Before the first message to a stream: it must know the message when a region is back that was away.

        A stream that does not exist yet remembers for a day by itself.
        """
        if len(self._lengthened) >= CACHE_LIMIT:
            self._lengthened.clear()
        self._lengthened.add(name)
        if self._remember is None or self._numbering.producer is None:
            return
        words = ("XCFGSET", name, "IDMP-DURATION", self._remember, "RAISE")
        with suppress(exceptions.ResponseError):
            await self._somewhere(lambda client: client.execute_command(*words), [words])

    if not TYPE_CHECKING:  # as in Client

        async def run_plan(self, plan: Plan[T]) -> T:
            return await self._once(lambda client: client.run_plan(plan))

        async def run_on_primaries(self, make: Callable[[], Plan[T]]) -> list[T]:
            return await self._once(lambda client: client.run_on_primaries(make))

        async def run_on_reachable(self, make: Callable[[], Plan[T]]) -> tuple[list[T], dict[str, str]]:
            return await self._once(lambda client: client.run_on_reachable(make))

        async def converse(self, make: Conversation[T]) -> T:
            return await self._somewhere(lambda client: client.converse(make), ())

    # Reads

    async def behind(self, name: Any) -> dict[int, str]:
        """By region: up to which ID this client was given entries of a stream that its region lacks now."""
        key = key_of(name)
        seen = dict(self._seen.streams.get(key, {}))

        def plan(view_of: Any) -> Plan[dict[int, str]]:
            return lacking(view_of(Carriage.ALONE), key, seen)

        return await self._somewhere(lambda client: client.converse(plan), ()) if seen else {}

    async def _check(self, args: tuple[Any, ...]) -> None:
        """After a change, before the first read of a stream."""
        for name in {key_of(word) for word in args[1:]} & self._unchecked:
            until = time.monotonic() + (self._within if self._behind == "wait" else _BEHIND_S)
            while (lacks := await self.behind(name)) and time.monotonic() < until:
                await asyncio.sleep(0.02)
            if lacks and self._behind == "raise":
                raise BehindWarning(behind_text(name, self.region, lacks))
            self._unchecked.discard(name)
            if lacks:
                warnings.warn(BehindWarning(behind_text(name, self.region, lacks)), stacklevel=4)

    # What stays in one region

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> "MultiPipeline":
        return MultiPipeline(self, transaction)

    def client(self) -> Any:
        return self._active.client.client()

    def pubsub(self, **options: Any) -> Any:
        return self._active.client.pubsub(**options)

    def monitor(self) -> Any:
        return self._active.client.monitor()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        self._is_closed = True
        await end(self._looking)
        for member in self._members:
            await member.client.aclose()
        await super().aclose(close_connection_pool)


class MultiPipeline(Pipeline):
    """A pipeline is sent as a whole, and again elsewhere as a whole. After WATCH it stays in its region."""

    def __init__(self, owner: MultiRegion, transaction: bool) -> None:
        self._owner = owner
        self._pinned: Any = None
        super().__init__(owner._numbering, owner.connection_pool, owner.response_callbacks, transaction, None)

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        async def now(client: Any) -> Any:
            if self._pinned is None:
                self._pinned = client.pipeline(transaction=True)
            return await self._pinned.execute_command(*args, **options)

        reply = await self._owner._once(now)
        self.watching = self._pinned.watching
        return reply

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        commands, scripts = self.command_stack, self.scripts
        if not commands and self._pinned is None:
            return []

        async def send(client: Any) -> Any:
            pipe = self._pinned or client.pipeline(transaction=self.transaction)
            if self._pinned is not None and self.explicit_transaction:
                pipe.multi()
            if scripts:
                pipe.scripts = scripts
            for args, options in commands:
                pipe.execute_command(*args, **options)
            return await pipe.execute(raise_on_error)

        try:
            if self._pinned is not None:
                return await self._owner._once(send)  # type: ignore[no-any-return]
            return await self._owner._execute_commands(send, commands)
        finally:
            await self.reset()

    async def reset(self) -> None:  # type: ignore[override]
        pinned, self._pinned = self._pinned, None
        self.watching = False
        if pinned is not None:
            await pinned.reset()
        theirs: Any = super()
        await theirs.reset()

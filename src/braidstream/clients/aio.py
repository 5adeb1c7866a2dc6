"""`braidstream.asyncio.Redis`: redis-py's client, whose stream commands run plans."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import redis.asyncio
import redis.asyncio.client
from redis import exceptions
from redis.typing import GroupT, KeyT, StreamIdT

from braidstream.clients import pipeline, shared
from braidstream.clients.aio_topic import AsyncTopics
from braidstream.clients.client_options import AsyncioOptions
from braidstream.clients.later_commands import AsyncLater, LaterCommands
from braidstream.clients.log_commands import LogCommands
from braidstream.clients.raised import for_user
from braidstream.clients.reader import AsyncReading
from braidstream.clients.routes import MISS, Route
from braidstream.clients.shared import Sending, Session, Way, by_log
from braidstream.engine.aio_sender import AsyncSender, run_plan
from braidstream.engine.awaiting import (
    awaited,
    awaited_all,
    connect,
    is_interruption,
    opens_in_time,
    read_reply,
    uncancelled,
)
from braidstream.engine.redis_py import (
    CLEAN_UP_S,
    LOST,
    NotResentError,
    constructed_like,
    is_refusal,
    name_pool,
    named,
    packed,
    read_timeout,
)
from braidstream.errors import BraidError
from braidstream.model.strand import Command
from braidstream.plan.lookup import is_elsewhere
from braidstream.plan.plan import Plan, abandon

T = TypeVar("T")


async def _append(conn: Any, command: Command, session: Session, watching: bool) -> Any:
    """Send a fast append; returns its reply, None if the plan must repeat it."""
    await connect(conn, not watching)
    data = packed(conn, [command])
    try:
        await uncancelled(conn.send_packed_command(data))
        return await conn.read_response(disable_decoding=True)
    except exceptions.ResponseError as error:
        if not shared.is_for_plan(command, error):
            raise
        return None
    except LOST as error:
        await conn.disconnect(nowait=True)
        if session.may_resend(command) or is_refusal(error):
            raise
        raise NotResentError(error) from error
    except BaseException:  # interrupted: a reply may still arrive
        await conn.disconnect(nowait=True)
        raise


async def _run(conn: Any, route: Route, *, is_raw: bool = False) -> tuple[Any, Route]:
    """The result of a route, and the last route that was sent for it. is_raw: nothing is decoded."""
    while True:
        found = route.result(await _take(conn, route, 0 if is_raw else route.decoded))
        if not isinstance(found, Route):
            return found, route
        route = found


async def _take(conn: Any, route: Route, decoded: int) -> list[Any]:
    """Send a route; returns its replies, errors as values."""
    timeout, replies = read_timeout(conn, route.block_ms), list[Any]()
    try:
        await uncancelled(conn.send_packed_command([route.data]))
        while len(replies) < route.replies:
            replies.append(await read_reply(conn, timeout, decoded=len(replies) < decoded))
    except LOST as error:
        await conn.disconnect(nowait=True)
        if not route.writes or is_refusal(error):
            raise
        raise NotResentError(error) from error
    except BaseException:  # interrupted: a reply may still arrive
        await conn.disconnect(nowait=True)
        raise
    return replies


async def _clean_up(send: Any, conn: Any, plan: Plan[Any]) -> None:
    """Delete what an interrupted plan has left, over a new connection; not if the server does not answer."""
    batch = abandon(plan)
    if batch is None:
        return
    try:
        with suppress(Exception):
            async with opens_in_time(conn, CLEAN_UP_S):
                await send(batch)
    finally:
        await conn.disconnect(nowait=True)
        await send.close()


class Plans:
    """Runs the plans of commands, on a connection of one server or from a connection of a cluster."""

    session: Session
    watching = False

    async def answer(
        self, conn: Any, args: tuple[Any, ...], options: dict[str, Any], *, may_skip_plan: bool = True
    ) -> Any:
        """The result of a command, as redis-py's method returns it; NATIVE if it is the engine's own."""
        session = self.session
        fast = session.fast_append(conn, args) if may_skip_plan else None
        if fast is not None and not session.stale(conn):
            entry = session.user_entry(conn, await _append(conn, fast, session, self.watching))
            if entry is not None:
                return entry
            session.forget(conn)
        acknowledged = 0
        if may_skip_plan and not self.watching and (route := session.route(conn, args, options)):
            found, route = await _run(conn, route)
            if found is not MISS:
                session.routes.taken += 1
                return await awaited(shared.present_decoded(self, found, args, options))
            acknowledged = route.acknowledged
        spec = shared.spec_of(args)
        if spec is None:
            if not self.watching and session.overwrites(conn, args) and not pipeline.is_in_multi(conn):
                result = await self.run_on(conn, session.overwrite(conn, args))
                return shared.present_native(self, conn, result, args, options)
            if args[0] in shared.MOVES:
                session.forget(conn)
                pipeline.note_multi(conn, args[0])
            return shared.NATIVE
        pipeline.refuse_in_multi(conn)
        argv = shared.words(conn, args)
        result = await self.run_on(conn, session.command(conn, spec, argv, watching=self.watching))
        session.remember_home(args, argv, result)
        if acknowledged:
            result += acknowledged
        return await awaited(shared.present(self, conn, spec, result, args, options))

    def sender(self, conn: Any) -> Any:
        """Who sends the batches of a plan."""
        return AsyncSender(conn, watching=self.watching)

    async def routed(self, *args: Any) -> Any:
        """The result of a command by its route, not decoded; MISS if its plan must run."""
        if not self.session.may_route:
            return MISS
        conn = await self.connection_pool.get_connection()  # type: ignore[attr-defined]
        try:
            route = self.session.route(conn, args, {})
            if route is None:
                return MISS
            with Sending(self.session):
                found, _ = await _run(conn, route, is_raw=True)
        finally:
            await self.connection_pool.release(conn)  # type: ignore[attr-defined]
        self.session.routes.taken += found is not MISS
        return found

    async def run_on(self, conn: Any, plan: Plan[T]) -> T:
        send = self.sender(conn)
        try:
            return await run_plan(plan, send)
        except BraidError as error:
            raise for_user(error) from None
        except BaseException as error:
            # Lost or interrupted: replies may still arrive, keys may be WATCHed. It cannot be reused.
            await conn.disconnect(nowait=True)
            if is_interruption(error):
                await _clean_up(self.sender(conn), conn, plan)
            raise
        finally:
            await send.close()


class StreamCommands:
    """Methods for streams that redis-py lacks, or that take more here."""

    def xcfgset(
        self,
        name: KeyT,
        idmp_duration: int | None = None,
        idmp_maxsize: int | None = None,
        raise_only: bool = False,
    ) -> Awaitable[bytes | str]:
        """How long a stream remembers messages, in seconds, and how many of each producer.

        A change forgets all messages. raise_only: smaller values change nothing, and nothing is forgotten.
        """
        words = shared.settings_words(idmp_duration, idmp_maxsize, raise_only)
        return self.execute_command("XCFGSET", name, *words)  # type: ignore[attr-defined,no-any-return]

    def xgroup_create(
        self,
        name: KeyT,
        groupname: GroupT,
        id: StreamIdT = "$",
        mkstream: bool = False,
        entries_read: int | None = None,
        scope: str | None = None,
    ) -> Awaitable[bool]:
        """As in redis-py. scope: "ONCE" delivers each entry in one region, "EVERYWHERE" in every region."""
        words: list[Any] = [*(["MKSTREAM"] if mkstream else []), *(["SCOPE", scope] if scope else [])]
        words += [] if entries_read is None else ["ENTRIESREAD", entries_read]
        return self.execute_command("XGROUP CREATE", name, groupname, id, *words)  # type: ignore[attr-defined,no-any-return]


class _Plans(Plans):
    """Overrides the method with which redis-py sends one command over a connection."""

    async def _send_command_parse_response(
        self, conn: Any, command_name: Any, *args: Any, **options: Any
    ) -> Any:
        found = await self.answer(conn, args, options)
        if found is shared.NATIVE:
            if self.watching:
                await connect(conn, may=False)
            theirs = super()._send_command_parse_response(conn, command_name, *args, **options)  # type: ignore[misc]
            found = await theirs
        return found


class Client(_Plans, shared.OurClient, redis.asyncio.Redis):  # type: ignore[misc]
    """How the client works, for our own layers. Its users see `Redis`, without the methods that run plans."""

    @constructed_like(redis.asyncio.Redis)
    def __init__(
        self,
        *args: Any,
        idempotent: bool = False,
        producer: str | bytes | None = None,
        config: shared.ConfigFile = None,
        **kwargs: Any,
    ) -> None:
        self.session = shared.new_session(idempotent, producer, config)
        super().__init__(*args, **named(kwargs))
        name_pool(self.connection_pool)

    async def run_plan(self, plan: Plan[T]) -> T:
        """Run a plan of your own on a connection from the pool."""
        return await self._run_on_one(lambda conn: plan)

    async def run_on_primaries(self, make: Callable[[], Plan[T]]) -> list[T]:
        """Run a plan on each primary, as cluster clients do. Here it is one."""
        return [await self.run_plan(make())]

    async def run_on_reachable(self, make: Callable[[], Plan[T]]) -> tuple[list[T], dict[str, str]]:
        """The same, and why other primaries cannot be reached, by address. Here there are none."""
        return [await self.run_plan(make())], {}

    async def converse(self, make: shared.Conversation[T]) -> T:
        """Run a plan over plans of commands: their replies are bytes, and redis-py does not parse them."""
        return await self._run_on_one(lambda conn: self.session.viewed(conn, make))

    async def _run_on_one(self, make: Callable[[Any], Plan[T]]) -> T:
        conn = await self.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            with Sending(self.session):
                return await self.run_on(conn, make(conn))
        finally:
            await self.connection_pool.release(conn)

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return await self._execute_here(*args, **options)
        except exceptions.ResponseError as error:
            if self.session.homes is None or not is_elsewhere(error):
                raise
            refused = error
        return await self._execute_at_home(refused, *args, **options)

    async def _execute_here(self, *args: Any, **options: Any) -> Any:
        lane, args = self.session.mark(self, args)
        with Sending(self.session, lane):
            return await uncancelled(super().execute_command(*args, **options))  # type: ignore[no-untyped-call]

    async def _execute_at_home(self, refused: Exception, *args: Any, **options: Any) -> Any:
        way, homes = Way(self.session), self.session.homes
        assert homes is not None
        while True:
            number, wait_s = way.next(refused)
            await asyncio.sleep(wait_s)
            client = self if number == way.here else homes.client(Redis, self, number)
            if client is None:
                raise refused
            try:
                return await client._execute_here(*args, **options)
            except exceptions.ResponseError as error:
                if not is_elsewhere(error):
                    raise
                refused = error

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        if self.session.homes is not None:
            for client in self.session.homes.take_all():
                await client.aclose()
        await super().aclose(close_connection_pool)


if TYPE_CHECKING:

    class _Shown: ...
else:
    _Shown = Client


class Redis(  # type: ignore[misc]
    _Shown, StreamCommands, LogCommands, AsyncLater, AsyncReading, AsyncTopics, redis.asyncio.Redis
):
    """redis.asyncio.Redis on a braidstream region. Same constructor, same methods, and:

    idempotent: every XADD with `*` gets a message ID, so the client resends it if its reply is lost.
    producer: a name for its messages; random by default. Clients that run at once need different ones.
    config: the file that lists the regions. Writes to a log then go to its home, as this client's user.
    options: all others of redis-py, such as username, ssl, socket_timeout and decode_responses.
    """

    if TYPE_CHECKING:  # what editors, mypy and the site show

        def __init__(
            self,
            *,
            idempotent: bool = False,
            producer: str | bytes | None = None,
            config: shared.ConfigFile = None,
            **options: Unpack[AsyncioOptions],
        ) -> None: ...

        @classmethod
        def from_url(  # type: ignore[override]
            cls,
            url: str,
            *,
            idempotent: bool = False,
            producer: str | bytes | None = None,
            config: shared.ConfigFile = None,
            **options: Any,
        ) -> Self: ...  # the others are those of the constructor

        def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> "Pipeline": ...

        async def execute_command(self, *args: Any, **options: Any) -> Any: ...


class Pipeline(_Plans, StreamCommands, LogCommands, LaterCommands, redis.asyncio.client.Pipeline):  # type: ignore[misc]
    """redis-py's pipeline. Stream commands share its round trip and its MULTI."""

    def __init__(self, session: Session, *args: Any) -> None:
        self.session = session
        super().__init__(*args)

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        with Sending(self.session):
            reply = await super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]
        self.watching = self.watching or args[0] == "WATCH"
        return reply

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        lane = self.session.mark_all(self, self.command_stack)
        with Sending(self.session, lane):
            return await super().execute(raise_on_error)

    async def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        if not pipeline.has_streams(commands):
            return await super()._execute_pipeline(connection, commands, raise_on_error)
        found = await self.run_on(connection, pipeline.pipeline(self, connection, commands))
        if self.session.homes is not None:
            try:
                for places in by_log(commands, found):
                    await self._write_at_home(connection, commands, found, places)
            except LOST as error:  # the other commands have run
                raise NotResentError(error) from error
        return self._checked(commands, await awaited_all(found), raise_on_error)

    async def _write_at_home(
        self, connection: Any, commands: Any, found: list[Any], places: list[int]
    ) -> None:
        """Send refused writes to one log to its home. Each gets its result or its error."""
        way, homes = Way(self.session), self.session.homes
        assert homes is not None
        while places:
            try:
                number, wait_s = way.next(found[places[0]])
            except exceptions.ResponseError:
                return
            await asyncio.sleep(wait_s)
            again = [commands[at] for at in places]
            if number == way.here:
                results = await self.run_on(connection, pipeline.pipeline(self, connection, again))
            elif (client := homes.client(Redis, self, number)) is not None:
                results = await _sent(client, again)
            else:
                return
            for at, result in zip(places, results, strict=True):
                found[at] = result
            places = [at for at in places if is_elsewhere(found[at])]

    async def _execute_transaction(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        if not pipeline.has_streams(commands):
            if self.watching:
                await connect(connection, may=False)
            return await super()._execute_transaction(connection, commands, raise_on_error)
        found = await self.run_on(connection, pipeline.transaction(self, connection, commands))
        self.watching = False
        if found is None:
            raise exceptions.WatchError("Watched variable changed.")
        return self._checked(commands, await awaited_all(found), raise_on_error)

    def _checked(self, commands: Any, found: list[Any], raise_on_error: bool) -> list[Any]:
        if raise_on_error:
            shared.raise_first_of_ours(self, commands, found)
            self.raise_first_error(commands, found)
        return found


async def _sent(client: Redis, commands: Any) -> list[Any]:
    """Send commands of a pipeline to another region. If the connection is lost, each gets that error."""
    async with client.pipeline(transaction=False) as pipe:
        for args, options in commands:
            pipe.execute_command(*args, **options)
        try:
            found: list[Any] = await pipe.execute(raise_on_error=False)
        except exceptions.RedisError as error:
            return [error] * len(commands)
        return found


Client.pipeline_class = Pipeline

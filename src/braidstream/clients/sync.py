"""`braidstream.Redis`: redis-py's client, its stream commands run as plans. `aio.py` is its twin."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import redis
from redis import exceptions
from redis.exceptions import RedisError as ServerError
from redis.typing import KeyT

from braidstream.clients import pipeline, shared
from braidstream.clients.client_options import SyncOptions
from braidstream.clients.log_commands import LogCommands
from braidstream.clients.raised import for_user
from braidstream.clients.shared import Session
from braidstream.errors import BraidError
from braidstream.model.command import Command
from braidstream.net.compat import packed
from braidstream.net.sender import LOST, REFUSALS, NotResentError, Sender, connect
from braidstream.protocol.plan import Plan, run

__all__ = ["Pipeline", "Redis", "ServerError"]

T = TypeVar("T")


def _append(conn: Any, command: Command, known: Session) -> Any:
    """One append in one command, sent once; None where the plan must say it."""
    connect(conn)
    try:
        conn.send_packed_command(packed(conn, [command]))
        return conn.read_response(disable_decoding=True)
    except exceptions.ResponseError as error:
        if not shared.is_for_plan(command, error):
            raise
        return None
    except LOST as error:
        conn.disconnect()
        if known.may_resend(command) or isinstance(error, REFUSALS):
            raise
        raise NotResentError(error) from error


class _Plans:
    """The seam: where redis-py sends one command over a connection."""

    session: Session
    watching = False

    def _send_command_parse_response(self, conn: Any, command_name: Any, *args: Any, **options: Any) -> Any:
        known = self.session
        express = known.express(conn, args)
        if express is not None and not known.stale(conn):
            entry = known.minted(conn, _append(conn, express, known))
            if entry is not None:
                return entry
            known.doubt(conn)
        spec = shared.spec_of(args)
        if spec is None:
            if args[0] in shared.MOVES:
                known.doubt(conn)
                pipeline.note_multi(conn, args[0])
            return super()._send_command_parse_response(conn, command_name, *args, **options)  # type: ignore[misc]
        pipeline.refuse_in_multi(conn)
        argv = shared.words(conn, args)
        result = self._run(conn, known.command(conn, spec, argv, watching=self.watching))
        known.remember_home(args, argv)
        return shared.present(self, conn, spec, result, args, options)

    def _run(self, conn: Any, plan: Plan[T]) -> T:
        try:
            return run(plan, Sender(conn, watching=self.watching))
        except BraidError as error:
            raise for_user(error) from None
        except (NotResentError, *LOST):
            raise
        except BaseException:
            # Cut off in the middle: replies may be on the way, keys WATCHed. Nobody may get this connection.
            conn.disconnect()
            raise

    def xcfgset(
        self, name: KeyT, idmp_duration: int | None = None, idmp_maxsize: int | None = None
    ) -> bytes | str:
        """How long a stream knows its messages, in seconds, and how many of each producer."""
        words = shared.settings_words(idmp_duration, idmp_maxsize)
        return self.execute_command("XCFGSET", name, *words)  # type: ignore[attr-defined,no-any-return]


class Redis(_Plans, shared.Idempotence, LogCommands, redis.Redis):
    """redis.Redis on a braidstream region. Same constructor, same methods, and:

    idempotent: every XADD with `*` is a message the stream knows, so it is sent again when its reply is lost.
    producer: its name as a producer. Name it to tell it apart in `bs:idmp`; two that run at once need two.
    """

    if TYPE_CHECKING:
        # The first four may go without their names, as in redis-py.
        def __init__(
            self,
            host: str = "localhost",
            port: int = 6379,
            db: int = 0,
            password: str | None = None,
            *,
            idempotent: bool = False,
            producer: str | bytes | None = None,
            **options: Unpack[SyncOptions],
        ) -> None: ...

    else:

        def __init__(
            self, *args: Any, idempotent: bool = False, producer: str | bytes | None = None, **kwargs: Any
        ) -> None:
            self.session = shared.opened(idempotent, producer)
            super().__init__(*args, **kwargs)

    def run_plan(self, plan: Plan[T]) -> T:
        """Run a plan of your own on a connection from the pool."""
        return self._run_on_one(lambda conn: plan)

    def converse(self, make: shared.Conversation[T]) -> T:
        """Run a plan over plans of commands: their replies are bytes, and redis-py does not parse them."""
        return self._run_on_one(lambda conn: self.session.viewed(conn, make))

    def _run_on_one(self, make: Callable[[Any], Plan[T]]) -> T:
        conn = self.connection_pool.get_connection()
        try:
            return self._run(conn, make(conn))
        except NotResentError as lost:
            raise lost.for_user() from None
        finally:
            self.connection_pool.release(conn)

    def _execute_command(self, *args: Any, **options: Any) -> Any:
        lane, args = self.session.mark(self, args)
        try:
            return super()._execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except NotResentError as lost:
            raise lost.for_user() from None
        except LOST as lost:
            raise self.session.given_up(lost, lane) from None
        finally:
            self.session.done(lane)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> "Pipeline":
        return Pipeline(self.session, self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def client(self) -> "Redis":
        alone = type(self)(connection_pool=self.connection_pool, single_connection_client=True)
        alone.session.producer = self.session.producer
        return alone


class Pipeline(_Plans, shared.Idempotence, LogCommands, redis.client.Pipeline):
    """redis-py's pipeline. Stream commands share its round trip, and its MULTI."""

    def __init__(self, session: Session, *args: Any) -> None:
        self.session = session
        super().__init__(*args)

    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            reply = super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except NotResentError as lost:
            raise lost.for_user() from None
        self.watching = self.watching or args[0] == "WATCH"
        return reply

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        lane = self.session.mark_all(self, self.command_stack)
        try:
            return super().execute(raise_on_error)
        except NotResentError as lost:
            raise lost.for_user() from None
        except LOST as lost:
            raise self.session.given_up(lost, lane) from None
        finally:
            self.session.done(lane)

    def _execute_pipeline(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        if not pipeline.has_streams(commands):
            return super()._execute_pipeline(connection, commands, raise_on_error)  # type: ignore[no-untyped-call]
        found = self._run(connection, pipeline.pipeline(self, connection, commands))
        return self._checked(commands, found, raise_on_error)

    def _execute_transaction(self, connection: Any, commands: Any, raise_on_error: bool) -> Any:
        if not pipeline.has_streams(commands):
            return super()._execute_transaction(connection, commands, raise_on_error)
        found = self._run(connection, pipeline.transaction(self, connection, commands))
        self.watching = False
        if found is None:
            raise exceptions.WatchError("Watched variable changed.")
        return self._checked(commands, found, raise_on_error)

    def _checked(self, commands: Any, found: list[Any], raise_on_error: bool) -> list[Any]:
        if raise_on_error:
            shared.raise_braid_error(found)
            self.raise_first_error(commands, found)  # type: ignore[no-untyped-call]
        return found

"""A pipeline or MULTI of a client, as one plan over the plans of its commands.

    XADD a *      first batches      +--------------------------------+
    GET k         ------------->     | XADD bs:1:s:{a} ...  GET k ...  |   one round trip
    XRANGE a - +                     +--------------------------------+
                  <-- replies: each plan gets its own; who has more to say goes on, one by one

A command that cannot share (RENAME, a blocking read) closes the round trip it is in. Before the
first one, the strands that the commands rely on are looked up, all at once. Inside MULTI they are
WATCHed too, so that the plans cannot be wrong by the time of EXEC.
"""

from dataclasses import dataclass
from typing import Any, Final

from redis import exceptions

from braidstream.braid import View, birth_command, registry_of
from braidstream.commands.table import Spec
from braidstream.drivers import session as shared
from braidstream.drivers.session import Exchange, Session
from braidstream.errors import BraidError, RefusedError, ReplyError
from braidstream.keys import meta, shares_slot
from braidstream.plan import Batch, Command, Plan, Replies, first_error

_WATCH_TRIES: Final = 100


@dataclass(slots=True)
class Queued:
    """A command of a pipeline: native, or a plan that has said its first batch.

    more: it may go on after that, so what follows it must wait.
    """

    args: tuple[Any, ...]
    options: dict[str, Any]
    spec: Spec | None
    argv: list[bytes]
    plan: Plan[Any] | None = None
    batch: Batch | None = None
    more: bool = False
    result: Any = None

    def start(self, view: View) -> None:
        """Hear the plan's first batch. Its refusal is the result, as an error reply would be."""
        if self.spec is None:
            return
        fits = self.spec.arity_error(self.argv) is not None
        self.more = not (fits or (self.spec.multi and self.spec.shares(view, self.argv)))
        try:
            self.plan = self.spec.plan(view, self.argv)
            self.batch = next(self.plan)
        except ReplyError as error:
            self.plan, self.result = None, error
        except StopIteration as stop:
            self.plan, self.result = None, stop.value

    def wire(self, *, in_multi: bool) -> list[Command]:
        if self.spec is None:
            return [self.args]
        if self.plan is None or self.batch is None:
            return []
        return list(self.batch.commands) if in_multi else shared.wire(self.batch)

    def finish(self, replies: Replies) -> Plan[None]:
        """Take the replies to the first batch, and go on to the result."""
        if self.spec is None:
            self.result = replies[0]
        elif self.plan is not None:
            try:
                self.result = yield from self._rest(replies)
            except ReplyError as error:
                self.result = error

    def _rest(self, replies: Replies) -> Plan[Any]:
        plan, batch = self.plan, self.batch
        assert plan is not None
        assert batch is not None
        while True:
            error = first_error(batch, replies)
            try:
                batch = plan.throw(error) if error else plan.send(replies)
            except StopIteration as stop:
                return stop.value
            replies = yield batch


Commands = list[tuple[tuple[Any, ...], dict[str, Any]]]


def has_streams(commands: Commands) -> bool:
    return any(shared.spec_of(args) for args, _ in commands)


def _queue(conn: Any, commands: Commands) -> list[Queued]:
    queued = []
    for args, options in commands:
        spec = shared.spec_of(args)
        queued.append(Queued(args, options, spec, shared.words(conn, args) if spec else []))
    return queued


def pipeline(client: Any, conn: Any, commands: Commands) -> Plan[list[Any]]:
    """All commands in order, in as few round trips as can be. Results, and errors among them."""
    session: Session = client.session
    yield from session.refresh(conn)
    if (express := _express(session, commands)) is not None:
        births = _births(session, commands)
        replies = yield Exchange(births + express)
        return (yield from _express_results(client, conn, commands, replies[len(births) :]))
    queued = _queue(conn, commands)
    view = session.view(pipelined=True)
    yield from _look_up(view, queued)
    together = list[Queued]()
    for at, item in enumerate(queued):
        item.start(view)
        together.append(item)
        if item.more:
            yield from _send(together)
            yield from _look_up(view, queued[at + 1 :])
            together = []
    yield from _send(together)
    return _results(client, conn, queued)


def _express(session: Session, commands: Commands) -> list[Command] | None:
    """Where every command is native or a plain append: the native commands, one for one."""
    express = list[Command]()
    for args, _ in commands:
        plain = session.plain_add(args)
        if plain is None:
            if shared.spec_of(args) is not None:
                return None
            plain = args
        express.append(plain)
    return express


def _births(session: Session, commands: Commands) -> list[Command]:
    """Each strand is made sure of once: nothing can be said again without getting out of order."""
    homes = {session.homes[args[1]]: None for args, _ in commands if args[0] == "XADD"}
    return list(map(birth_command, homes))


def _express_results(client: Any, conn: Any, commands: Commands, replies: Replies) -> Plan[list[Any]]:
    session: Session = client.session
    found = list[Any]()
    for (args, options), reply in zip(commands, replies, strict=True):
        spec = shared.spec_of(args)
        if isinstance(reply, exceptions.ResponseError):
            found.append(reply)
        elif spec is None:
            found.append(shared.present_native(client, conn, reply, args, options))
        elif reply is not None:
            found.append(session.minted(conn, reply))
        else:
            try:
                result = yield from session.command(conn, spec, shared.words(conn, args))
                found.append(shared.present(client, conn, spec, result, args, options))
            except ReplyError as error:
                found.append(shared.for_user(error))
    return found


def _look_up(view: View, queued: list[Queued]) -> Plan[None]:
    """Learn the strands of the streams, afresh: nothing can be said twice here. A plain XADD needs none."""
    names, view.taken = dict[bytes, None](), frozenset()
    for item in queued:
        plain_add = item.argv[:1] == [b"XADD"] and item.argv[2:3] == [b"*"] and shares_slot(item.argv[1])
        if item.spec is not None and not plain_add:
            names.update(dict.fromkeys(item.spec.names(item.argv)))
    if names and view.in_multi:
        yield Batch([("WATCH", *map(meta, names))], resend=True)
    if names:
        types: list[Command] = [("TYPE", name) for name in names]
        replies = yield Batch([*map(registry_of, names), *types], resend=True)
        for name, reply in zip(names, replies, strict=False):
            view.learn(name, reply)
        kinds = zip(names, replies[len(names) :], strict=True)
        view.taken = frozenset(name for name, kind in kinds if kind != b"none")


def _send(queued: list[Queued]) -> Plan[None]:
    """One round trip for all; the last may have more to say."""
    commands = [item.wire(in_multi=False) for item in queued]
    flat = [command for each in commands for command in each]
    resend = all(item.batch.resend if item.batch else item.spec is None for item in queued)
    replies = (yield Exchange(flat, resend=resend)) if flat else []
    at = 0
    for item, said in zip(queued, commands, strict=True):
        mine, at = replies[at : at + len(said)], at + len(said)
        if item.plan is not None and item.batch is not None:
            try:
                mine = shared.unpack(item.batch, mine)
            except ReplyError as error:  # its own MULTI was refused
                item.plan, item.result = None, error
        yield from item.finish(mine)


def transaction(client: Any, conn: Any, commands: Commands) -> Plan[list[Any] | None]:
    """All commands in one MULTI. None if a key that the user WATCHes has changed: nothing was done."""
    session: Session = client.session
    yield from session.refresh(conn)
    if (express := _express(session, commands)) is not None:
        births = _births(session, commands)
        replies = shared.executed((yield Exchange(shared.transaction(births + express))))
        if replies is None:
            return None
        return (yield from _express_results(client, conn, commands, replies[len(births) :]))
    queued = _queue(conn, commands)
    for _ in range(_WATCH_TRIES):
        view = session.view(pipelined=True, in_multi=True)
        try:
            yield from _look_up(view, queued)
            refusal = _refusal(client, view, queued)
        except ReplyError as error:
            refusal = shared.for_user(error)
        if refusal is not None:
            if not client.watching:
                yield Batch([("UNWATCH",)])
            raise refusal
        for item in queued:
            item.start(view)
        wire = [item.wire(in_multi=True) for item in queued]
        flat = [command for each in wire for command in each]
        replies = shared.executed((yield Exchange(shared.transaction(flat))))
        if replies is not None:
            yield from _finish_all(queued, wire, replies)
            return _results(client, conn, queued)
        if client.watching:
            return None
    raise ReplyError(f"ERR others changed these streams {_WATCH_TRIES} times. Nothing was done. Try again.")


def _refusal(client: Any, view: View, queued: list[Queued]) -> Exception | None:
    """The error of the first command that cannot be queued, so that nothing of the MULTI is done."""
    for number, item in enumerate(queued, 1):
        if item.spec is None:
            continue
        error = item.spec.arity_error(item.argv)
        if error is None and not (item.spec.multi and item.spec.fits_multi(view, item.argv)):
            name = item.argv[0].decode("ascii", "replace").upper()
            why = "it takes several round trips here"
            error = RefusedError(f"{name} inside MULTI", why, "Run it before or after")
        if error is not None:
            refusal = shared.for_user(error)
            client.annotate_exception(refusal, number, item.args)
            return refusal
    return None


def _finish_all(queued: list[Queued], wire: list[list[Command]], replies: Replies) -> Plan[None]:
    at = 0
    for item, said in zip(queued, wire, strict=True):
        mine, at = replies[at : at + len(said)], at + len(said)
        if item.spec is not None:
            mine = [shared.resp2(command, reply) for command, reply in zip(said, mine, strict=True)]
        yield from item.finish(mine)


def _results(client: Any, conn: Any, queued: list[Queued]) -> list[Any]:
    found = []
    for item in queued:
        if isinstance(item.result, BraidError):
            found.append(shared.for_user(item.result))
        elif isinstance(item.result, exceptions.ResponseError):
            found.append(item.result)
        elif item.spec is not None:
            client.session.remember_home(item.args, item.argv)
            found.append(shared.present(client, conn, item.spec, item.result, item.args, item.options))
        else:
            found.append(shared.present_native(client, conn, item.result, item.args, item.options))
    return found

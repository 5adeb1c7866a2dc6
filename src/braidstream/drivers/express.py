"""A pipeline of an idempotent client that holds messages only: its calls, without a plan for each message.

They are the calls that the plans would make (commands/produce.py). Sending messages twice is as good as once,
so where anything is not as we believed the plans run from the start.
"""

from typing import Any

from redis import exceptions

from braidstream.braid import birth_command
from braidstream.commands.arguments import FUNCTION_ARGUMENTS
from braidstream.commands.produce import AT_ONCE, call, shared_lane
from braidstream.drivers import session as shared
from braidstream.drivers.gather import Exchange
from braidstream.drivers.session import Session
from braidstream.errors import ReplyError
from braidstream.idempotence import Settings
from braidstream.plan import Command, Plan
from braidstream.strand import Strand

Commands = list[tuple[tuple[Any, ...], dict[str, Any]]]


def messages(session: Session, conn: Any, commands: Commands, *, atomic: bool) -> Plan[list[Any] | None]:
    """The results; None if the plans must run. A MULTI over several streams is theirs: they WATCH."""
    found = _calls(session, commands)
    if found is None or (atomic and len(found[0]) > 1):
        return None
    homes, calls = found
    births = list(map(birth_command, homes))
    replies = yield Exchange(births + calls, atomic=atomic, resend=True)
    answers = list[bytes | None]()
    for command, reply in zip(calls, (replies or [])[len(births) :], strict=False):
        if isinstance(reply, exceptions.ResponseError):
            _learn(session, homes, command, shared.reply_error(reply))
            return None
        answers += reply
    if len(answers) != len(commands) or None in answers:
        return None
    return [_result(session, conn, answer) for answer in answers]


def _calls(session: Session, commands: Commands) -> tuple[list[Strand], list[Command]] | None:
    """The streams, and the calls; None if a command is something else, or a stream not known yet."""
    if session.producer is None or session.region is None:
        return None
    own, homes, calls = session.producer.name + b"/", dict[Strand, None](), list[list[Any]]()
    last: tuple[Any, bytes] | None = None
    for args, _ in commands:
        if args[0] != "XADD" or not 8 <= len(args) < FUNCTION_ARGUMENTS or len(args) % 2:
            return None
        if args[2] != b"IDMP" or args[5] != "*" or not isinstance(args[1], str | bytes):
            return None
        home, numbered = session.homes.get(args[1]), args[3]
        if home is None or type(numbered) is not bytes or not numbered.startswith(own):
            return None
        settings = session.settings.get(home.name, _DEFAULTS)
        lane = shared_lane(numbered, min(AT_ONCE, settings.maxsize))
        if last != (home, lane):
            homes[home], last = None, (home, lane)
            calls.append(list(call(home, settings, lane, session.region.teller)))
        calls[-1] += (args[4], len(args) - 5, *args[5:])
    return list(homes), [tuple(each) for each in calls]


_DEFAULTS = Settings()


def _learn(session: Session, homes: list[Strand], command: Command, error: ReplyError) -> None:
    """Other settings than we believed: remember them for the next pipeline."""
    settings = Settings.parse(error.text.removeprefix("BSSTALE ").encode())
    for home in homes:
        if settings is not None and home.key == command[4]:
            session.settings[home.name] = settings


def _result(session: Session, conn: Any, answer: bytes | None) -> Any:
    try:
        return session.minted(conn, [answer])
    except exceptions.ResponseError as error:
        return error

"""What clients raise: each error is also the redis-py exception that programs already catch.

    redis.RedisError
    |-- BraidError              (also errors.BraidError)
    |   |-- NotARegionError
    |   |-- RegionTakenError
    |   |-- LibraryError
    |   |-- RefusedError        also a redis.ResponseError
    |   `-- HomeError           also a redis.ResponseError
    `-- ResponseError, ConnectionError, ...     redis-py's own, for all error replies of the engine

Plans raise the classes of `errors.py`, which does not depend on redis-py. `for_user` converts each to its
class here, before a client raises it to its caller. Like redis-py's, texts have no leading "ERR".

NOPERM says what to type (`with_rights`): a user that worked with redis-py may lack rights that we need.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from redis import exceptions

from braidstream import errors
from braidstream.commands.arguments import shown
from braidstream.commands.table import TABLE
from braidstream.engine.redis_py import parse_error
from braidstream.errors import ReplyError

__all__ = [
    "BraidError",
    "HomeError",
    "LibraryError",
    "NotARegionError",
    "RefusedError",
    "RegionTakenError",
    "advised",
    "for_user",
    "with_rights",
]

# For those who may not import redis.
ServerError = exceptions.RedisError


class BraidError(errors.BraidError, exceptions.RedisError):
    """Base class of the exceptions that braidstream's clients raise."""

    def __init__(self, text: str) -> None:
        exceptions.RedisError.__init__(self, text)


class NotARegionError(BraidError, errors.NotARegionError):
    """The database is not a braidstream region yet: run `braid init`."""

    def __init__(self, text: str) -> None:
        BraidError.__init__(self, text)


class RegionTakenError(BraidError, errors.RegionTakenError):
    """The database is already another region."""

    def __init__(self, text: str) -> None:
        BraidError.__init__(self, text)


class LibraryError(BraidError, errors.LibraryError):
    """The engine functions are missing, or have another version than this client needs."""


class RefusedError(BraidError, errors.RefusedError, exceptions.ResponseError):
    """A command that would break a promise of braidstream. The text says why, and what to use instead."""

    def __init__(self, text: str) -> None:
        BraidError.__init__(self, text)
        self.text = text


class HomeError(BraidError, errors.HomeError, exceptions.ResponseError):
    """A log is written in another region: `region` is its number. Nothing was written."""

    code = "HOME"

    def __init__(self, text: str, log: str = "", region: int = 0) -> None:
        BraidError.__init__(self, text)
        self.text, self.log, self.region = text, log, region


_RAISED: Final = {
    errors.RefusedError: RefusedError,
    errors.NotARegionError: NotARegionError,
    errors.RegionTakenError: RegionTakenError,
    errors.LibraryError: LibraryError,
}


def for_user(error: errors.BraidError) -> Exception:
    """An error of a plan as the client raises it."""
    if isinstance(error, BraidError):
        return error
    if isinstance(error, errors.ReplyError) and "Function not found" in error.text:
        return LibraryError(
            "the engine lacks the braidstream functions this client needs. "
            "Load them with: braid init --url URL --region N --name NAME"
        )
    if isinstance(error, errors.HomeError):
        return HomeError(error.text, error.log, error.region)
    if type(error) in _RAISED:
        return _RAISED[type(error)](str(error).removeprefix("ERR "))
    if isinstance(error, errors.ReplyError):
        return parse_error(error.text)
    raised = BraidError(str(error))
    raised.code = error.code
    return raised


# ----------------------------------------------------------------------------------------------------
# NOPERM

_READS: Final = frozenset((b"XLEN", b"XRANGE", b"XREVRANGE", b"XREAD", b"XINFO"))
_WRITES: Final = frozenset((b"XADD", b"XDEL", b"XTRIM", b"XDELEX", b"XSETID", b"XCFGSET"))
_USER: Final = re.compile(r"User (\S+) has")
# What engines say if a function calls what its user may not. The older text names neither user nor command.
_IN_FUNCTION: Final = re.compile("ACL failure in script|The user executing the script can't")
# Words of messages: their functions need more rights.
_MESSAGES: Final = frozenset((b"IDMP", b"IDMPAUTO"))


def with_rights(error: ReplyError, conn: Any, commands: Sequence[list[bytes]]) -> ReplyError:
    """The same error; if a right is missing, with the command that prints what the user needs.

    commands: those that were refused, on streams or others.
    """
    if error.code != "NOPERM" and not _IN_FUNCTION.search(error.text):
        return error
    kinds, names = set[str](), dict[str, None]()
    for argv in commands:
        spec = TABLE.get(argv[0].upper())
        if spec is not None and argv[0][:1] in b"Xx" and spec.arity_error(argv) is None:
            kinds.add(_kind(argv))
            names |= dict.fromkeys(map(shown, spec.names(argv)))
    if not kinds:
        return error
    user, kinds = getattr(conn, "username", None), kinds - {"reader"} or kinds
    if any(
        argv[0].upper() == b"XCFGSET" or _MESSAGES & {word.upper() for word in argv[2:8]} for argv in commands
    ):
        kinds = kinds - {"writer"} | {"writer --idempotent"}
    text = error.text if error.code == "NOPERM" else f"NOPERM {error.text.removeprefix('ERR ')}"
    return ReplyError(advised(text, user, kinds, [*names]))


def _kind(argv: list[bytes]) -> str:
    """Of `braid acl`."""
    word, *more = (each.upper() for each in argv[:2])
    if word in _WRITES:
        return "writer"
    return "consumer" if word not in _READS or more[0] in (b"GROUPS", b"CONSUMERS") else "reader"


def advised(text: str, user: str | None, kinds: set[str], names: Sequence[str]) -> str:
    """The text of NOPERM, with the commands that print the rights. kinds: of `braid acl`."""
    found = _USER.search(text)
    user, streams = found[1] if found else user or "default", ",".join(names)
    keys = ", ".join(f"bs:*:{{{name}}}*" for name in names)
    typed = " and: ".join(f"braid acl {kind} --streams {streams} --user {user}" for kind in sorted(kinds))
    return (
        f"{text.rstrip('.')}. For {streams}, braidstream also uses bs:config and {keys}. "
        f"To print the rights that the user {user} needs: {typed}"
    )

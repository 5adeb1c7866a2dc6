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
"""

from typing import Final

from redis import exceptions

from braidstream import errors
from braidstream.engine.redis_py import parse_error

__all__ = [
    "BraidError",
    "HomeError",
    "LibraryError",
    "NotARegionError",
    "RefusedError",
    "RegionTakenError",
    "for_user",
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

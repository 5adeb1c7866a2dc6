"""A client that notices how a reply is written: `+OK` is not `$2 OK`, no array is not no string."""

from types import TracebackType
from typing import Any, Self

import hiredis
import redis
from redis._parsers.base import BaseParser

from braidstream.engine.resp import elements
from tests.support.gateways import Line, packed

Kind = Any  # a type byte, or the kinds of the parts


class Spoken:
    """What `Sides` needs of a redis-py client. kinds: the RESP types of the last reply or replies."""

    def __init__(self, port: int, protocol: int) -> None:
        self.line = Line(port, timeout_s=5)
        self.line.say(f"HELLO {protocol}")
        self.kinds: list[Kind] = []

    def execute_command(self, *argv: Any) -> Any:
        self.line.send(*argv)
        raw = self.line.read()
        self.kinds = [kind_of(raw)]
        return _raised(value_of(raw))

    def pipeline(self, transaction: bool) -> "_Pipeline":
        return _Pipeline(self, transaction)


class _Pipeline:
    def __init__(self, client: Spoken, transaction: bool) -> None:
        self._client, self._transaction = client, transaction
        self._commands = list[tuple[Any, ...]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def execute_command(self, *argv: Any) -> None:
        self._commands.append(argv)

    def execute(self, raise_on_error: bool) -> list[Any]:
        line = self._client.line
        commands = [("MULTI",), *self._commands, ("EXEC",)] if self._transaction else self._commands
        line.socket.sendall(b"".join(packed(*argv) for argv in commands))
        raw = [line.read() for _ in commands]
        if not self._transaction:
            self._client.kinds = [kind_of(each) for each in raw]
            return [value_of(each) for each in raw]
        *queued, last = raw
        if last.startswith(b"-"):
            _raised(value_of(next((each for each in queued if each.startswith(b"-")), last)))
        parts = elements(last)
        self._client.kinds = [kind_of(each) for each in parts]
        return [value_of(each) for each in parts]


def value_of(raw: bytes) -> Any:
    reader = hiredis.Reader(replyError=BaseParser.parse_error)
    reader.feed(raw)
    return reader.gets()


def _raised(value: Any) -> Any:
    if isinstance(value, redis.ResponseError):
        raise value
    return value


def kind_of(raw: bytes) -> Kind:
    """The type bytes of a reply, as a tree."""
    if raw[:1] in b"*%~>" and raw[1:2] != b"-":
        return [raw[:1], *map(kind_of, elements(raw))]
    return raw[:3] if raw[1:2] == b"-" and raw[:1] != b":" else raw[:1]


def written_alike(one: Kind, other: Kind) -> bool:
    """Whether two replies are of the same kinds, as far as both go. Errors are compared elsewhere."""
    if b"-" in (one, other) or b"-E" in (one[:2], other[:2]):
        return True
    if isinstance(one, list) or isinstance(other, list):
        return isinstance(one, list) and isinstance(other, list) and all(map(written_alike, one, other))
    # A number or nothing: whether it may be known differs, and is judged with the values.
    return bool(one == other) or {one, other} in ({b":", b"$-1"}, {b":", b"_"})

"""Converts replies to the shape that plans expect (RESP2), and results to the shape of RESP3. No parsing."""

from itertools import chain
from typing import Any

from redis import exceptions

from braidstream.errors import ReplyError
from braidstream.model.command import Command
from braidstream.net.compat import error_line


def resp2(command: Command, reply: Any) -> Any:
    """A reply of either protocol in the shape of RESP2."""
    if isinstance(reply, exceptions.ResponseError):
        return reply_error(reply)
    if isinstance(reply, dict) and command[0] == "HGETALL":
        return list(chain.from_iterable(reply.items()))
    if isinstance(reply, dict) and command[0] in ("XREAD", "XREADGROUP"):
        return [[name, entries] for name, entries in reply.items()]
    if isinstance(reply, dict) or command[0] in ("XINFO", "FUNCTION"):
        return _flattened(reply)
    return reply


def _flattened(value: Any) -> Any:
    """Maps as flat arrays, at any depth. An array that begins with a text is an entry, or RESP2: no maps."""
    if isinstance(value, dict):
        return [_flattened(word) for pair in value.items() for word in pair]
    if not isinstance(value, list) or (value and isinstance(value[0], bytes)):
        return value
    return [_flattened(each) for each in value]


def reply_error(error: exceptions.ResponseError) -> ReplyError:
    """The error reply behind an exception of redis-py."""
    return ReplyError(error_line(error))


def mapped(info: list[Any]) -> Any:
    """XINFO in the shape of RESP3: flat arrays that start with a field name become maps."""
    if info and info[0] in (b"length", b"name") and len(info) % 2 == 0:
        pairs = zip(info[::2], info[1::2], strict=True)
        return {name: mapped(value) if _holds_maps(name, value) else value for name, value in pairs}
    return [mapped(each) if isinstance(each, list) else each for each in info]


def _holds_maps(name: bytes, value: Any) -> bool:
    return name in (b"groups", b"consumers") and isinstance(value, list)

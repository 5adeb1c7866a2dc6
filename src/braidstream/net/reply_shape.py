"""Replies in the shape that plans know (RESP2), and results in the shape that RESP3 sends."""

from typing import Any

from redis import exceptions

from braidstream.errors import ReplyError
from braidstream.model.command import Command
from braidstream.net.compat import error_line


def resp2(command: Command, reply: Any) -> Any:
    """A reply in the shape plans know, whatever protocol it came by."""
    if isinstance(reply, exceptions.ResponseError):
        return reply_error(reply)
    if isinstance(reply, dict) and command[0] in ("XREAD", "XREADGROUP"):
        return [[name, entries] for name, entries in reply.items()]
    if isinstance(reply, dict) or command[0] == "XINFO":
        return _flattened(reply)
    return reply


def _flattened(value: Any) -> Any:
    """Maps as the flat arrays that RESP2 sends, however deep."""
    if isinstance(value, dict):
        return [_flattened(word) for pair in value.items() for word in pair]
    return [_flattened(each) for each in value] if isinstance(value, list) else value


def reply_error(error: exceptions.ResponseError) -> ReplyError:
    """The error line that redis-py made an exception of."""
    return ReplyError(error_line(error))


def mapped(info: list[Any]) -> Any:
    """XINFO as RESP3 sends it: the flat arrays that start with a fact's name are maps."""
    if info and info[0] in (b"length", b"name") and len(info) % 2 == 0:
        pairs = zip(info[::2], info[1::2], strict=True)
        return {name: mapped(value) if _holds_maps(name, value) else value for name, value in pairs}
    return [mapped(each) if isinstance(each, list) else each for each in info]


def _holds_maps(name: bytes, value: Any) -> bool:
    return name in (b"groups", b"consumers") and isinstance(value, list)

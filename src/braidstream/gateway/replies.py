"""Results of plans as the bytes that the engine would have sent, by either protocol."""

from typing import Any, Final

from braidstream.errors import BraidError
from braidstream.net.reply_shape import mapped
from braidstream.net.resp import NULL, NULL_ARRAY, NoArray, Pairs, Status, Words, bulk, encode, error_line
from braidstream.protocol.gather import CommandSpec

# Commands for which the engine sends a null array, which RESP2 distinguishes from a null string.
_NO_ARRAY: Final = frozenset(
    (b"XREAD", b"XREADGROUP", b"XRANGE", b"XREVRANGE", b"XCLAIM", b"XAUTOCLAIM", b"TREAD")
)
_HELP: Final = frozenset((b"XINFO", b"XGROUP", b"OBJECT"))


def reply_of(spec: CommandSpec, words: Words, result: Any, resp: int) -> bytes:
    """The reply to a command whose plan returned `result`; an error is a result as well."""
    if isinstance(result, BraidError):
        return error_line(result)
    name = words[0].upper()
    if type(result) is bytes:
        is_status = name == b"TYPE" or (result == b"OK" and name != b"RANDOMKEY")
        return b"+%b\r\n" % result if is_status else bulk(result)
    if isinstance(result, list):
        result = _shaped(spec, name, words, result, resp)
    null = NULL_ARRAY if name in _NO_ARRAY else NULL
    if name == b"XPENDING" and len(words) == 3 and result[3] is None:
        result = [*result[:3], NoArray]
    return encode(result, resp, null[resp])


def _shaped(spec: CommandSpec, name: bytes, words: Words, result: list[Any], resp: int) -> Any:
    if name in _HELP and words[1].upper() == b"HELP":
        return [Status(line.decode("utf-8", "replace")) for line in result]
    if resp == 2:
        return result
    if spec.shape == "streams":
        return Pairs(result)
    return mapped(result) if spec.shape == "facts" else result

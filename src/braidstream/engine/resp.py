"""RESP without I/O: parses the commands of clients (untrusted), finds where replies end, encodes results.

Clients send arrays of bulk strings, or a line of words. The usual chunk contains complete commands of small
words. It is split at line ends, and the lengths that it declares are compared with the lengths of the parts:

    *2 | $3 | GET | $1 | k | *1 | $4 | PING |          heads  $3 $1   words  GET k

If they are equal, the split is what a parser by lengths would find. If not (a line end within a word, a large
word, an incomplete command), the rest is parsed by lengths, word by word, as the engine does, with the
engine's limits and error texts.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from braidstream.engine.collisions import collide
from braidstream.errors import BraidError
from braidstream.model.strand import COUNTS, HEADS
from braidstream.model.strand import bulk as bulk

Words = list[bytes]

_INLINE_LIMIT: Final = 64 * 1024
# Before a login, as in the engine.
_WORDS_BEFORE_LOGIN: Final = 10
_BULK_BEFORE_LOGIN: Final = 16 * 1024
# Memory of a word beyond its bytes.
_WORD: Final = 50
_INTEGER = re.compile(rb"(?:0|-?[1-9][0-9]{0,18})\Z")
_BLANKS: Final = b" \t\n\v\f\r\0"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one client's command."""

    bulk: int = 512 * 1024 * 1024
    words: int = 1024 * 1024
    buffered: int = 1024 * 1024 * 1024


class _Broken(Exception):
    """A protocol error. It is unknown where the next command starts."""


class Parser:
    """Bytes of one client in, commands out. After a protocol error (`error`) it ignores all input.

    limited: it stops before a command that is too large for a client without a login, and `held` says why.
    Then the caller finds out whether the client needs one, and calls `let_in` or `refuse`.
    """

    def __init__(self, limits: Limits, *, limited: bool = False) -> None:
        self.error: str | None = None
        self.held: str | None = None
        self.limited = limited
        self._limits = limits
        small = limits.bulk < len(HEADS) or limits.words < len(COUNTS)
        self._heads, self._counts = ([], {}) if small else (HEADS, COUNTS)
        self._rest = bytearray()
        self._at = 0  # how much of _rest is parsed; 0 between calls
        self._words: Words = []
        self._left = 0  # words that are missing from the command
        self._bulk = -1  # length of the incomplete word
        self._size = 0  # bytes of the words so far

    @property
    def is_clean(self) -> bool:
        """Whether the next byte starts a command, and the limits are not smaller than usual."""
        return not (self._rest or self._left or self.error) and bool(self._counts)

    def feed(self, data: bytes) -> list[Words]:
        """The commands that are complete now. Each byte is split once, so the cost is linear."""
        commands: list[Words] = []
        if self.error is not None:
            return commands
        if self.held is not None:
            self._rest += data
            return commands
        is_split = not (self._rest or self._left)
        if is_split:
            data = self._split(data, commands)
        if not data:
            return commands
        self._rest += data
        self._parse_rest(commands, is_split)
        return commands

    def let_in(self) -> list[Words]:
        """Parse what was held: the engine accepts commands of this client. Returns its commands."""
        commands: list[Words] = []
        self.limited, self.held = False, None
        self._parse_rest(commands, False)
        return commands

    def refuse(self) -> None:
        """The client must log in first."""
        self._break(str(self.held))

    @property
    def waiting(self) -> int:
        """The memory of the incomplete command."""
        words = self._size - max(self._bulk, 0) + _WORD * len(self._words) if self._left else 0
        return len(self._rest) + words

    def _break(self, why: str) -> None:
        self.error, self.held, self._rest, self._words = f"ERR Protocol error: {why}", None, bytearray(), []

    def _parse_rest(self, commands: list[Words], is_split: bool) -> None:
        try:
            while (command := self._parse()) is not None:
                if command:
                    commands.append(command)
                if not is_split:  # the command that was incomplete
                    is_split = True
                    self._rest = bytearray(self._split(bytes(memoryview(self._rest)[self._at :]), commands))
                    self._at = 0
        except _Broken as broken:
            self._break(str(broken))
        else:
            del self._rest[: self._at]
        self._at = 0

    def _split(self, data: bytes, commands: list[Words]) -> bytes:
        """Take complete commands of small words. Returns the rest."""
        tokens = data.split(b"\r\n")
        at, end = 0, len(tokens) - 1
        while at < end:
            count = self._counts.get(tokens[at])
            if count is None or (to := at + 1 + 2 * count) > end:
                break
            words = tokens[at + 2 : to : 2]
            try:
                if list(map(self._heads.__getitem__, map(len, words))) != tokens[at + 1 : to : 2]:
                    break
            except IndexError:
                break
            commands.append(words)
            at = to
        return data if at == 0 else b"\r\n".join(tokens[at:])

    def _parse(self) -> Words | None:
        """Parse one command by lengths; [] if it is empty, None if it is not complete."""
        if not self._left:
            if self._at >= len(self._rest):
                return None
            if self._rest[self._at] != 0x2A:
                return self._inline()
            begin, line = self._at, self._line("too big mbulk count string")
            if line is None:
                return None
            if not _INTEGER.match(line[1:]) or int(line[1:]) > self._limits.words:
                raise _Broken("invalid multibulk length")
            if self.limited and int(line[1:]) > _WORDS_BEFORE_LOGIN:
                self._at, self.held = begin, "unauthenticated multibulk length"
                return None
            self._left, self._words, self._size = max(int(line[1:]), 0), [], 0
        while self._left:
            word = self._word()
            if word is None:
                return None
            self._words.append(word)
            self._left -= 1
        words, self._words = self._words, []
        if collide(len(words), words.__getitem__):
            raise _Broken("hundreds of words with the same hash in Lua, which would keep the server busy")
        return words

    def _word(self) -> bytes | None:
        if self._bulk < 0:
            begin, line = self._at, self._line("too big bulk count string")
            if line is None:
                return None
            if line[:1] != b"$":
                got = chr(line[0]) if line else "\r"
                raise _Broken(f"expected '$', got '{got}'")
            if not _INTEGER.match(line[1:]) or not 0 <= int(line[1:]) <= self._limits.bulk:
                raise _Broken("invalid bulk length")
            if self.limited and int(line[1:]) > _BULK_BEFORE_LOGIN:
                self._at, self.held = begin, "unauthenticated bulk length"
                return None
            self._bulk = int(line[1:])
            self._size += self._bulk
            if self._size > self._limits.buffered:
                raise _Broken("too big request")
        end = self._at + self._bulk
        if len(self._rest) < end + 2:
            return None
        word = bytes(memoryview(self._rest)[self._at : end])
        self._at, self._bulk = end + 2, -1
        return word

    def _line(self, too_big: str) -> bytes | None:
        end = self._find(b"\r", too_big)
        if end < 0 or end + 1 >= len(self._rest):
            return None
        line = bytes(self._rest[self._at : end])
        self._at = end + 2
        return line

    def _inline(self) -> Words | None:
        end = self._find(b"\n", "too big inline request")
        if end < 0:
            return None
        line = bytes(self._rest[self._at : end])
        self._at = end + 1
        words = split_words(line[:-1] if line.endswith(b"\r") else line)
        if words is None:
            raise _Broken("unbalanced quotes in request")
        return words

    def _find(self, mark: bytes, too_big: str) -> int:
        end = self._rest.find(mark, self._at, self._at + _INLINE_LIMIT + 1)
        if end < 0 and len(self._rest) - self._at > _INLINE_LIMIT:
            raise _Broken(too_big)
        return end


_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_SINGLE = re.compile(rb"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_NAMED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_words(line: bytes) -> Words | None:
    """Split an inline command, with quotes and escapes as in the engine; None if quotes are unbalanced."""
    words, at = Words(), 0
    while True:
        while at < len(line) and line[at] in _BLANKS:
            at += 1
        if at >= len(line):
            return words
        parts = list[bytes]()
        while at < len(line) and line[at] not in _BLANKS:
            quote = line[at : at + 1]
            if quote not in (b'"', b"'"):
                parts.append(quote)
                at += 1
                continue
            found = (_QUOTED if quote == b'"' else _SINGLE).match(line, at)
            if found is None or (found.end() < len(line) and line[found.end()] not in _BLANKS):
                return None
            text = found[1]
            parts.append(_ESCAPE.sub(_unescaped, text) if quote == b'"' else text.replace(b"\\'", b"'"))
            at = found.end()
        words.append(b"".join(parts))


def _unescaped(found: "re.Match[bytes]") -> bytes:
    code = found[1]
    if code[:1] == b"x" and len(code) == 3:
        return bytes([int(code[1:], 16)])
    return _NAMED.get(code, code)


class Scanner:
    """Finds where replies end without building them, in chunks of any size and in constant memory.

    It counts the values still to come: each value subtracts one, an aggregate adds its parts.
    """

    def __init__(self) -> None:
        self._pending, self._skip, self._line, self._kind = 0, 0, b"", 0

    @property
    def waiting(self) -> int:
        """How many values of the incomplete reply are still to come, and bytes of an incomplete line."""
        return self._pending + len(self._line)

    @property
    def at_end(self) -> bool:
        """Whether no reply is incomplete."""
        return not (self._pending or self._line)

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """(end in `data`, type byte) of every reply that is complete now."""
        ends = list[tuple[int, int]]()
        at, size = 0, len(data)
        while at < size:
            if self._skip:
                taken = min(self._skip, size - at)
                at, self._skip = at + taken, self._skip - taken
                if self._skip:
                    break
            else:
                end = data.find(b"\n", at) + 1
                if not end:
                    self._line += data[at:]
                    break
                line, self._line, at = self._line + data[at:end], b"", end
                if not self._head(line):
                    continue
            self._pending -= 1
            if not self._pending:
                ends.append((at, self._kind))
        return ends

    def _head(self, line: bytes) -> bool:
        """Read the first line of a value. Returns whether the value ends with it."""
        kind = line[0]
        if not self._pending:
            self._pending, self._kind = 1, kind
        if kind in b"$=!":
            length = int(line[1:])
            self._skip = length + 2 if length >= 0 else 0
            return not self._skip
        if kind in b"*~>":
            self._pending += max(int(line[1:]), 0)
        elif kind in b"%|":
            self._pending += 2 * max(int(line[1:]), 0) + (kind == 0x7C)  # an attribute is not a value
        return True


def elements(reply: bytes) -> list[bytes]:
    """The parts of an array reply, each as raw bytes."""
    start = reply.index(b"\n") + 1
    body = reply[start:]
    ends = [end for end, _ in Scanner().feed(body)]
    return [body[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


class Status(str):
    """A text that is encoded as `+text`."""

    __slots__ = ()


class Pairs(list[Any]):
    """[key, value] pairs that are encoded as a map. Keys may repeat."""

    __slots__ = ()


class NoArray:
    """A null array."""


NULL: Final = {2: b"$-1\r\n", 3: b"_\r\n"}
NULL_ARRAY: Final = {2: b"*-1\r\n", 3: b"_\r\n"}


def error_line(error: BraidError) -> bytes:
    """An error reply. The text of our own errors has no code, so it is added."""
    text = getattr(error, "text", None) or f"{error.code} {error}"
    if "Function not found" in text:
        text = "LIBRARY the engine lacks the braidstream functions. Load them with: braid init --url URL"
    return b"-" + str(text).encode("utf-8", "replace").replace(b"\r", b" ").replace(b"\n", b" ") + b"\r\n"


def encode(value: Any, resp: int, null: bytes) -> bytes:
    """Encode a result as the engine would send it: bytes, int, None, lists, maps, Status, errors."""
    parts = list[bytes]()
    _encode(value, resp, null, parts.append)
    return b"".join(parts)


def _encode(value: Any, resp: int, null: bytes, out: Any) -> None:
    kind = type(value)
    if kind is bytes:
        out(b"$%d\r\n%b\r\n" % (len(value), value))
    elif kind is list or kind is tuple:
        if len(value) > 1 and all(type(each) is bytes for each in value):
            out(hiredis.pack_command(tuple(value)))
            return
        out(b"*%d\r\n" % len(value))
        for each in value:
            _encode(each, resp, null, out)
    elif kind is int:
        out(b":%d\r\n" % value)
    elif value is None:
        out(null)
    elif kind is dict:
        out(b"%%%d\r\n" % len(value) if resp == 3 else b"*%d\r\n" % (2 * len(value)))
        for key, each in value.items():
            _encode(key, resp, null, out)
            _encode(each, resp, null, out)
    elif kind is Pairs:
        out(b"%%%d\r\n" % len(value))
        for key, each in value:
            _encode(key, resp, null, out)
            _encode(each, resp, null, out)
    elif value is NoArray:
        out(NULL_ARRAY[resp])
    elif kind is Status:
        out(b"+" + value.encode("utf-8", "replace") + b"\r\n")
    else:
        assert isinstance(value, BraidError), f"a plan returned {kind.__name__}"
        out(error_line(value))

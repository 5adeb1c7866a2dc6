"""Glob patterns as the engine matches them, for names that the engine itself cannot see.

    a*b?c*d     begins with a, ends with d, and has b?c in between: the leftmost place is as good as any

Patterns and names come from users, so the time is linear in the name. A part without ? and [] is found by
bytes.find. Any other part is found by one pass over the name: bit n of a number says whether the last n + 1
bytes match the first n + 1 tokens of the part.
"""

from collections.abc import Callable
from typing import Final

from braidstream.errors import ReplyError

_ANY: Final = frozenset(range(256))
_EXACT: Final = [frozenset((byte,)) for byte in range(256)]
_STAR: Final = None
# Longer patterns are refused: the time of a byte grows with the pattern.
LONGEST: Final = 1024

Token = frozenset[int] | None
Part = list[frozenset[int]]
Find = Callable[[bytes, int, int], int]


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Whether a name matches, as KEYS and SCAN MATCH would say. ReplyError if the pattern is too long."""
    if len(pattern) > LONGEST:
        raise ReplyError(f"ERR the pattern has more than {LONGEST} bytes. Use a shorter one.")
    if len(pattern) > 1 and not pattern.strip(b"*"):
        return bool  # in the engine only a single star matches the empty name
    parts: list[Part] = [[]]
    for token in _tokens(pattern):
        if token is _STAR:
            parts.append([])
        else:
            parts[-1].append(token)
    if len(parts) == 1:
        [only] = parts
        return lambda name: len(name) == len(only) and _fits(only, name, 0)
    first, *middle, last = parts
    finders = [_finder(part) for part in middle if part]
    return lambda name: _matches(first, finders, last, name)


def _matches(first: Part, finders: list[Find], last: Part, name: bytes) -> bool:
    at, end = len(first), len(name) - len(last)
    if end < at or not _fits(first, name, 0) or not _fits(last, name, end):
        return False
    for find in finders:
        at = find(name, at, end)
        if at < 0:
            return False
    return True


def _fits(part: Part, name: bytes, at: int) -> bool:
    return all(name[place] in token for place, token in enumerate(part, at))


def _finder(part: Part) -> Find:
    """Returns where the leftmost match in name[at:end] ends, or -1."""
    size = len(part)
    if all(len(token) == 1 for token in part):
        text = bytes(byte for token in part for byte in token)

        def find_text(name: bytes, at: int, end: int) -> int:
            found = name.find(text, at, end)
            return found if found < 0 else found + size

        return find_text
    places = dict[frozenset[int], int]()
    for number, token in enumerate(part):
        places[token] = places.get(token, 0) | 1 << number
    fitting = [0] * 256
    for token, bits in places.items():
        for byte in token:
            fitting[byte] |= bits
    whole = 1 << (size - 1)

    def find(name: bytes, at: int, end: int) -> int:
        state = 0
        for place in range(at, end):
            state = ((state << 1) | 1) & fitting[name[place]]
            if state & whole:
                return place + 1
        return -1

    return find


def _tokens(pattern: bytes) -> list[Token]:
    """The pattern as tokens: a set of bytes for one byte, or a star."""
    tokens, at = list[Token](), 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        if char == b"*":
            tokens.append(_STAR)
        elif char == b"?":
            tokens.append(_ANY)
        elif char == b"[":
            at, members = _set(pattern, at + 1)
            tokens.append(members)
        else:
            if char == b"\\" and at + 1 < len(pattern):
                at += 1
            tokens.append(_EXACT[pattern[at]])
        at += 1
    return tokens


def _set(pattern: bytes, at: int) -> tuple[int, frozenset[int]]:
    """A [set]: where it ends, and its members. An unclosed set ends with the pattern."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members = set[int]()
    while at < len(pattern):
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
            members.add(pattern[at])
        elif pattern[at : at + 1] == b"]":
            break
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            low, high = sorted((_signed(pattern[at]), _signed(pattern[at + 2])))
            members.update(byte & 0xFF for byte in range(low, high + 1))
            at += 2
        else:
            members.add(pattern[at])
        at += 1
    else:
        at = len(pattern) - 1
    return at, _ANY - members if negated else frozenset(members)


def _signed(byte: int) -> int:
    """The engine compares C chars; on x86 those above 127 are negative."""
    return byte - 256 if byte > 127 else byte

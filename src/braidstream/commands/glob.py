"""Glob patterns as the engine matches them, for names that the engine itself cannot see.

No regular expression: patterns come from users, and with many stars one would take for ever. Here a
star that fails gives one more byte to itself and to no star before it, so the time is bounded by
pattern times name.
"""

from collections.abc import Callable
from typing import Final

_ANY: Final = frozenset(range(256))
_STAR: Final = None

Token = frozenset[int] | None


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Whether a name matches, as KEYS and SCAN MATCH would say."""
    tokens = _tokens(pattern)
    if len(pattern) > 1 and not pattern.strip(b"*"):
        return bool  # in the engine only a single star matches the empty name
    return lambda name: _matches(tokens, name)


def _matches(tokens: list[Token], name: bytes) -> bool:
    at = position = 0
    star, resume = -1, 0
    while position < len(name):
        token = tokens[at] if at < len(tokens) else frozenset[int]()
        if token is _STAR:
            star, resume, at = at, position, at + 1
        elif name[position] in token:
            at, position = at + 1, position + 1
        elif star >= 0:
            resume += 1
            at, position = star + 1, resume
        else:
            return False
    return all(token is _STAR for token in tokens[at:])


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
            tokens.append(frozenset((pattern[at],)))
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

"""Glob patterns as the engine matches them, for names that the engine itself cannot see."""

import re


def matcher(pattern: bytes) -> "re.Pattern[bytes]":
    """A regular expression that matches what KEYS and SCAN MATCH would."""
    if len(pattern) > 1 and not pattern.strip(b"*"):
        return re.compile(rb"(?s:.+)\Z")  # in the engine only a single star matches the empty name
    out, at = [b"(?s:"], 0
    while at < len(pattern):
        char = pattern[at : at + 1]
        if char == b"*":
            out.append(b".*")
        elif char == b"?":
            out.append(b".")
        elif char == b"[":
            at, group = _set(pattern, at + 1)
            out.append(group)
        else:
            if char == b"\\" and at + 1 < len(pattern):
                at += 1
            out.append(re.escape(pattern[at : at + 1]))
        at += 1
    return re.compile(b"".join(out) + rb")\Z")


def _signed(byte: int) -> int:
    """The engine compares C chars; on x86 those above 127 are negative."""
    return byte - 256 if byte > 127 else byte


def _set(pattern: bytes, at: int) -> tuple[int, bytes]:
    """A [set]: where it ends, and the same as a regular expression. An unclosed set ends with the pattern."""
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
    chosen = members if not negated else set(range(256)) - members
    if not chosen:
        return at, b"(?!)"
    return at, b"[" + b"".join(b"\\x%02x" % member for member in sorted(chosen)) + b"]"

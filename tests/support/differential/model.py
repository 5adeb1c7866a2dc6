"""What newer engines would answer: a naive model of the commands that the bare one lacks.

Written from the description of the commands, not from our code. It keeps no state: each command is worked
out from what the bare engine says about its one stream, and done to it natively, one small step after the
other, so that everything said later finds the same entries and pending lists on both sides.

    XDELEX, XACKDEL         KEEPREF | DELREF | ACKED, an answer for each ID
    XREADGROUP              MAXCOUNT and MAXSIZE
"""

import re
from typing import Any, Final

from braidstream import ids
from braidstream.commands.arguments import strict_id
from braidstream.errors import ReplyError
from tests.support.differential.deviations import facts
from tests.support.differential.script import Argv, command_of, upper
from tests.support.differential.sides import Fault, Reply, Sides

POLICIES: Final = (b"KEEPREF", b"DELREF", b"ACKED")
LIMITS: Final = (b"MAXCOUNT", b"MAXSIZE")
FEWEST: Final = {b"XDELEX": 5, b"XACKDEL": 6}
NOT_THERE, DELETED, NEEDED = -1, 1, 2


def is_modelled(argv: Argv) -> bool:
    """Whether the bare engine lacks it."""
    command = command_of(argv)
    if command == b"XREADGROUP":
        return any(upper(word) in LIMITS for word in argv)
    return command in (b"XDELEX", b"XACKDEL")


def is_understood(argv: Argv) -> bool:
    """Whether the model knows the form: reads with limits only of one stream, without other options."""
    if command_of(argv) != b"XREADGROUP":
        return True
    words, at = [*argv, b"", b"", b"", b""], 4
    while upper(words[at]) in (b"COUNT", *LIMITS) and re.fullmatch(rb"[1-9][0-9]{0,8}", words[at + 1]):
        at += 2
    return upper(words[1]) == b"GROUP" and upper(words[at]) == b"STREAMS" and argv[at + 2 :] == [b">"]


class Model:
    """Answers in place of the bare engine, and does to it what the command would."""

    def __init__(self, sides: Sides) -> None:
        self._ask = sides.peek
        self._sides = sides

    def answer(self, argv: Argv) -> Reply:
        command = command_of(argv)
        reply: Reply
        if len(argv) < FEWEST.get(command, 0):
            reply = _error(f"wrong number of arguments for '{command.decode().lower()}' command")
        elif command == b"XDELEX":
            reply = self._delete(argv[1], None, argv[2:])
        elif command == b"XACKDEL":
            reply = self._delete(argv[1], argv[2], argv[3:])
        else:
            reply = self._read(argv)
        self._sides.story.append(("model", "single", [argv], reply))
        return reply

    # Deletion

    def _delete(self, name: bytes, acker: bytes | None, words: Argv) -> Reply:
        policy = b"KEEPREF"
        if words and upper(words[0]) in POLICIES:
            policy, words = upper(words[0]), words[1:]
        if not words or upper(words[0]) != b"IDS":
            return _error("IDS option is required")
        if len(words) < 2 or not re.fullmatch(rb"[1-9][0-9]{0,17}", words[1]):
            return _error("Number of IDs must be a positive integer")
        if len(words) - 2 != int(words[1]):
            return _error("The `numids` parameter must match the number of arguments")
        try:
            entries = [ids.text(strict_id(word)) for word in words[2:]]  # tests/contract/test_id_text.py
        except ReplyError as error:
            return _error(error.text.removeprefix("ERR "))
        kind = self._ask("TYPE", name)
        if kind not in (b"stream", b"none"):
            return self._ask("XLEN", name)  # WRONGTYPE, in its words
        if kind == b"none":
            return [NOT_THERE] * len(entries)
        return [self._delete_one(name, acker, policy, entry) for entry in entries]

    def _delete_one(self, name: bytes, acker: bytes | None, policy: bytes, entry: bytes) -> int:
        groups = [facts(info) for info in self._ask("XINFO", "GROUPS", name)]
        if acker is not None:
            if self._ask("XACK", name, acker, entry) != 1:
                return NOT_THERE
        elif not self._ask("XRANGE", name, entry, entry):
            if policy == b"DELREF":
                self._forget(name, groups, entry)
            return NOT_THERE
        if policy == b"ACKED" and any(self._needs(name, group, entry) for group in groups):
            return NEEDED
        self._ask("XDEL", name, entry)
        if policy == b"DELREF":
            self._forget(name, groups, entry)
        return DELETED

    def _needs(self, name: bytes, group: dict[bytes, Any], entry: bytes) -> bool:
        """A group that will be given the entry, or has not acknowledged it."""
        there = bool(self._ask("XRANGE", name, entry, entry))
        ahead = there and _parsed(group[b"last-delivered-id"]) < _parsed(entry)
        return ahead or bool(self._ask("XPENDING", name, group[b"name"], entry, entry, 1))

    def _forget(self, name: bytes, groups: list[dict[bytes, Any]], entry: bytes) -> None:
        for group in groups:
            self._ask("XACK", name, group[b"name"], entry)

    # Reading

    def _read(self, argv: Argv) -> Reply:
        """One stream, without BLOCK: natively, with the COUNT that keeps the reply within its limits."""
        words, limits = _split(argv)
        count, most = limits.get(b"COUNT"), limits.get(b"MAXCOUNT")
        if most is not None and count is not None and most < count:
            return _error("MAXCOUNT must be greater than or equal to COUNT")
        fitting = self._fitting(words, limits)
        at = list(map(upper, words)).index(b"STREAMS")
        return self._ask(*words[:at], *((b"COUNT", fitting) if fitting else ()), *words[at:])

    def _fitting(self, words: Argv, limits: dict[bytes, int]) -> int:
        """How many of the entries that follow may be told: the first always, then while there is room."""
        name, position = words[-2:]
        if command_of(words) == b"XREADGROUP":
            groups = self._ask("XINFO", "GROUPS", name)
            places = [] if isinstance(groups, Fault) else [facts(info) for info in groups]
            after = [each[b"last-delivered-id"] for each in places if each[b"name"] == words[2]]
            position = after[0] if after else b""
        entries = self._ask("XRANGE", name, b"(" + position, "+") if position else []
        told, room = 0, limits.get(b"MAXSIZE")
        for _, fields in [] if isinstance(entries, Fault) else entries:
            size = sum(map(len, fields))
            if told and room is not None and size > room:
                break
            room = None if room is None else room - size
            told += 1
        return min([told, *(limit for word, limit in limits.items() if word != b"MAXSIZE")])


def _split(argv: Argv) -> tuple[Argv, dict[bytes, int]]:
    """A read without its limits, and those."""
    words, limits, at = list(argv), dict[bytes, int](), 1
    while upper(words[at]) != b"STREAMS":
        if upper(words[at]) in (b"COUNT", *LIMITS):
            limits[upper(words[at])] = int(words[at + 1])
            del words[at : at + 2]
        else:
            at += 3 if upper(words[at]) == b"GROUP" else 1
    return words, limits


def _parsed(entry: bytes) -> tuple[int, int]:
    ms, _, seq = entry.partition(b"-")
    return int(ms), int(seq or 0)


def _error(text: str) -> Fault:
    return Fault("ResponseError", "ERR", text)

"""What newer engines would answer: a naive model of the commands that the bare one lacks.

An engine that has a command answers for itself; the model is asked only where its COMMAND table lacks it.

Written from the description of the commands, not from our code. It keeps no state: each command is worked
out from what the bare engine says about its streams, and done to it natively, one small step after the
other, so that everything said later finds the same entries and pending lists on both sides.

    XDELEX, XACKDEL         KEEPREF | DELREF | ACKED, an answer for each ID
    XADD, XTRIM             the same words with a cap; ACKED EXCEPT, which is ours (on every engine)
    XNACK                   a stand-in gets the entries (nobody.py)
    XREAD, XREADGROUP       MAXCOUNT, MAXSIZE and CLAIM (model_reads.py)
"""

import re
from typing import Any, Final

from braidstream.commands.arguments import strict_id
from braidstream.errors import ReplyError
from braidstream.model import ids
from tests.oracle.differential.deviations import SCRATCH, Deviations, facts
from tests.oracle.differential.mapping import Mapping, parsed
from tests.oracle.differential.model_reads import NEWER_OPTIONS, ModelledReads, parse_read
from tests.oracle.differential.nobody import FATAL, GIVEN_BACK_MS, STAND_IN
from tests.oracle.differential.script import CAPS, MESSAGES, POLICIES, Argv, command_of, id_word_at, upper
from tests.oracle.differential.sides import Fault, Reply, Sides

FEWEST: Final = {b"XDELEX": 5, b"XACKDEL": 6, b"XNACK": 7}
NOT_THERE, DELETED, NEEDED = -1, 1, 2


def is_modelled(argv: Argv, vocabulary: frozenset[str]) -> bool:
    """Whether the bare engine lacks it."""
    command, name = command_of(argv), command_of(argv).decode("ascii", "replace")
    if command in (b"XREAD", b"XREADGROUP"):
        newer = {upper(word) for word in argv} & set(NEWER_OPTIONS)
        if b"CLAIM" in newer and "XNACK" not in vocabulary:
            return True  # what the stand-in owns
        return any(f"{name} {word.decode()}" not in vocabulary for word in newer)
    if command in FEWEST:
        return name not in vocabulary
    at = _policy_at(argv)
    return at is not None and (
        f"{name} ACKED" not in vocabulary or upper(b"".join(argv[at + 1 : at + 2])) == b"EXCEPT"
    )


def is_unknown(argv: Argv, vocabulary: frozenset[str]) -> bool:
    """Whether neither the bare engine nor the model has it: idempotent production."""
    command = command_of(argv)
    if "XCFGSET" in vocabulary:
        return False
    return command == b"XCFGSET" or (command == b"XADD" and any(upper(word) in MESSAGES for word in argv[2:]))


def is_understood(argv: Argv) -> bool:
    """Whether the model knows the form: where it says nothing, nothing is said to our side either."""
    if command_of(argv) in (b"XREAD", b"XREADGROUP"):
        return parse_read(argv) is not None
    at = _policy_at(argv)
    if at is None:
        return True
    words, _, _ = _without_policy(argv, at)
    if any(upper(word) in MESSAGES for word in words):
        return False
    value_of_an_option = upper(argv[at - 1]) in (b"MAXLEN", b"MINID", b"LIMIT", b"=", b"~")
    whole = not any(upper(word) == b"EXCEPT" for word in words)
    return whole and not value_of_an_option and _policy_at(words) is None and len(words) > 3


class Model:
    """Answers in place of the bare engine, and does to it what the command would."""

    def __init__(self, sides: Sides, mapping: Mapping, deviations: Deviations, protocol: int) -> None:
        self._ask = sides.peek
        self._sides = sides
        self._reads = ModelledReads(sides, mapping, deviations, protocol)
        self.has_given_back = False

    def may_be_asked(self, argv: Argv) -> bool:
        return command_of(argv) != b"XREADGROUP" or self._reads.may_be_asked(argv)

    def has_stand_in(self, name: bytes, group: bytes) -> bool:
        consumers = self._ask("XINFO", "CONSUMERS", name, group)
        return not isinstance(consumers, Fault) and any(
            facts(each)[b"name"] == STAND_IN for each in consumers
        )

    def answer(self, argv: Argv, ours: Reply) -> Reply:
        """`ours` is heeded only where the clock decides (model_reads.py)."""
        command = command_of(argv)
        reply: Reply
        if len(argv) < FEWEST.get(command, 0):
            reply = _error(f"wrong number of arguments for '{command.decode().lower()}' command")
        elif command == b"XDELEX":
            reply = self._delete(argv[1], None, argv[2:])
        elif command == b"XACKDEL":
            reply = self._delete(argv[1], argv[2], argv[3:])
        elif command == b"XNACK":
            reply = self._give_back(argv)
        elif command in (b"XADD", b"XTRIM"):
            reply = self._cap(argv)
        else:
            reply = self._reads.answer(argv, ours)
        self._sides.story.append(("model", "single", [argv], reply))
        return reply

    # Deletion

    def _delete(self, name: bytes, acker: bytes | None, words: Argv) -> Reply:
        kind = self._ask("TYPE", name)
        if kind not in (b"stream", b"none"):
            return self._ask("XLEN", name)  # WRONGTYPE, in its words
        policy, given = None, None
        while words:
            word = upper(words[0])
            if word in POLICIES and policy is None:
                policy, words = word, words[1:]
            elif word == b"IDS" and len(words) > 1:
                if not re.fullmatch(rb"[1-9][0-9]{0,17}", words[1]):
                    return _error("Number of IDs must be a positive integer")
                if len(words) - 2 < int(words[1]):
                    return _error("The `numids` parameter must match the number of arguments")
                given, words = words[2 : 2 + int(words[1])], words[2 + int(words[1]) :]
            else:
                return _error("syntax error")
        if given is None:
            return _error("IDS option is required")
        if kind == b"none" or (acker is not None and not self._has_group(name, acker)):
            return [NOT_THERE] * len(given)
        entries = _ids(given)
        if isinstance(entries, Fault):
            return entries
        return [self._delete_one(name, acker, policy or b"KEEPREF", entry) for entry in entries]

    def _has_group(self, name: bytes, group: bytes) -> bool:
        return any(each[b"name"] == group for each in self._groups(name))

    def _delete_one(self, name: bytes, acker: bytes | None, policy: bytes, entry: bytes) -> int:
        groups = self._groups(name)
        if acker is not None and self._ask("XACK", name, acker, entry) != 1:
            return NOT_THERE
        there = bool(self._ask("XRANGE", name, entry, entry))
        if not self._drop(name, groups, policy, entry):
            return NEEDED
        return DELETED if there or acker is not None else NOT_THERE

    def _drop(self, name: bytes, groups: list[dict[bytes, Any]], policy: bytes, entry: bytes) -> bool:
        """Delete an entry, unless the policy keeps it."""
        if policy == b"ACKED" and any(self._needs(name, group, entry) for group in groups):
            return False
        self._ask("XDEL", name, entry)
        if policy == b"DELREF":
            self._forget(name, groups, entry)
        return True

    def _needs(self, name: bytes, group: dict[bytes, Any], entry: bytes) -> bool:
        """A group that stands before the entry, or has not acknowledged it."""
        ahead = parsed(group[b"last-delivered-id"]) < parsed(entry)
        return ahead or bool(self._ask("XPENDING", name, group[b"name"], entry, entry, 1))

    def _forget(self, name: bytes, groups: list[dict[bytes, Any]], entry: bytes) -> None:
        for group in groups:
            self._ask("XACK", name, group[b"name"], entry)

    def _groups(self, name: bytes) -> list[dict[bytes, Any]]:
        return [facts(info) for info in self._ask("XINFO", "GROUPS", name)]

    # Caps

    def _cap(self, argv: Argv) -> Reply:
        """XADD or XTRIM: natively without the cap, then the oldest go one by one, if the policy lets them."""
        at = _policy_at(argv)
        assert at is not None
        words, policy, left_out = _without_policy(argv, at)
        if policy == b"KEEPREF":
            return self._ask(*words)
        self._ask("COPY", argv[1], SCRATCH, "REPLACE")
        tried = self._ask(words[0], SCRATCH, *words[2:])
        self._ask("DEL", SCRATCH)
        if isinstance(tried, Fault) or tried is None or (tried == 0 and not self._sides.is_stream(argv[1])):
            return self._ask(*words)  # it does nothing
        last = id_word_at(words) if command_of(words) == b"XADD" else len(words)
        options, reply = words[2:last], None
        if command_of(words) == b"XADD":
            reply = self._ask("XADD", argv[1], *words[last:])
        groups = [group for group in self._groups(argv[1]) if group[b"name"] not in left_out]
        is_capped = any(upper(word) in CAPS for word in options)
        gone = self._cut(argv[1], options, policy, groups) if is_capped else 0
        return gone if reply is None else reply

    def _cut(self, name: bytes, options: Argv, policy: bytes, groups: list[dict[bytes, Any]]) -> int:
        numbers = [word for word in options if word not in (b"=", b"~")]
        caps = {upper(word): value for word, value in zip(numbers, numbers[1:], strict=False)}
        entries = [entry for entry, _ in self._ask("XRANGE", name, "-", "+")]
        most = len(entries)
        if b"MAXLEN" in caps:
            most -= int(caps[b"MAXLEN"])
        else:
            entries = [entry for entry in entries if parsed(entry) < parsed(caps[b"MINID"])]
        if int(caps.get(b"LIMIT", b"0")):
            most = min(most, int(caps[b"LIMIT"]))
        gone = 0
        for entry in entries:
            if gone < most:
                gone += self._drop(name, groups, policy, entry)
        return gone

    # Giving back

    def _give_back(self, argv: Argv) -> Reply:
        """A pending entry that was deleted counts, but no older command can take it from its owner."""
        name, group, mode = argv[1], argv[2], upper(argv[3])
        there = self._ask("XPENDING", name, group)
        if isinstance(there, Fault):
            return there
        if mode not in (b"SILENT", b"FAIL", b"FATAL"):
            return _error("mode must be SILENT, FAIL, or FATAL")
        retry, force, given, words = None, False, None, argv[4:]
        while words:
            word = upper(words[0])
            if word == b"IDS" and len(words) > 1:
                if not re.fullmatch(rb"[1-9][0-9]{0,8}", words[1]):
                    return _error("numids must be a positive integer")
                number = int(words[1])
                given, words = words[2 : 2 + number], words[2 + number :]
                if len(given) < number:
                    return _error("number of IDs doesn't match numids")
            elif word == b"FORCE":
                force, words = True, words[1:]
            elif word == b"RETRYCOUNT" and len(words) > 1:
                if not re.fullmatch(rb"0|-?[1-9][0-9]{0,17}", words[1]):
                    return _error("value is not an integer or out of range")
                if words[1].startswith(b"-"):
                    return _error("Invalid RETRYCOUNT value, must be >= 0")
                retry, words = int(words[1]), words[2:]
            else:
                return _error(f"Unrecognized XNACK option '{_shown(words[0])}'")
        if given is None:
            return _error("syntax error, expected IDS keyword")
        entries = _ids(given)
        if isinstance(entries, Fault):
            return entries
        done = 0
        for at, entry in enumerate(entries):
            rows, body = (
                self._ask("XPENDING", name, group, entry, entry, 1),
                self._ask("XRANGE", name, entry, entry),
            )
            if not rows and not (force and body):
                continue
            done += 1
            if body:
                count = rows[0][3] if rows else 0
                count = {b"SILENT": max(count - 1, 0), b"FAIL": count, b"FATAL": FATAL}[mode]
                claim = ("XCLAIM", name, group, STAND_IN, 0, entry, "IDLE", GIVEN_BACK_MS - at)
                options = ("RETRYCOUNT", count if retry is None else retry, *(("FORCE",) if force else ()))
                self._ask(*claim, *options, "JUSTID")
        self.has_given_back = True
        return done


def _policy_at(argv: Argv) -> int | None:
    """Where the first policy of an XADD or XTRIM stands."""
    command = command_of(argv)
    if command not in (b"XADD", b"XTRIM"):
        return None
    last = id_word_at(argv) if command == b"XADD" else len(argv)
    return next((at for at, word in enumerate(argv[:last]) if at > 1 and upper(word) in POLICIES), None)


def _without_policy(argv: Argv, at: int) -> tuple[Argv, bytes, Argv]:
    """The command without its policy, the policy, and the groups that it leaves out."""
    end, left_out = at + 1, list[bytes]()
    words = [upper(word) for word in argv[at : at + 3]]
    if words[:2] == [b"ACKED", b"EXCEPT"] and words[2:] and words[2].isdigit():
        whole = at + 3 + int(words[2])
        if at + 3 < whole <= len(argv):
            left_out, end = argv[at + 3 : whole], whole
    return [*argv[:at], *argv[end:]], upper(argv[at]), left_out


def _ids(words: Argv) -> Argv | Fault:
    try:
        return [ids.text(strict_id(word)) for word in words]  # tests/client/test_id_text.py
    except ReplyError as error:
        return _error(error.text.removeprefix("ERR "))


def _shown(word: bytes) -> str:
    """As the engines print a word."""
    return word.split(b"\0")[0].replace(b"\r", b" ").replace(b"\n", b" ").decode("utf-8", "replace")


def _error(text: str) -> Fault:
    return Fault("ResponseError", "ERR", text)

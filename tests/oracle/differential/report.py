"""What was compared, and how replies and commands are shown to people."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.differential.script import Argv
from tests.oracle.differential.sides import Fault, Reply, Said


class Mismatch(AssertionError):
    """The two sides differ."""

    def __init__(self, argv: Argv, bare: Reply, ours: Reply, why: str = "replies differ") -> None:
        super().__init__(f"{why}\n  command {line(argv)}\n  bare    {shown(bare)}\n  ours    {shown(ours)}")


@dataclass(slots=True)
class Tally:
    """What was compared."""

    commands: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    deviations: Counter[str] = field(default_factory=Counter)
    entries: int = 0
    sequences: int = 0

    def count(self, command: bytes, *, error: bool) -> None:
        name = command.decode("ascii", "replace")
        self.commands[name] += 1
        self.errors[name] += error

    @property
    def total(self) -> int:
        return self.commands.total()

    @property
    def error_share(self) -> float:
        return self.errors.total() / max(self.total, 1)

    def summary(self) -> str:
        commands = (
            f"{name} {n:,} ({100 * self.errors[name] / n:.0f} %)" for name, n in self.commands.most_common()
        )
        deviations = (f"{name} {n:,}" for name, n in self.deviations.most_common())
        return (
            f"{self.total:,} commands compared in {self.sequences:,} sequences, "
            f"{100 * self.error_share:.1f} % of the replies errors, {self.entries:,} entries in ranges\n"
            f"  by command (errors): {', '.join(commands)}\n"
            f"  deviations checked: {', '.join(deviations)}"
        )


def same(one: Any, other: Any) -> bool:
    """Equal, in type and order too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def retold(said: Said) -> str:
    """What was said, with the replies below."""
    who, mode, argvs, reply = said
    if mode == "single":
        return f"{who}> {line(argvs[0])}\n        {shown(reply)}"
    lines = [f"{who}> {mode}:"]
    for at, argv in enumerate(argvs):
        lines.append(f"        {line(argv)}")
        if isinstance(reply, list):
            lines.append(f"            {shown(reply[at])}")
    return "\n".join(lines if isinstance(reply, list) else [*lines, f"        {shown(reply)}"])


def shown(reply: Reply) -> str:
    if isinstance(reply, Fault):
        return f"(error) {reply.text} [{reply.kind} {reply.code}]"
    return repr(reply) if len(repr(reply)) < 2000 else repr(reply)[:2000] + "..."


def line(argv: Argv) -> str:
    """As one may type it in redis-cli."""
    return " ".join(map(_quoted, argv))


def _quoted(word: bytes) -> str:
    if re.fullmatch(rb"[A-Za-z0-9:.*=~$<>+(-]+", word):
        return word.decode()
    escape = {0x22: '\\"', 0x5C: "\\\\"}
    return '"' + "".join(escape.get(b, chr(b) if 32 <= b < 127 else f"\\x{b:02x}") for b in word) + '"'

"""Sessions are typed into redis-cli, and the output is compared."""

import re
import shlex
from typing import Any

import braidstream
from braidstream.model.strand import Strand
from tests.support.regions import apply

PROMPT = "localhost:6379> "
ID = re.compile(r"\b(\d{13})-0\b")
FAR = [2, 700]
IDLE = "(integer) any"


class Cli:
    """redis-cli on one region: it knows which printed ID stands for which of ours."""

    def __init__(self, client: braidstream.Redis, *, spread: bool) -> None:
        client.response_callbacks.clear()  # replies as the wire has them
        self.client, self.spread = client, spread
        self.mapped = dict[str, str]()
        self.ends = dict[Strand, tuple[int, int]]()
        self.added = 0

    def play(self, session: str, *, facts: int | None = None) -> None:
        """Type every command of a session and compare what is shown. `facts`: how many of XINFO's the session
        shows; its engine was older and had fewer."""
        for typed in session.split(PROMPT)[1:]:
            line, _, printed = typed.partition("\n")
            printed = "\n".join(row.rstrip() for row in printed.splitlines() if row.strip() and row[0] != "#")
            words = shlex.split(self._ours(line))
            if words[0] == "XADD":
                self._add(words, printed.strip('"'))
                continue
            shown = show(_timeless(words, self.client.execute_command(*words), facts))
            assert shown == _printed(words, self._ours(printed)), line

    def _ours(self, text: str) -> str:
        return ID.sub(lambda found: self.mapped.get(found[0], found[0]), text)

    def _add(self, words: list[str], printed: str) -> None:
        """`*` as typed; or, of a stream that many write, in the printed millisecond by one of its writers."""
        self.added += 1
        ms, far = int(printed.split("-")[0]), self.added % 3
        if not self.spread:
            added = self.client.execute_command(*words)
        elif far == 0:
            added = self.client.execute_command("XADD", words[1], ms, *words[3:])
        else:
            strand = Strand(words[1].encode(), "s", FAR[far - 1])
            entry = (ms, 0), [word.encode() for word in words[3:]]
            assert self.client.run_plan(apply(strand, [entry], self.ends.get(strand, (0, 0)))) == 1
            self.ends[strand], added = (ms, 0), f"{ms}-{strand.writer}"
        self.mapped[printed] = added

    def wait(self, consumer: str, *entries: str, idle_ms: int = 10_000) -> None:
        """Time passes. It is owned by the test: the consumer's entries become that idle."""
        ours = [self.mapped[entry] for entry in entries]
        words = ("XCLAIM", "mystream", "mygroup", consumer, 0, *ours, "IDLE", idle_ms, "JUSTID")
        assert self.client.execute_command(*words) == ours


def show(reply: Any, indent: str = "") -> str:
    """A reply as redis-cli prints it."""
    if reply is None:
        return "(nil)"
    if isinstance(reply, int):
        return f"(integer) {reply}"
    if isinstance(reply, str):
        return reply if reply in ("OK", IDLE) else f'"{reply}"'
    if not reply:
        return "(empty array)"
    width = len(str(len(reply)))
    rows = [
        f"{number:{width}}) {show(each, indent + ' ' * (width + 2))}"
        for number, each in enumerate(reply, start=1)
    ]
    return ("\n" + indent).join(rows)


def _timeless(words: list[str], reply: Any, facts: int | None) -> Any:
    """A reply with every idle time taken for the same."""
    if words[0] == "XPENDING" and len(words) > 3:
        return [[entry, consumer, IDLE, deliveries] for entry, consumer, _, deliveries in reply]
    if words[:2] == ["XINFO", "CONSUMERS"]:
        return [[*row[:5], IDLE] for row in reply]
    if words[:2] == ["XINFO", "GROUPS"]:
        return [row[:facts] for row in reply]
    return reply


def _printed(words: list[str], printed: str) -> str:
    if words[0] == "XPENDING" or words[:2] == ["XINFO", "CONSUMERS"]:
        return re.sub(r"\(integer\) \d{4,}", IDLE, printed)
    return printed

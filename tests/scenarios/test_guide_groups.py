"""The consumer-group part of spec/redis-streams-guide.md, typed and answered as printed there.

The sessions below are the guide's own text. What the clock decides is mapped: an ID stands for the one
we got in its place, an idle time for any. Where the guide leaves commands out ("here we read messages
by worker-1 and worker-2") they are added, with what they must answer. Each session is played on one
strand (all by `*`), and on three, where every third entry comes from region 2 or from region 700.
"""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

import braidstream
from braidstream.strand import Strand
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

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
        """Type every command of a session and compare what is shown. `facts`: how many of XINFO's the guide
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


@pytest.fixture(params=["one strand", "three strands"])
def cli(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Cli]:
    become(engine)
    with client_of(engine, decode_responses=True, protocol=2) as client:
        yield Cli(client, spread=request.param == "three strands")


BEFORE = """
localhost:6379> FLUSHALL
OK
localhost:6379> XADD mystream * id 10
"1677778380263-0"
localhost:6379> XADD mystream * id 20
"1677778382038-0"
localhost:6379> XADD mystream * id 30
"1677778384391-0"


localhost:6379> XGROUP CREATE mystream mygroup $ MKSTREAM
OK

localhost:6379> XADD mystream * id 10
"1690275391705-0"
localhost:6379> XADD mystream * id 20
"1690275395539-0"
localhost:6379> XADD mystream * id 30
"1690275399380-0"
localhost:6379> XADD mystream * id 40
"1690275401378-0"
localhost:6379> XADD mystream * id 50
"1690275403409-0"
localhost:6379> XADD mystream * id 60
"1690275405944-0"
localhost:6379> XADD mystream * id 70
"1690275410409-0"
localhost:6379> XADD mystream * id 80
"1690275412737-0"
"""

FIRST_READS = """
# Explicit ID is used to fetch messages that are in PEL, worker-1 didn't read any at the moment
localhost:6379> XREADGROUP GROUP mygroup worker-1 COUNT 1 STREAMS mystream 0
1) 1) "mystream"
   2) (empty array)

# Special ID '>' is used to fetch NEW messages from stream, COUNT 1 means read only 1 message
localhost:6379> XREADGROUP GROUP mygroup worker-1 COUNT 1 STREAMS mystream >
1) 1) "mystream"
   2) 1) 1) "1690275391705-0"
         2) 1) "id"
            2) "10"

localhost:6379> XREADGROUP GROUP mygroup worker-2 COUNT 1 STREAMS mystream >
1) 1) "mystream"
   2) 1) 1) "1690275395539-0"
         2) 1) "id"
            2) "20"

localhost:6379> XPENDING mystream mygroup
1) (integer) 2
2) "1690275391705-0"
3) "1690275395539-0"
4) 1) 1) "worker-1"
      2) "1"
   2) 1) "worker-2"
      2) "1"

# Consumer worker-1 confirms message 1690275391705-0
localhost:6379> XACK mystream mygroup "1690275391705-0"
(integer) 1

localhost:6379> XACK mystream mygroup "1690275391705-0"
(integer) 0

localhost:6379> XPENDING mystream mygroup
1) (integer) 1
2) "1690275395539-0"
3) "1690275395539-0"
4) 1) 1) "worker-2"
      2) "1"
"""

# Not in the guide: "here we read messages by worker-1 and worker-2".
MORE_READS = """
localhost:6379> XREADGROUP GROUP mygroup worker-2 COUNT 2 STREAMS mystream >
1) 1) "mystream"
   2) 1) 1) "1690275399380-0"
         2) 1) "id"
            2) "30"
      2) 1) "1690275401378-0"
         2) 1) "id"
            2) "40"
localhost:6379> XREADGROUP GROUP mygroup worker-1 COUNT 2 STREAMS mystream >
1) 1) "mystream"
   2) 1) 1) "1690275403409-0"
         2) 1) "id"
            2) "50"
      2) 1) "1690275405944-0"
         2) 1) "id"
            2) "60"
"""

EXTENDED = """
localhost:6379> XPENDING mystream mygroup - + 10
1) 1) "1690275395539-0"
   2) "worker-2"
   3) (integer) 6011030
   4) (integer) 1
2) 1) "1690275399380-0"
   2) "worker-2"
   3) (integer) 242423
   4) (integer) 1
3) 1) "1690275401378-0"
   2) "worker-2"
   3) (integer) 240579
   4) (integer) 1
4) 1) "1690275403409-0"
   2) "worker-1"
   3) (integer) 231842
   4) (integer) 1
5) 1) "1690275405944-0"
   2) "worker-1"
   3) (integer) 230851
   4) (integer) 1

localhost:6379> XPENDING mystream mygroup - + 10 worker-1
1) 1) "1690275403409-0"
   2) "worker-1"
   3) (integer) 1116605
   4) (integer) 1
2) 1) "1690275405944-0"
   2) "worker-1"
   3) (integer) 1115614
   4) (integer) 1

localhost:6379> XPENDING mystream mygroup IDLE 9000 - + 10 worker-1
1) 1) "1690275403409-0"
   2) "worker-1"
   3) (integer) 1116605
   4) (integer) 1
2) 1) "1690275405944-0"
   2) "worker-1"
   3) (integer) 1115614
   4) (integer) 1
"""

# Again not in the guide: the reads after which worker-1 holds what it shows next.
LAST_READS = """
localhost:6379> XREADGROUP GROUP mygroup worker-1 STREAMS mystream >
1) 1) "mystream"
   2) 1) 1) "1690275410409-0"
         2) 1) "id"
            2) "70"
      2) 1) "1690275412737-0"
         2) 1) "id"
            2) "80"
"""

OWN_AGAIN = """
localhost:6379> XREADGROUP GROUP mygroup worker-1 STREAMS mystream "0-0"
1) 1) "mystream"
   2) 1) 1) "1690275403409-0"
         2) 1) "id"
            2) "50"
      2) 1) "1690275405944-0"
         2) 1) "id"
            2) "60"
      3) 1) "1690275410409-0"
         2) 1) "id"
            2) "70"
      4) 1) "1690275412737-0"
         2) 1) "id"
            2) "80"
"""

BEFORE_CLAIM = """
localhost:6379> XINFO GROUPS mystream
1) 1) "name"
   2) "mygroup"
   3) "consumers"
   4) (integer) 2
   5) "pending"
   6) (integer) 7
   7) "last-delivered-id"
   8) "1690275412737-0"
"""

CLAIM = """
localhost:6379> XCLAIM mystream mygroup worker-3 1000 "1690275403409-0" "1690275405944-0"
1) 1) "1690275403409-0"
   2) 1) "id"
      2) "50"
2) 1) "1690275405944-0"
   2) 1) "id"
      2) "60"
"""

AFTER_CLAIM = """
localhost:6379> XINFO GROUPS mystream
1) 1) "name"
   2) "mygroup"
   3) "consumers"
   4) (integer) 3
   5) "pending"
   6) (integer) 7
   7) "last-delivered-id"
   8) "1690275412737-0"
"""


def test_from_the_first_append_to_the_pending_list(cli: Cli) -> None:
    cli.play(BEFORE)
    cli.play(FIRST_READS)


def test_the_extended_form_of_xpending(cli: Cli) -> None:
    cli.play(BEFORE)
    cli.play(FIRST_READS)
    cli.play(MORE_READS)
    cli.wait("worker-1", "1690275403409-0", "1690275405944-0")
    cli.play(EXTENDED)


def test_own_entries_again_and_a_claim(cli: Cli) -> None:
    cli.play(BEFORE)
    cli.play(FIRST_READS)
    cli.play(MORE_READS)
    cli.play(LAST_READS)
    cli.play(OWN_AGAIN)
    cli.play(BEFORE_CLAIM, facts=8)
    cli.wait("worker-1", "1690275403409-0", "1690275405944-0", idle_ms=1000)
    cli.play(CLAIM)
    cli.play(AFTER_CLAIM, facts=8)


def test_a_claim_leaves_alone_what_is_not_idle_long_enough(cli: Cli) -> None:
    cli.play(BEFORE)
    cli.client.execute_command("XREADGROUP", "GROUP", "mygroup", "worker-1", "STREAMS", "mystream", ">")
    cli.play('localhost:6379> XCLAIM mystream mygroup worker-3 3600000 "1690275403409-0"\n(empty array)')


def test_a_read_of_own_entries_counts_as_a_delivery_and_a_claim_too(cli: Cli) -> None:
    """ "The number of deliveries is incremented by one": by an explicit ID, and by XCLAIM."""
    cli.play(BEFORE)
    cli.play(FIRST_READS)
    entry = cli.mapped["1690275395539-0"]

    def deliveries() -> list[Any]:
        rows = cli.client.execute_command("XPENDING", "mystream", "mygroup", "-", "+", 10)
        return [[row[0], row[1], row[3]] for row in rows]

    assert deliveries() == [[entry, "worker-2", 1]]
    cli.client.execute_command("XREADGROUP", "GROUP", "mygroup", "worker-2", "STREAMS", "mystream", "0")
    assert deliveries() == [[entry, "worker-2", 2]]
    cli.client.execute_command("XCLAIM", "mystream", "mygroup", "worker-3", 0, entry)
    assert deliveries() == [[entry, "worker-3", 3]]


# The last examples are from another day: six entries, three workers.

SIX = """
localhost:6379> FLUSHALL
OK
localhost:6379> XADD mystream * id 10
"1677778380263-0"
localhost:6379> XADD mystream * id 20
"1677778382038-0"
localhost:6379> XADD mystream * id 30
"1677778384391-0"
localhost:6379> XADD mystream * id 40
"1677778386000-0"
localhost:6379> XADD mystream * id 50
"1677778388000-0"
localhost:6379> XADD mystream * id 60
"1677781719647-0"
localhost:6379> XGROUP CREATE mystream mygroup 0
OK
"""

XINFO_OF_GROUPS = """
localhost:6379> XINFO GROUPS mystream
1)  1) "name"
    2) "mygroup"
    3) "consumers"
    4) (integer) 3
    5) "pending"
    6) (integer) 6
    7) "last-delivered-id"
    8) "1677781719647-0"
    9) "entries-read"
   10) (integer) 6
   11) "lag"
   12) (integer) 0

localhost:6379> XINFO CONSUMERS mystream mygroup
1) 1) "name"
   2) "worker-1"
   3) "pending"
   4) (integer) 1
   5) "idle"
   6) (integer) 713882
2) 1) "name"
   2) "worker-2"
   3) "pending"
   4) (integer) 4
   5) "idle"
   6) (integer) 432374
3) 1) "name"
   2) "worker-3"
   3) "pending"
   4) (integer) 1
   5) "idle"
   6) (integer) 436696
"""

XINFO_OF_THE_STREAM = """
localhost:6379> XINFO STREAM mystream
 1) "length"
 2) (integer) 6
 3) "radix-tree-keys"
 4) (integer) KEYS
 5) "radix-tree-nodes"
 6) (integer) NODES
 7) "last-generated-id"
 8) "1677781719647-0"
 9) "max-deleted-entry-id"
10) "0-0"
11) "entries-added"
12) (integer) 6
13) "recorded-first-entry-id"
14) "1677778380263-0"
15) "groups"
16) (integer) 1
17) "first-entry"
18) 1) "1677778380263-0"
    2) 1) "id"
       2) "10"
19) "last-entry"
20) 1) "1677781719647-0"
    2) 1) "id"
       2) "60"
"""


def test_xinfo_of_groups_consumers_and_the_stream(cli: Cli) -> None:
    cli.play(SIX)
    for worker, count in [("worker-1", 1), ("worker-2", 4), ("worker-3", 1)]:
        words = ("GROUP", "mygroup", worker, "COUNT", count, "STREAMS", "mystream", ">")
        [[_, entries]] = cli.client.execute_command("XREADGROUP", *words)
        assert len(entries) == count
    cli.play(XINFO_OF_GROUPS)
    trees = 3 if cli.spread else 1  # as many trees as strands, under one root; the guide prints 1 and 2
    cli.play(XINFO_OF_THE_STREAM.replace("KEYS", str(trees)).replace("NODES", str(trees + 1)))


def test_every_message_has_one_owner_and_workers_share_the_stream(cli: Cli) -> None:
    """The guide's diagram: messages 1 to 7 served to three workers in turn."""
    cli.play(SIX)
    cli.play('localhost:6379> XADD mystream * id 70\n"1677781719700-0"')
    served = dict[str, list[str]]()
    for turn in range(8):
        worker = ["worker-2", "worker-3", "C3"][turn % 3]
        words = ("GROUP", "mygroup", worker, "COUNT", 1, "STREAMS", "mystream", ">")
        for _, entries in cli.client.execute_command("XREADGROUP", *words) or []:
            served.setdefault(worker, []).extend(fields[1] for _, fields in entries)
    assert served == {"worker-2": ["10", "40", "70"], "worker-3": ["20", "50"], "C3": ["30", "60"]}

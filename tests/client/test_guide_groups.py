"""Requirements GR-1 to GR-8 (docs/design/requirements.md): sessions that are typed, with the expected output.

The sessions were recorded on a plain Redis. What the clock decides is mapped: an ID stands for the one
we got in its place, an idle time for any. Where a session leaves commands out ("here we read messages
by worker-1 and worker-2") they are added, with what they must answer. Each session is played on one
strand (all by `*`), and on three, where every third entry comes from region 2 or from region 700. There
our own have chosen IDs: else only the order of each region is promised (decision 0032).
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.redis_cli import Cli
from tests.support.regions import become, client_of
from tests.support.servers import Engine


@pytest.fixture(params=["one strand", "three strands"])
def cli(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Cli]:
    spread = request.param == "three strands"
    become(engine, id_mode="semi-strict" if spread else "strict")
    with client_of(engine, decode_responses=True, protocol=2) as client:
        yield Cli(client, spread=spread)


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

# Not in the session: "here we read messages by worker-1 and worker-2".
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

# Again not in the session: the reads after which worker-1 holds what it shows next.
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


@pytest.mark.every_engine
def test_xinfo_of_groups_consumers_and_the_stream(cli: Cli, engine: Engine) -> None:
    cli.play(SIX)
    for worker, count in [("worker-1", 1), ("worker-2", 4), ("worker-3", 1)]:
        words = ("GROUP", "mygroup", worker, "COUNT", count, "STREAMS", "mystream", ">")
        [[_, entries]] = cli.client.execute_command("XREADGROUP", *words)
        assert len(entries) == count
    cli.play(XINFO_OF_GROUPS)
    trees = 3 if cli.spread else 1  # as many trees as strands, under one root; the session has 1 and 2
    if "XCFGSET" in engine.vocabulary:
        return  # newer engines report more facts, and count nodes in another way
    cli.play(XINFO_OF_THE_STREAM.replace("KEYS", str(trees)).replace("NODES", str(trees + 1)))


def test_every_message_has_one_owner_and_workers_share_the_stream(cli: Cli) -> None:
    """GR-1: messages 1 to 7 are served to three workers in turn."""
    cli.play(SIX)
    cli.play('localhost:6379> XADD mystream * id 70\n"1677781719700-0"')
    served = dict[str, list[str]]()
    for turn in range(8):
        worker = ["worker-2", "worker-3", "C3"][turn % 3]
        words = ("GROUP", "mygroup", worker, "COUNT", 1, "STREAMS", "mystream", ">")
        for _, entries in cli.client.execute_command("XREADGROUP", *words) or []:
            served.setdefault(worker, []).extend(fields[1] for _, fields in entries)
    assert served == {"worker-2": ["10", "40", "70"], "worker-3": ["20", "50"], "C3": ["30", "60"]}

"""A group never skips: what arrives late, and a strand that appears after the group, are delivered once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import braidstream
from braidstream.model.ids import ZERO, Id
from braidstream.model.strand import Strand
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

HOME = 5


@pytest.fixture
def home(engine: Engine) -> Iterator[braidstream.Redis]:
    """A client of region 5; regions 2 and 700 lie to both sides of it in the order of writers."""
    become(engine, region=HOME, name="home")
    with client_of(engine, decode_responses=True) as client:
        yield client


class World:
    """Region 5 and what links bring it. Actions are lines: `5 adds 110`, `2 brings 5 120`, `ann reads 2`.

    away: a client of its own for the consumer eve, with its own memory.
    """

    def __init__(self, client: braidstream.Redis, away: braidstream.Redis | None = None) -> None:
        self.client, self.away, self.ends = client, away, dict[Strand, Id]()

    def act(self, line: str) -> str:
        who, verb, *words = line.split()
        if verb == "adds":
            for ms in words:
                self.client.xadd("x", {"by": who}, id=ms)
        elif verb == "brings":
            self.bring(Strand(b"x", "s", int(who)), [int(ms) for ms in words])
        elif verb == "acks":
            self.client.xack("x", "g", *words)
        elif verb == "deletes":
            self.client.xdel("x", *words)
        elif verb == "rereads":
            return self._read(who, "0", None)
        else:
            assert verb == "reads", line
            return self._read(who, ">", int(words[0]) if words else None)
        return ""

    def bring(self, strand: Strand, mss: list[int]) -> None:
        batch = [((ms, 0), [b"by", b"%d" % strand.writer]) for ms in mss]
        assert self.client.run_plan(apply(strand, batch, self.ends.get(strand, ZERO))) == len(batch)
        self.ends[strand] = batch[-1][0]

    def _read(self, who: str, position: str, count: int | None) -> str:
        client = self.away if who == "eve" and self.away is not None else self.client
        found = client.xreadgroup("g", who, {"x": position}, count=count)
        return " ".join(entry for _, entries in found for entry, _ in entries)


def play(client: braidstream.Redis, table: str, away: braidstream.Redis | None = None) -> None:
    """Each row is an action, then what its consumer gets and what it leaves: the group's lag and pending."""
    world = World(client, away)
    for row in filter(None, map(str.strip, table.strip().splitlines()[1:])):
        action, wanted, lag, pending = (cell.strip() for cell in row.split("|"))
        seen = world.act(action)
        [group] = client.xinfo_groups("x")
        assert f"{seen} | {group['lag']} | {group['pending']}" == f"{wanted} | {lag} | {pending}", action


def test_what_arrives_late_with_a_smaller_id_is_delivered_once(home: braidstream.Redis) -> None:
    home.xgroup_create("x", "g", id="0", mkstream=True)
    play(home, """
        action             | gets                | lag | pending
        5 adds 110 120     |                     | 2   | 0
        ann reads 1        | 110-5               | 1   | 1
        2 brings 100       |                     | 2   | 1
        ann reads 1        | 100-2               | 1   | 2
        ann reads 1        | 120-5               | 0   | 3
        700 brings 90 115  |                     | 2   | 3
        2 brings 105       |                     | 3   | 3
        bob reads 2        | 90-700 105-2        | 1   | 5
        bob reads          | 115-700             | 0   | 6
        bob reads          |                     | 0   | 6
        ann rereads        | 100-2 110-5 120-5   | 0   | 6
        bob acks 105-2     |                     | 0   | 5
        2 brings 106       |                     | 1   | 5
        bob rereads        | 90-700 115-700      | 1   | 5
        ann reads 1        | 106-2               | 0   | 6
        ann reads 1        |                     | 0   | 6
    """)  # fmt: skip


def test_new_entries_come_in_id_order_over_all_strands_and_at_most_count(home: braidstream.Redis) -> None:
    home.xgroup_create("x", "g", id="0", mkstream=True)
    play(home, """
        action                | gets                 | lag | pending
        700 brings 1 4 7      |                      | 3   | 0
        2 brings 2 5 8        |                      | 6   | 0
        5 adds 3 6 9          |                      | 9   | 0
        ann reads 2           | 1-700 2-2            | 7   | 2
        bob reads 1           | 3-5                  | 6   | 3
        ann deletes 4-700 8-2 |                      | 4   | 3
        ann reads 3           | 5-2 6-5 7-700        | 1   | 6
        2 brings 9            |                      | 2   | 6
        bob reads 100         | 9-2 9-5              | 0   | 8
    """)  # fmt: skip


def test_one_entry_at_a_time_comes_in_id_order_whatever_is_read_deleted_or_late(engine: Engine) -> None:
    """If clients choose IDs: else only the order of each region is kept."""
    become(engine, region=HOME, name="home", id_mode="semi-strict")
    with (
        client_of(engine, decode_responses=True) as home,
        client_of(engine, decode_responses=True) as away,
    ):
        home.xgroup_create("x", "g", id="0", mkstream=True)
        play(home, """
            action                | gets                 | lag | pending
            700 brings 1 4 7      |                      | 3   | 0
            2 brings 2 5 8 12     |                      | 7   | 0
            5 adds 3 6 9 11       |                      | 11  | 0
            ann reads 1           | 1-700                | 10  | 1
            ann reads 1           | 2-2                  | 9   | 2
            ann deletes 3-5       |                      | 8   | 2
            ann reads 1           | 4-700                | 7   | 3
            eve reads 2           | 5-2 6-5              | 5   | 5
            ann reads 1           | 7-700                | 4   | 6
            eve reads 1           | 8-2                  | 3   | 7
            ann reads 1           | 9-5                  | 2   | 8
            700 brings 10         |                      | 3   | 8
            ann reads 1           | 10-700               | 2   | 9
            eve reads 1           | 11-5                 | 1   | 10
            ann reads 1           | 12-2                 | 0   | 11
            ann reads 1           |                      | 0   | 11
        """, away)  # fmt: skip


def test_a_group_made_at_dollar_reads_late_entries_of_strands_it_knows_and_all_of_later_ones(
    home: braidstream.Redis,
) -> None:
    world = World(home)
    world.act("5 adds 200")
    world.act("2 brings 100")
    home.xgroup_create("x", "g", id="$")
    world.act("2 brings 150")
    world.act("700 brings 1")
    assert world.act("ann reads") == "1-700 150-2"


@pytest.mark.parametrize(("start", "counted"), [("0", [None, 1, 2, 3]), ("$", [None, None, None, 6])])
def test_what_a_group_has_read_is_counted_before_it_has_read_every_strand(
    home: braidstream.Redis, start: str, counted: list[int | None]
) -> None:
    """The counts are those of a bare engine that has all entries in one stream."""
    world = World(home)
    for line in ("5 adds 110 120", "2 brings 100"):
        world.act(line)
    home.xgroup_create("x", "g", id=start)
    for line in ("5 adds 130 131 132",) if start == "$" else ():
        world.act(line)
    seen = []
    for _ in counted:
        seen.append(home.xinfo_groups("x")[0]["entries-read"])
        assert home.xinfo_stream("x", full=True)["groups"][0]["entries-read"] == seen[-1]
        world.act("ann reads 1")
    assert seen == counted


# Whichever command meets a new strand first.

FIRST: dict[str, tuple[Any, ...]] = {
    "XREADGROUP of own": ("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "x", "0"),
    "XREADGROUP of own, COUNT": ("XREADGROUP", "GROUP", "g", "ann", "COUNT", 3, "STREAMS", "x", "0"),
    "XPENDING": ("XPENDING", "x", "g"),
    "XPENDING, extended": ("XPENDING", "x", "g", "-", "+", 10),
    "XINFO GROUPS": ("XINFO", "GROUPS", "x"),
    "XINFO CONSUMERS": ("XINFO", "CONSUMERS", "x", "g"),
    "XINFO STREAM": ("XINFO", "STREAM", "x"),
    "XINFO STREAM FULL": ("XINFO", "STREAM", "x", "FULL"),
    "XACK": ("XACK", "x", "g", "110-2", "110-700", "110-5"),
    "XCLAIM": ("XCLAIM", "x", "g", "ann", 0, "110-2", "110-700", "110-5"),
    "XAUTOCLAIM": ("XAUTOCLAIM", "x", "g", "ann", 0, "-"),
    "XGROUP CREATECONSUMER": ("XGROUP", "CREATECONSUMER", "x", "g", "ann"),
    "XGROUP DELCONSUMER": ("XGROUP", "DELCONSUMER", "x", "g", "ann"),
    "XGROUP CREATE of another": ("XGROUP", "CREATE", "x", "h", "$"),
    "XRANGE": ("XRANGE", "x", "-", "+"),
    "XTRIM": ("XTRIM", "x", "MAXLEN", 100),
    "XREADGROUP": ("PING",),  # it is what the test does next
}
CREATIONS: dict[str, Callable[[World], None]] = {
    "ours": lambda world: world.act("5 adds 110 130") and None,
    "region 2": lambda world: world.bring(Strand(b"x", "s", 2), [110, 130]),
    "region 700": lambda world: world.bring(Strand(b"x", "s", 700), [110, 130]),
    "region 2, chosen IDs": lambda world: world.bring(Strand(b"x", "c", 2), [110, 130]),
}
# A group's start, and how many of 110 and 130 lie after it: 110-2 and 110-0 do not lie after 110-4.
STARTS: dict[str, dict[str, int]] = {
    "0": dict.fromkeys(CREATIONS, 2),
    "$": dict.fromkeys(CREATIONS, 2),
    "110-4": {"ours": 2, "region 2": 1, "region 700": 2, "region 2, chosen IDs": 1},
    "130-3": {"ours": 1, "region 2": 0, "region 700": 1, "region 2, chosen IDs": 0},
    "140": dict.fromkeys(CREATIONS, 0),
}


@pytest.mark.parametrize("creation", CREATIONS)
@pytest.mark.parametrize("start", STARTS)
def test_a_strand_that_appears_after_the_group_is_read_from_the_groups_start(
    engine: Engine, home: braidstream.Redis, start: str, creation: str
) -> None:
    """Whichever command is the first to meet it, by a client that knew the stream without it."""
    wanted = STARTS[start][creation]
    read = ("XREADGROUP", "GROUP", "g", "ann", "COUNT", 5, "STREAMS", "x", ">")
    for command, first in FIRST.items():
        engine.flush()
        become(engine, region=HOME, name="home")
        world = World(home)
        world.bring(Strand(b"x", "s", 9), [1])
        with client_of(engine, protocol=2) as client:
            client.response_callbacks.clear()
            client.execute_command("XGROUP", "CREATE", "x", "g", start)
            client.execute_command("XREADGROUP", "GROUP", "g", "bob", "NOACK", "STREAMS", "x", ">")
            CREATIONS[creation](world)
            client.execute_command(*first)
            [group] = [row for row in home.xinfo_groups("x") if row["name"] == "g"]
            assert group["lag"] == wanted, command
            found = client.execute_command(*read) or [[b"x", []]]
            assert [len(entries) for _, entries in found] == [wanted], command
            assert client.execute_command(*read) is None, command
            assert home.xpending("x", "g")["pending"] == wanted, command


def test_a_consumer_may_have_the_name_of_a_field(region: braidstream.Redis) -> None:
    region.xgroup_create("x", "g", "0", mkstream=True)
    names = ["a", "name", "pending", "idle", "inactive"]
    assert [region.xgroup_createconsumer("x", "g", name) for name in names * 2] == [1] * 5 + [0] * 5

"""While a slot moves from one node of a cluster to another, each function does all of its work or none.

A node checks the keys that a function was given before it runs. A key that it was not given would be found
missing half-way, with a part of the work done.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import AskError, TryAgainError

from braidstream import lua as functions
from braidstream.model.strand import Command
from tests.support.cluster import Cluster
from tests.support.cluster_functions import Nodes, is_refused, nodes_of, say, say_every_function

ENOUGH_MS = 5000


class Moving(Nodes):
    """Before a function is called its slot begins to move, and each of its keys is away for a while."""

    def __init__(self, cluster: Cluster, connections: list[Any]) -> None:
        super().__init__(cluster, connections)
        self.refused = set[str]()
        self._tried = set[str]()

    def exchange(self, conn: Any, commands: list[Command]) -> list[Any]:
        calls = [command for command in commands if str(command[0]).startswith("FCALL")]
        # What moves a key away and back ends a WATCH: in a MULTI it is done once.
        if not calls or (len(commands) > 1 and str(calls[0][1]) in self._tried):
            return super().exchange(conn, commands)
        self._tried.update(str(call[1]) for call in calls)
        slot = key_slot(_keys(calls[0])[0])
        for call in calls:
            for key in [key for key in _keys(call) if say(conn, ("EXISTS", key)) == [1]]:
                with self._moving(conn, slot, key) as other:
                    self._expect_refusal(conn, other, call)
        with self._moving(conn, slot) as other:
            before = _stored(conn, other, slot)
            replies = say(conn, *commands)
            if not any(map(is_refused, replies)):
                self.sent += commands
                return replies
            assert _stored(conn, other, slot) == before, commands
            assert not any("non local key" in str(reply) for reply in replies), commands
        return super().exchange(conn, commands)

    def _expect_refusal(self, conn: Any, other: Any, call: Command) -> None:
        given = _keys(call)
        slot = key_slot(given[0])
        before = _stored(conn, other, slot)
        replies = say(conn, call)
        if len(given) > 1:
            replies += say(other, ("ASKING",), call)[1:]
        assert all(isinstance(reply, AskError | TryAgainError) for reply in replies), (call, replies)
        assert _stored(conn, other, slot) == before, call
        self.refused.add(str(call[1]))

    @contextmanager
    def _moving(self, conn: Any, slot: int, *away: bytes) -> Iterator[Any]:
        other = next(each for each in self.connections if each is not conn)
        [here], [there] = say(conn, ("CLUSTER", "MYID")), say(other, ("CLUSTER", "MYID"))
        assert say(other, ("CLUSTER", "SETSLOT", slot, "IMPORTING", here)) == [b"OK"]
        assert say(conn, ("CLUSTER", "SETSLOT", slot, "MIGRATING", there)) == [b"OK"]
        for key in away:
            _move(conn, other, key)
        yield other
        assert say(conn, ("CLUSTER", "SETSLOT", slot, "STABLE")) == [b"OK"]
        for key in away:
            _move(other, conn, key)
        assert say(other, ("CLUSTER", "SETSLOT", slot, "STABLE")) == [b"OK"]


def _keys(call: Command) -> list[bytes]:
    return [key for key in call[3 : 3 + int(call[2])] if isinstance(key, bytes)]


def _move(conn: Any, other: Any, key: bytes) -> None:
    moved = say(conn, ("ASKING",), ("MIGRATE", "127.0.0.1", other.port, key, 0, ENOUGH_MS, "REPLACE"))
    assert moved[-1] == b"OK", moved


def _stored(conn: Any, other: Any, slot: int) -> list[tuple[bytes, bytes]]:
    """Every key of the slot on both nodes, with what it holds."""
    found = []
    for node in (conn, other):
        [listed] = say(node, ("CLUSTER", "GETKEYSINSLOT", slot, 1000))
        for key in listed:
            if key.startswith(b"bs:look:"):  # it expires after some milliseconds
                continue
            _, held = say(node, ("ASKING",), ("DUMP", key))
            found.append((key, held))
    return sorted(found)


@pytest.mark.parametrize("name", [b"orders", b"a{b}c"])
def test_a_function_does_all_or_nothing_while_its_slot_moves(cluster: Cluster, name: bytes) -> None:
    with nodes_of(cluster, Moving) as nodes:
        assert isinstance(nodes, Moving)
        say_every_function(nodes.of(name), name)
    registered = set(re.findall(r"'(bs_[a-z_]+)'", functions.source()))
    assert nodes.refused == registered - {
        *(
            "bs_version",
            "bs_process",
            "bs_region_alive",
            "bs_region_writers",
            "bs_database_flush",
        )  # without keys of a stream
    }


def test_no_function_makes_up_the_name_of_a_key() -> None:
    code = re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", functions.source(), flags=re.DOTALL)
    code = code.replace("'bs:'", "", 1)  # the prelude defines KEY_PREFIX
    assert not re.search(r"(?<!\^)bs:", code)  # a pattern may read one
    assert set(re.findall(r"(.{7})KEY_PREFIX \.\.", code)) == {"'^' .. "}

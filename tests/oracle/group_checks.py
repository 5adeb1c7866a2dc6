"""What must always be seen of a stream and its groups, whatever was done: the invariants of a machine."""

import random
from typing import Any

import pytest
import redis
from hypothesis.stateful import RuleBasedStateMachine, invariant

from braidstream.model import ids
from braidstream.model.ids import LAST, ZERO, Id
from braidstream.model.strand import facts
from tests.oracle.stream import NOBODY, Group, Key, Stream

LONG_MS = 10**8  # a minimum idle time that only old entries have


class Seen(RuleBasedStateMachine):
    """A machine on one stream. Who inherits acts on it and on the model, and has someone who looks."""

    name: bytes
    model: Stream
    dice: random.Random

    def look(self, *words: Any) -> Any:
        raise NotImplementedError

    @invariant()
    def the_summary_of_what_is_pending_is_the_models(self) -> None:
        for name, group in self.model.groups.items():
            pending = group.pending()
            holders = [held.consumer for held in group.held.values() if held.consumer != NOBODY]
            each = [[who, b"%d" % holders.count(who)] for who in sorted(set(holders))]
            ends = [ids.text(pending[0][0]), ids.text(pending[-1][0])] if pending else [None, None]
            assert self.look("XPENDING", self.name, name) == [
                len(pending),
                *ends,
                each if pending else None,
            ], name

    @invariant()
    def every_page_of_what_is_pending_is_the_models(self) -> None:
        for name, group in self.model.groups.items():
            start, end = sorted([self._spot(group), self._spot(group)])
            count, old = self.dice.choice([1, 2, 3, 100]), self.dice.random() < 0.3
            who = self.dice.choice([None, None, b"ann", b"bob"])
            rows = [
                [ids.text(key[0]), held.consumer, held.times, held.old and held.consumer != NOBODY]
                for key in group.pending(start, end)
                for held in [group.held[key]]
                if (not old or group.held[key].old) and who in (None, group.held[key].consumer)
            ][:count]
            idle = ("IDLE", LONG_MS) if old else ()
            words = (*idle, ids.text(start), ids.text(end), count, *([] if who is None else [who]))
            seen = self.look("XPENDING", self.name, name, *words)
            assert [[*row[:2], row[3], row[2] >= LONG_MS] for row in seen] == rows, (name, words)
            assert all((row[1] == NOBODY) == (row[2] == -1) for row in seen), (name, words)

    def _spot(self, group: Group) -> Id:
        """At a pending entry, next to one, or at an end."""
        spot = self.dice.choice([ZERO, LAST, *(key[0] for key in group.held)])
        return self.dice.choice([spot, ids.after(spot) or spot, ids.before(spot) or spot])

    @invariant()
    def every_group_says_where_it_stands(self) -> None:
        if not self.model.exists:
            with pytest.raises(redis.ResponseError, match="no such key"):
                self.look("XINFO", "GROUPS", self.name)
            return
        seen = {row[1]: facts(row) for row in self.look("XINFO", "GROUPS", self.name)}
        assert {name: (row[b"pending"], row[b"last-delivered-id"]) for name, row in seen.items()} == {
            name: (len(group.held), ids.text(group.last)) for name, group in self.model.groups.items()
        }
        for name, group in self.model.groups.items():
            self._check_lag(group, seen[name][b"lag"])

    def _check_lag(self, group: Group, lag: int) -> None:
        """The number of entries not yet given; after XCLAIM LASTID the engine may guess."""
        if group.knows_lag:
            assert lag == len(group.unread(self.model.entries))
        else:
            assert 0 <= lag <= len(self.model.entries)

    @invariant()
    def every_consumer_holds_its_share(self) -> None:
        for name, group in self.model.groups.items():
            rows = map(facts, self.look("XINFO", "CONSUMERS", self.name, name))
            seen = {row[b"name"]: row[b"pending"] for row in rows if row[b"pending"]}
            holders = [held.consumer for held in group.held.values() if held.consumer != NOBODY]
            assert seen == {who: holders.count(who) for who in holders}, name

    @invariant()
    def the_full_story_is_the_models(self) -> None:
        if not self.model.exists:
            return
        info = facts(self.look("XINFO", "STREAM", self.name, "FULL", "COUNT", 0))
        assert info[b"entries"] == self.shown(sorted(self.model.entries))
        seen = {row[1]: facts(row) for row in info[b"groups"]}
        assert sorted(seen) == sorted(self.model.groups)
        for name, group in self.model.groups.items():
            assert seen[name][b"pel-count"] == len(group.held)
            self._check_lag(group, seen[name][b"lag"])
            assert [[row[0], row[1], row[3]] for row in seen[name][b"pending"]] == [
                [ids.text(key[0]), group.held[key].consumer, group.held[key].times] for key in group.pending()
            ]

    def shown(self, keys: list[Key]) -> list[Any]:
        return [
            [ids.text(key[0]), [b"v", self.model.entries[key]] if key in self.model.entries else None]
            for key in keys
        ]

    def texts(self, keys: list[Key]) -> list[bytes]:
        return [ids.text(key[0]) for key in keys]

"""Topics as an operator wants to see them: partitions, the lag of groups, and who works on what."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from braidstream.clients.commands import ViewOf, command
from braidstream.clients.shared import Conversation
from braidstream.errors import ReplyError
from braidstream.model import keys
from braidstream.model.strand import facts
from braidstream.model.topic import Topic
from braidstream.plan.lookup import read_ms
from braidstream.plan.plan import Batch, Plan, together


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer, and the partitions that it works on."""

    name: bytes
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class TopicGroup:
    """A group of a topic. lag: entries that were not delivered yet, by partition."""

    group: bytes
    lag: dict[int, int]
    pending: int
    members: list[Member]

    def lag_of(self, partitions: Iterable[int]) -> int:
        return sum(self.lag.get(number, 0) for number in partitions)


def read_topic(topic: Topic) -> Conversation[tuple[list[int], list[TopicGroup]]]:
    """How many entries each partition has, and the groups."""

    def plan(view_of: ViewOf) -> Plan[tuple[list[int], list[TopicGroup]]]:
        lengths = yield from together(command(view_of, "XLEN", name) for name in topic.streams)
        rows = yield from together(_groups(view_of, name) for name in topic.streams)
        lags, pending = defaultdict[bytes, dict[int, int]](dict), Counter[bytes]()
        for number, some in enumerate(rows):
            for info in some:
                lags[info[b"name"]][number] = info[b"lag"]
                pending[info[b"name"]] += info[b"pending"]
        groups = sorted(lags)
        members = yield from together(_members(topic.name, group) for group in groups)
        found = [
            TopicGroup(group, lags[group], pending[group], mine)
            for group, mine in zip(groups, members, strict=True)
        ]
        return lengths, found

    return plan


def _groups(view_of: ViewOf, name: bytes) -> Plan[list[dict[bytes, Any]]]:
    try:
        replies = yield from command(view_of, "XINFO", "GROUPS", name)
    except ReplyError as error:
        if not error.text.startswith("ERR no such key"):
            raise
        return []  # nothing was added to it yet
    return [facts(reply) for reply in replies]


def _members(topic: bytes, group: bytes) -> Plan[list[Member]]:
    """Those whose session lasts."""
    team, alive, _ = keys.team(topic, group)
    now_ms = yield from read_ms()
    words, living = yield Batch(
        [("HGETALL", team), ("ZRANGE", alive, now_ms, "+inf", "BYSCORE")], resend=True
    )
    given = dict(zip(words[::2], words[1::2], strict=True))
    lists = [given.get(keys.team_field(name), b"") for name in living]
    return [Member(bytes(name), [*map(int, each.split())]) for name, each in zip(living, lists, strict=True)]

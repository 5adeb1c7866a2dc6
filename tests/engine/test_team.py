"""The team of a topic: the engine function that shares partitions among members, and the members."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import braidstream
from braidstream.consumers.team import Team
from braidstream.model import keys
from tests.support.servers import Engine
from tests.support.thinning import NIGHTLY
from tests.support.waiting import eventually

SESSION_S = 0.25
EXAMPLES = 40 if NIGHTLY else 15
_numbers = count()


class Member:
    """A consumer of the group, without entries: what it leaves, it returns when it is told to finish."""

    def __init__(self, client: braidstream.Redis, topic: str, name: str, session_s: float) -> None:
        self.client, self.name = client, name
        self.team = Team(topic, "g", name, session_s=session_s)
        self.moved = 0

    def beat(self) -> set[int]:
        """Returns the partitions that are new."""
        now, before, life = time.monotonic(), set(self.team.has), self.team.life
        self.team.check(now)
        self.client.converse(lambda view_of: self.team.beat(view_of, now))
        found = self.team.has - before if life == self.team.life else set(self.team.has)
        self.moved += len(found)
        return found

    def finish(self) -> None:
        for partition in [*self.team.leaves]:
            self.team.finished(partition)

    def leave(self) -> None:
        self.client.converse(lambda view_of: self.team.leave())

    def works_on(self, now: float) -> set[int]:
        self.team.check(now)
        return self.team.has | self.team.leaves


class Crew:
    """Members of one new group of a new topic."""

    def __init__(self, client: braidstream.Redis, partitions: int, session_s: float = 30.0) -> None:
        self.client, self.session_s, self.partitions = client, session_s, partitions
        self.topic, self.members = f"topic-{next(_numbers)}", list[Member]()
        client.topic(self.topic).create(partitions)

    def join(self, name: str | None = None) -> Member:
        name = name or f"m{next(_numbers)}"
        self.members.append(Member(self.client, self.topic, name, self.session_s))
        self.members[-1].beat()
        return self.members[-1]

    def is_settled(self) -> bool:
        """Everybody beats and returns once; then whether the partitions are shared evenly."""
        for member in self.members:
            member.finish()
            member.beat()
        sizes = [len(member.team.has) for member in self.members]
        held = Counter(partition for member in self.members for partition in member.team.has)
        rest = any(member.team.leaves for member in self.members)
        return not rest and len(held) == sum(sizes) == self.partitions and max(sizes) - min(sizes) <= 1

    def settle(self) -> None:
        if self.members:
            eventually(self.is_settled, within_s=20, why="every partition should have one member")


@pytest.fixture
def crew(region: braidstream.Redis) -> Callable[..., Crew]:
    return lambda partitions, **options: Crew(region, partitions, **options)


def test_partitions_are_shared_evenly_and_few_move(crew: Callable[..., Crew]) -> None:
    team = crew(1_000)
    for _ in range(20):
        team.join()
    team.settle()
    for member in team.members:
        member.moved = 0
    newest = team.join()
    team.settle()
    assert newest.moved == sum(member.moved for member in team.members) == 1_000 // 21
    team.members.remove(newest)
    newest.leave()
    team.settle()
    assert sum(member.moved for member in team.members) == 1_000 // 21


def test_there_may_be_more_members_than_partitions(crew: Callable[..., Crew]) -> None:
    team = crew(3)
    for _ in range(5):
        team.join()
    team.settle()
    assert sorted(len(member.team.has) for member in team.members) == [0, 0, 1, 1, 1]


def test_a_member_that_comes_back_under_its_name_has_its_partitions(crew: Callable[..., Crew]) -> None:
    team = crew(10)
    first, second = team.join("first"), team.join("second")
    team.settle()
    before, second.moved = (set(first.team.has), set(second.team.has)), 0
    team.members[0] = again = Member(team.client, team.topic, "first", team.session_s)
    again.beat()
    team.settle()
    assert (again.team.has, second.team.has) == before
    assert second.moved == 0


def test_a_member_waits_for_what_another_one_has_not_returned(crew: Callable[..., Crew]) -> None:
    team = crew(4)
    old = team.join()
    team.settle()
    new = team.join()
    eventually(
        lambda: old.beat() is not None and len(old.team.leaves) == 2, within_s=20, why="it should leave two"
    )
    for _ in range(3):
        new.beat(), old.beat()
    assert (len(old.team.has), len(old.team.leaves), new.team.has) == (2, 2, set())
    team.settle()


def test_what_a_dead_member_had_goes_to_others_when_its_session_is_over(
    crew: Callable[..., Crew],
) -> None:
    team = crew(6, session_s=SESSION_S)
    dead, alive = team.join(), team.join()
    team.settle()
    began = time.monotonic()
    team.members.remove(dead)
    assert len(alive.team.has) == 3
    team.settle()
    assert len(alive.team.has) == 6
    assert time.monotonic() - began >= SESSION_S / 2


def test_a_call_wakes_a_member_that_waits(crew: Callable[..., Crew], background: Any) -> None:
    team = crew(2)
    old = team.join()
    team.settle()
    last = team.client.converse(old.team.wait(b"0-0"))
    with braidstream.Redis(connection_pool=team.client.connection_pool) as other:
        waiting = background.submit(other.converse, old.team.wait(last))
        new = team.join()
        eventually(lambda: new.beat() is not None and waiting.done(), within_s=20, why="it should be woken")
        assert waiting.result() != last


def test_nothing_stays_when_all_have_left(crew: Callable[..., Crew], engine: Engine) -> None:
    team = crew(5)
    for _ in range(3):
        team.join()
    team.settle()
    with engine.client() as operator:
        names = keys.team(team.topic.encode(), b"g")
        assert operator.exists(*names) == 3
        assert all(0 < operator.pttl(name) <= 86_400_000 for name in names)
        assert team.client.scan(count=1000)[1] == ["braid.topics"]
        for member in team.members:
            member.leave()
        assert operator.exists(*names) == 0


def test_it_shares_again_if_the_topic_has_more_partitions(crew: Callable[..., Crew]) -> None:
    team = crew(4)
    team.join(), team.join()
    team.settle()
    team.client.xadd("braid.topics", {"topic": team.topic, "partitions": 9})
    team.partitions = 9
    for member in team.members:
        team.client.converse(member.team.look)
    team.settle()


WRONG: list[tuple[Any, ...]] = [
    (),
    ("", 6000, 4, "", ""),
    ("m", -1, 4, "", ""),
    ("m", 3_600_001, 4, "", ""),
    ("m", 6000, 0, "", ""),
    ("m", 6000, 10_001, "", ""),
    ("m", 6000, "x", "", ""),
    ("m", 6000, 4, "1" * 65, ""),
    ("m", 6000, 4, ""),
    ("m", 6000, 4, "", "1 " * 40_000),
    ("m" * 65_537, 6000, 4, "", ""),
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: str(words)[:30])
def test_a_malformed_call_changes_nothing(
    region: braidstream.Redis, engine: Engine, words: tuple[Any, ...]
) -> None:
    names = keys.team(b"t", b"g")
    with engine.client() as operator:
        with pytest.raises(redis.ResponseError, match="BSBATCH malformed"):
            operator.execute_command("FCALL", "bs_team_beat", 3, *names, *words)
        assert operator.exists(*names) == 0


def test_hostile_fields_of_a_team_do_no_harm(crew: Callable[..., Crew], engine: Engine) -> None:
    team = crew(5)
    member = team.join("m")
    team.settle()
    team_key = keys.team(team.topic.encode(), b"g")[0]
    hostile = ["9" * 400, "-1", "x", "", "1 1 1 1", "0 " * 50_000, "99999 3"]
    with engine.client() as operator:
        for field in ("parts", "epoch", "mark", "due", "t:m", "h:m", "o:1"):
            for value in hostile:
                operator.hset(team_key, field, value)
                member.beat()
                operator.unlink(*keys.team(team.topic.encode(), b"g"))
    member.team.drop_all()
    team.settle()


def test_a_team_has_a_bounded_number_of_members(region: braidstream.Redis, engine: Engine) -> None:
    names = keys.team(b"t", b"g")
    with engine.client() as operator:
        later = int(time.time() * 1000) + 600_000
        operator.zadd(names[1], {f"m{number}": later for number in range(2_000)})
        with pytest.raises(redis.ResponseError, match="at most 2000 members"):
            operator.execute_command("FCALL", "bs_team_beat", 3, *names, "one more", 6000, 10_000, "", "")
        for _ in range(2):
            operator.execute_command("FCALL", "bs_team_beat", 3, *names, "m7", 6000, 10_000, "", "")
            time.sleep(0.03)  # longer than the time for which changes are collected
        slow = operator.execute_command("FCALL", "bs_team_beat", 3, *names, "m8", 6000, 10_000, "", "")
        assert len(slow[4].split()) == 5


RIGHTS = (
    "fcall hdel hget hgetall hmget hset pexpire time unlink xadd xrange xread zadd zcard zrange zrem zscore"
)


def test_without_one_right_nothing_is_half_done(crew: Callable[..., Crew], engine: Engine) -> None:
    rights = RIGHTS.split()
    team = crew(4)
    url = engine.url.replace("//", "//limited:any@", 1)
    names = keys.team(team.topic.encode(), b"g")
    with engine.client() as operator:
        for lacking in rights:
            given = [f"+{right}" for right in rights if right != lacking]
            operator.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", *given)
            with redis.Redis.from_url(url) as limited:
                try:
                    limited.execute_command("FCALL", "bs_team_beat", 3, *names, "m", 6000, 4, "", "")
                except redis.ResponseError:
                    assert operator.exists(*names) == 0, lacking
                else:
                    assert lacking in ("hgetall", "xrange", "xread"), lacking
                    operator.unlink(*names)


# Holds of partitions


PARTITION = b"orders/0.7{28649}"


def hold(operator: Any, token: str, former: str = "", epoch: int = 5, group: bytes = b"g") -> Any:
    """One call, as consumers/holds.py makes it."""
    mine = keys.hold(PARTITION, group, (token or former).encode())
    where = [keys.holder(PARTITION, group), mine]
    if former and token and former != token:
        where.append(keys.hold(PARTITION, group, former.encode()))
    return operator.execute_command("FCALL", "bs_team_hold", len(where), *where, group, epoch, token, former)


def test_who_takes_a_partition_ends_the_reads_of_the_former_member(
    region: braidstream.Redis, engine: Engine
) -> None:
    with engine.client() as operator:
        assert hold(operator, "aa") == b""
        operator.xadd("s", {"f": "v"})
        operator.xgroup_create("s", "g", "0")
        at = {"s": ">", keys.hold(PARTITION, b"g", b"aa"): ">"}
        with engine.client() as other, ThreadPoolExecutor() as threads:
            assert operator.xreadgroup("g", "ann", at)  # type: ignore[arg-type]
            waits = threads.submit(operator.xreadgroup, "g", "ann", at, block=20_000)  # type: ignore[arg-type]
            eventually(lambda: other.info("clients")["blocked_clients"] == 1, within_s=20, why="it waits")
            assert hold(other, "bb", "zz") == b"aa"  # it did not know the former one
            assert hold(other, "bb", "aa", epoch=6) == b""
            with pytest.raises(redis.ResponseError, match="NOGROUP|UNBLOCKED"):
                waits.result(20)
            assert other.xadd("s", {"f": "w"})
            with pytest.raises(redis.ResponseError, match="NOGROUP"):
                operator.xreadgroup("g", "ann", at)  # type: ignore[arg-type]
            assert other.xinfo_groups("s")[0]["lag"] == 1  # nothing was delivered
            with pytest.raises(redis.ResponseError, match="FENCED"):
                hold(other, "aa", "bb", epoch=5)
            assert hold(other, "bb", "bb", epoch=6) == b""  # it goes on
            assert 0 < other.pttl(keys.holder(PARTITION, b"g")) <= 86_400_000
            assert hold(other, "", "aa", epoch=6) == b"bb"
            assert hold(other, "", "bb", epoch=6) == b""
            assert [*other.scan_iter("bs:hold*")] == []


WRONG_HOLDS = [(), ("g", 5, "a"), ("g", "x", "a", ""), ("g", 5, "a" * 33, ""), ("g", 5, "a", "b" * 33)]


@pytest.mark.parametrize("words", WRONG_HOLDS, ids=lambda words: str(words)[:30])
def test_a_malformed_hold_changes_nothing(
    region: braidstream.Redis, engine: Engine, words: tuple[Any, ...]
) -> None:
    where = keys.holder(PARTITION, b"g"), keys.hold(PARTITION, b"g", b"a")
    with engine.client() as operator:
        with pytest.raises(redis.ResponseError, match="BSBATCH malformed"):
            operator.execute_command("FCALL", "bs_team_hold", 2, *where, *words)
        assert operator.exists(*where) == 0


def test_without_one_right_nothing_is_half_held(region: braidstream.Redis, engine: Engine) -> None:
    rights = ["fcall", "hmget", "hset", "pexpire", "unlink", "xgroup|create"]
    url = engine.url.replace("//", "//limited:any@", 1)
    with engine.client() as operator:
        for lacking in rights:
            given = [f"+{right}" for right in rights if right != lacking]
            operator.execute_command("ACL", "SETUSER", "limited", "reset", "on", "nopass", "~*", *given)
            with redis.Redis.from_url(url) as limited, pytest.raises(redis.ResponseError):
                hold(limited, "aa")
            assert [*operator.scan_iter("bs:hold*")] == [], lacking


# Any order of what can happen


class Teamwork(RuleBasedStateMachine):
    """Members join, beat, finish, freeze, come back, die and leave. Never do two work on a partition."""

    client: braidstream.Redis
    members = Bundle("members")

    def __init__(self) -> None:
        super().__init__()
        self.crew: Crew | None = None
        self.given = dict[tuple[int, int], str]()

    @initialize(partitions=st.integers(1, 9))
    def begin(self, partitions: int) -> None:
        self.crew = Crew(self.client, partitions, session_s=SESSION_S)

    def note(self, member: Member, new: set[int]) -> None:
        for partition in new:
            key = partition, member.team.epoch
            assert self.given.setdefault(key, member.name) == member.name, "two holders in one epoch"

    @rule(target=members)
    def join(self) -> Member:
        assert self.crew is not None
        member = self.crew.join()
        self.note(member, member.team.has)
        return member

    @rule(member=members)
    def beat(self, member: Member) -> None:
        self.note(member, member.beat())

    @rule(member=members)
    def finish(self, member: Member) -> None:
        member.team.check(time.monotonic())
        member.finish()

    @rule(member=members)
    def restart(self, member: Member) -> None:
        """Its process begins anew, under the same name."""
        member.team.drop_all()

    @rule(member=consumes(members))
    def die(self, member: Member) -> None:
        assert self.crew is not None
        self.crew.members.remove(member)

    @rule(member=consumes(members))
    def leave(self, member: Member) -> None:
        assert self.crew is not None
        self.crew.members.remove(member)
        member.leave()

    @rule(part=st.sampled_from([0.1, 0.5, 1.2]))
    def time_passes(self, part: float) -> None:
        """All are frozen for a while."""
        time.sleep(part * SESSION_S)

    @rule(member=members)
    def freeze(self, member: Member) -> None:
        """The others go on until its session is over."""
        assert self.crew is not None
        until = time.monotonic() + 1.2 * SESSION_S
        while time.monotonic() < until:
            for other in self.crew.members:
                if other is not member:
                    self.note(other, other.beat())
            time.sleep(SESSION_S / 10)

    @invariant()
    def no_partition_has_two(self) -> None:
        now = time.monotonic()
        if self.crew is not None:
            held = Counter(part for member in self.crew.members for part in member.works_on(now))
            assert [part for part, members in held.items() if members > 1] == []

    def teardown(self) -> None:
        if self.crew is not None:
            self.crew.settle()
            self.no_partition_has_two()


def test_never_do_two_members_work_on_one_partition(region: braidstream.Redis) -> None:
    class Here(Teamwork):
        client = region

    run_state_machine_as_test(Here, settings=settings(max_examples=EXAMPLES, stateful_step_count=25))

"""A producer that fails over: what one region accepted the others know, and it stands once everywhere."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis

import braidstream
from braidstream.model import keys
from braidstream.operations.membership import meet, part
from tests.support.regions import become, client_of
from tests.support.rolling_back import meet_again
from tests.support.servers import Engine
from tests.support.waiting import eventually
from tests.support.world import World

Make = Callable[..., World]


def bodies(world: World, name: str = "s") -> list[list[str]]:
    """What each region reads."""
    return [[fields["n"] for _, fields in world[region].xrange(name)] for region in world]


def entries(world: World, name: str = "s") -> list[list[str]]:
    return [[entry for entry, _ in world[region].xrange(name)] for region in world]


def send(world: World, region: int, number: int, producer: str = "p") -> Any:
    return world[region].xadd("s", {"n": number}, idmp=(producer, b"%d" % number))


def test_a_retry_in_another_region_that_has_heard_is_answered_with_the_original_id(make_world: Make) -> None:
    world = make_world(2)
    first = send(world, 1, 1)
    world.sync()
    assert send(world, 2, 1) == first
    world.sync()
    assert entries(world) == [[first], [first]]
    assert world[2].xinfo_stream("s")["iids-duplicates"] == 1


def test_a_retry_before_the_journal_ends_as_one_entry_the_smaller(make_world: Make) -> None:
    world = make_world(3)
    accepted = [send(world, region, 1) for region in (1, 2, 3)]
    assert len(set(accepted)) == 3
    world.sync()
    smallest = min(accepted, key=lambda entry: tuple(map(int, entry.split("-"))))
    assert entries(world) == [[smallest]] * 3
    for region in world:
        assert send(world, region, 1) == smallest


def test_a_writer_cut_off_in_the_middle_goes_on_elsewhere(make_world: Make) -> None:
    """20 messages to region 1; region 2 has heard of 10. The writer starts again there, from the fifth."""
    world = make_world(3)
    for number in range(10):
        send(world, 1, number)
    world.sync()
    for number in range(10, 20):
        send(world, 1, number)
    for number in range(5, 30):  # from the last one it is sure of
        send(world, 2, number)
    world.sync()
    found = bodies(world)
    assert found[0] == found[1] == found[2]
    assert sorted(map(int, found[0])) == list(range(30))
    assert entries(world)[0] == entries(world)[1] == entries(world)[2]


def test_an_idempotent_client_that_changes_its_region_is_another_run(make_world: Make) -> None:
    """The SDK names messages by run: to fail over, a producer names them itself."""
    world = make_world(2)
    first = world[1].xadd("s", {"n": 1}, idmpauto="p")
    world.sync()
    assert world[2].xadd("s", {"n": 1}, idmpauto="p") == first


def test_journals_in_any_order_and_twice_give_the_same(make_world: Make) -> None:
    world = make_world(3)
    for number in range(5):
        for region in world:
            send(world, region, number)
    for source, target in [(2, 3), (3, 1), (2, 3), (1, 2), (2, 1), (3, 2), (3, 2)]:
        world.ship(source, target, "s")
    world.links = {pair: world.link(*pair) for pair in world.links}  # killed and started again
    world.sync()
    found = entries(world)
    assert found[0] == found[1] == found[2]
    assert sorted(bodies(world)[0]) == list("01234")


def test_a_relay_brings_what_a_region_that_is_gone_had_accepted(make_world: Make) -> None:
    world = make_world(3)
    first = send(world, 1, 1)
    world.ship(1, 2, "s")
    world.ship(2, 3, "s", relay=True)
    assert send(world, 3, 1) == first


def test_a_changed_setting_travels_and_forgets_everywhere(make_world: Make) -> None:
    world = make_world(2)
    first = send(world, 1, 1)
    world.sync()
    world[1].xcfgset("s", idmp_duration=7, idmp_maxsize=9)
    world.sync()
    facts = world[2].xinfo_stream("s")
    assert (facts["idmp-duration"], facts["idmp-maxsize"], facts["iids-tracked"]) == (7, 9, 0)
    assert send(world, 2, 1) != first


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_settings_changed_in_two_regions_at_once_end_as_one(make_world: Make, order: tuple[int, int]) -> None:
    world = make_world(2)
    send(world, 1, 1)
    world.sync()
    world[order[0]].xcfgset("s", idmp_duration=50)
    world[order[1]].xcfgset("s", idmp_maxsize=50)
    world.sync()
    facts = [world[region].xinfo_stream("s") for region in world]
    assert len({(each["idmp-duration"], each["idmp-maxsize"]) for each in facts}) == 1


def test_a_message_sent_again_after_a_deletion_of_the_stream_stays(make_world: Make) -> None:
    world = make_world(2)
    send(world, 1, 1)
    world.sync()
    world[1].delete("s")
    again = send(world, 1, 1)
    world.sync()
    assert entries(world) == [[again], [again]]
    assert send(world, 2, 1) == again


def test_a_message_accepted_while_the_stream_is_deleted_elsewhere_lives_on(make_world: Make) -> None:
    world = make_world(2)
    send(world, 1, 1)
    world.sync()
    world[1].delete("s")
    unseen = send(world, 2, 2)
    world.sync()
    assert entries(world) == [[unseen], [unseen]]


def test_pipelines_and_their_messages_travel_in_one_journal_entry(make_world: Make) -> None:
    world = make_world(2)
    pipe = world[1].pipeline()
    for number in range(40):
        pipe.xadd("s", {"n": number}, idmp=("p", b"%d" % number))
    first = pipe.execute()
    with world.engines[0].client() as operator:
        assert operator.xlen("bs:1:j:{s}") == 1
    world.sync()
    pipe = world[2].pipeline()
    for number in range(40):
        pipe.xadd("s", {"n": number}, idmp=("p", b"%d" % number))
    assert pipe.execute() == first
    world.sync()
    assert entries(world) == [first, first]


def test_no_more_messages_are_known_than_the_size_wherever_they_came_from(make_world: Make) -> None:
    world = make_world(2)
    send(world, 1, 0)
    world.sync()
    world[1].xcfgset("s", idmp_maxsize=10)
    world.sync()
    for number in range(1, 40):
        send(world, 1 + number % 2, number)
    world.sync()
    assert [world[region].xinfo_stream("s")["iids-tracked"] for region in world] == [10, 10]


def forget_journal(world: World, region: int) -> None:
    """What 10,000 more calls would do to what a region's journal has now."""
    with world.engines[region - 1].client() as operator:
        operator.xtrim(f"bs:{region}:j:{{s}}", maxlen=0)


def test_a_region_that_was_away_too_long_is_told_of_what_the_journal_still_has(make_world: Make) -> None:
    world = make_world(2)
    send(world, 1, 1)
    forget_journal(world, 1)
    first = send(world, 1, 2)
    world.sync()
    assert send(world, 2, 2) == first


def test_a_second_comparison_takes_nothing_from_what_is_passed_on(make_world: Make) -> None:
    """Two links find region 2 too far behind; the slower one says so after the faster one went on. Then
    region 1 leaves for good."""
    world = make_world(3)
    send(world, 1, 1)
    forget_journal(world, 1)
    first = send(world, 1, 2)
    world.ship(1, 2, "s")
    world[2].fcall("bs_journal_skip", 1, "bs:1:j:{s}", "1-1")
    for region in (2, 3):
        world[region].run_plan(part([1]))
    meet_again(world)
    world.ship(2, 3, "s", relay=True)
    assert send(world, 3, 2) == first


def settings(world: World, name: str = "s") -> list[tuple[int, int]]:
    found = [world[region].xinfo_stream(name) for region in world]
    return [(each["idmp-duration"], each["idmp-maxsize"]) for each in found]


def test_regions_with_peers_remember_for_a_day_unless_somebody_chose(make_world: Make) -> None:
    world = make_world(2)
    send(world, 1, 1)
    world.sync()
    assert settings(world) == [(86_400, 100)] * 2
    world[2].xcfgset("s", idmp_duration=100)
    world.sync()
    send(world, 1, 2)
    world.sync()
    assert settings(world) == [(100, 100)] * 2
    world[1].delete("s")
    send(world, 1, 3)
    world.sync()
    assert settings(world) == [(86_400, 100)] * 2


def test_a_stream_from_before_the_peers_remembers_for_a_day_too(engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        first = client.xadd("s", {"n": 1}, idmp=("p", b"1"))
        assert client.xinfo_stream("s")["idmp-duration"] == 100
        client.run_plan(meet([1, 2]))
        eventually(
            lambda: (
                client.xadd("s", {"n": 1}, idmp=("p", b"1")) == first
                and client.xinfo_stream("s")["idmp-duration"] == 86_400
            ),
            within_s=10,
            why="the client should see the peer",
        )


@pytest.mark.parametrize("pipelined", [False, True])
def test_raising_forgets_nothing_and_keeps_what_is_known_for_longer(
    make_world: Make, pipelined: bool
) -> None:
    world = make_world(2)
    send(world, 1, 0)
    world[1].xcfgset("s", idmp_duration=1)
    first = [send(world, 1, number) for number in (1, 2)]
    pipe = world[1].pipeline(transaction=False) if pipelined else world[1]
    pipe.xcfgset("s", idmp_duration=3600, idmp_maxsize=7, raise_only=True)
    pipe.xadd("s", {"n": 3}, idmp=("p", b"3"))
    if pipelined:
        pipe.execute()
    with world.engines[0].client() as operator:
        known, queue = keys.known_messages(b"s", 1, b"p")
        assert min(operator.pttl(known), operator.pttl(queue)) > 3_600_000
    assert [send(world, 1, number) for number in (1, 2)] == first
    world.sync()
    assert settings(world) == [(3600, 100)] * 2
    world[2].xcfgset("s", idmp_duration=5, idmp_maxsize=200, raise_only=True)
    world.sync()
    assert settings(world) == [(3600, 200)] * 2
    assert [send(world, 2, number) for number in (1, 2)] == first


def test_a_raised_duration_outlasts_an_absence(make_world: Make) -> None:
    """Regions are apart for longer than the old duration. Without RAISE both entries stay."""
    world = make_world(2)
    for name in ("raised", "plain"):
        world[1].xadd(name, {"n": 0})
        world[1].xcfgset(name, idmp_duration=1)
    world[1].xcfgset("raised", idmp_duration=86_400, raise_only=True)
    world.sync()
    for region in world:
        for name in ("raised", "plain"):
            world[region].xadd(name, {"n": 1}, idmp=("p", b"1"))
    eventually(
        lambda: [world[region].xinfo_stream("plain")["iids-tracked"] for region in world] == [0, 0],
        within_s=10,
        why="both regions should forget the message",
    )
    world.sync()
    assert bodies(world, "plain") == [["0", "1", "1"]] * 2
    assert bodies(world, "raised") == [["0", "1"]] * 2


def test_the_engine_alone_cannot_raise(region: braidstream.Redis, engine: Engine) -> None:
    first = region.xadd("s", {"n": 1}, idmp=("p", b"1"))
    if "XCFGSET" in engine.vocabulary:
        with pytest.raises(redis.ResponseError, match="RAISE needs a region with peers"):
            region.xcfgset("s", idmp_duration=200, raise_only=True)
    else:
        region.xcfgset("s", idmp_duration=200, raise_only=True)
        assert region.xinfo_stream("s")["idmp-duration"] == 200
    assert region.xadd("s", {"n": 1}, idmp=("p", b"1")) == first


@pytest.mark.parametrize(("size", "order"), [(100, (1, 2)), (100, (2, 1)), (250, (1, 2))])
def test_of_many_messages_that_two_regions_accepted_the_latest_are_recognised(
    make_world: Make, size: int, order: tuple[int, int]
) -> None:
    """300 messages, of which a region remembers 100. The others are counted."""
    world = make_world(2)
    world[1].xadd("s", {"n": 0})
    world[1].xcfgset("s", idmp_maxsize=size, raise_only=True)
    world.sync()
    send_many(world, order, range(1, 301))
    world.sync()
    found = bodies(world)
    assert found[0] == found[1]
    twice = {int(body) for body, times in Counter(found[0]).items() if times > 1}
    assert twice == set(range(1, 301 - size))
    assert sum(world[region].xinfo_stream("s").get("iids-unchecked", 0) for region in world) == 300 - size


def send_many(world: World, order: tuple[int, int], numbers: range) -> None:
    """The same messages to both regions, one after the other."""
    for region in order:
        for start in range(numbers.start, numbers.stop, 50):
            pipe = world[region].pipeline(transaction=False)
            for number in range(start, min(start + 50, numbers.stop)):
                pipe.xadd("s", {"n": number}, idmp=("p", b"%d" % number))
            pipe.execute()


@pytest.mark.long
def test_as_many_messages_as_a_stream_remembers_are_recognised(make_world: Make) -> None:
    """10,000 messages of one producer, accepted apart: all of them with IDMP-MAXSIZE 10000."""
    world = make_world(2)
    world[1].xadd("s", {"n": 0})
    world[1].xcfgset("s", idmp_maxsize=10_000, raise_only=True)
    world.sync()
    send_many(world, (1, 2), range(1, 10_001))
    world.sync()
    assert [sorted(map(int, each)) for each in bodies(world)] == [list(range(10_001))] * 2

"""A producer that fails over: what one region accepted the others know, and it stands once everywhere."""

from collections.abc import Callable
from typing import Any

import pytest

from braidstream.operations.membership import part
from tests.support.rolling_back import meet_again
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

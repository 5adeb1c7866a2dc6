"""Requirements AA-1 to AA-25 (docs/design/requirements.md) as tables: columns are regions, rows are times."""

# Tables are as wide as they are.
# ruff: noqa: E501

from collections.abc import Callable

import pytest
import redis

from tests.support.tables import play
from tests.support.world import World

Make = Callable[..., World]


def test_a_stream_written_in_two_regions_becomes_the_same_in_both(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                                                       | region 2
        t1   | XADD messages * text hello                                     |
        t1   |                                                                | XADD messages * text goodbye
        t2   | XRANGE messages - + -> [1589929244828-1]                       | XRANGE messages - + -> [1589929246795-2]
        t3   | Sync                                                           | Sync
        t4   | XRANGE messages - + -> [1589929244828-1, 1589929246795-2]      | XRANGE messages - + -> [1589929244828-1, 1589929246795-2]
    """)  # fmt: skip


def test_a_deletion_takes_only_what_its_region_had_seen(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                                   | region 2
        t1   | XADD messages * text hello                 |
        t2   | Sync                                       | Sync
        t3   | XRANGE messages - + -> [1589929244828-1]   | XRANGE messages - + -> [1589929244828-1]
        t4   | DEL messages                               | XADD messages * text goodbye
        t5   | Sync                                       | Sync
        t6   | XRANGE messages - + -> [1589929246795-2]   | XRANGE messages - + -> [1589929246795-2]
    """)  # fmt: skip


@pytest.mark.parametrize("mode", ["semi-strict", "liberal"])
def test_chosen_ids_may_stand_twice(make_world: Make, mode: str) -> None:
    play(make_world(2, id_mode=mode), """
        time | region 1                          | region 2
        t1   | XADD x 100-1 f1 v1                | XADD x 100-1 f1 v1
        t2   | Sync                              | Sync
        t3   | XRANGE x - + -> [100-1, 100-1]    | XRANGE x - + -> [100-1, 100-1]
    """)  # fmt: skip


def test_strict_mode_rejects_full_ids_and_takes_milliseconds(make_world: Make) -> None:
    world = make_world(2)
    for region in world:
        with pytest.raises(redis.ResponseError):
            world[region].execute_command("XADD", "x", "100-1", "f1", "v1")
    play(world, """
        time | region 1                          | region 2
        t1   | XADD x 100 f1 v1                  | XADD x 100 f1 v1
        t2   | Sync                              | Sync
        t3   | XRANGE x - + -> [100-1, 100-2]    | XRANGE x - + -> [100-1, 100-2]
    """)  # fmt: skip


def test_liberal_mode_makes_milliseconds_sequence_zero(make_world: Make) -> None:
    play(make_world(2, id_mode="liberal"), """
        time | region 1                          | region 2
        t1   | XADD x 100 f1 v1                  | XADD x 100 f1 v1
        t2   | Sync                              | Sync
        t3   | XRANGE x - + -> [100-0, 100-0]    | XRANGE x - + -> [100-0, 100-0]
    """)  # fmt: skip


def test_xread_with_one_id_skips_what_arrives_late(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                                               | region 2
        t1   | XADD x 110 f1 v1                                       | XADD x 115 f1 v1
        t2   | XADD x 120 f1 v1                                       |
        t3   | XADD x 130 f1 v1                                       |
        t4   | XREAD COUNT 2 STREAMS x 0 -> [110-1, 120-1]            |
        t5   | Sync                                                   | Sync
        t6   | XREAD COUNT 2 STREAMS x 120-1 -> [130-1]               |
        t7   | XREAD STREAMS x 0 -> [110-1, 115-2, 120-1, 130-1]      | XREAD STREAMS x 0 -> [110-1, 115-2, 120-1, 130-1]
    """)  # fmt: skip


def test_xreadgroup_skips_nothing_that_arrives_late(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                                                     | region 2
        t1   | XADD x 110 f1 v1                                             | XADD x 115 f1 v1
        t2   | XADD x 120 f1 v1                                             |
        t3   | XGROUP CREATE x g 0                                          |
        t4   | XREADGROUP GROUP g a COUNT 2 STREAMS x > -> [110-1, 120-1]   |
        t5   | Sync                                                         | Sync
        t6   | XREADGROUP GROUP g a COUNT 2 STREAMS x > -> [115-2]          |
    """)  # fmt: skip


def test_groups_created_apart_are_in_both_regions(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                            | region 2
        t1   | XGROUP CREATE x group1 0            | XGROUP CREATE x group2 0
        t2   | XINFO GROUPS x -> [group1]          | XINFO GROUPS x -> [group2]
        t3   | Sync                                | Sync
        t4   | XINFO GROUPS x -> [group1, group2]  | XINFO GROUPS x -> [group1, group2]
    """)  # fmt: skip


def test_a_deletion_wins_over_a_group_it_had_not_seen(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                     | region 2
        t1   | XGROUP CREATE x group1 0     |
        t2   | Sync                         | Sync
        t3   | XINFO GROUPS x -> [group1]   | XINFO GROUPS x -> [group1]
        t4   | DEL x                        | XGROUP CREATE x group2 0
        t5   | Sync                         | Sync
        t6   | EXISTS x -> 0                | EXISTS x -> 0
    """)  # fmt: skip


def test_a_destruction_wins_over_a_creation_it_had_not_seen(make_world: Make) -> None:
    world = make_world(3)
    play(world, """
        time | region 1                     | region 2                     | region 3
        t1   | XGROUP CREATE x group1 0     |                              |
        t2   | Sync                         | Sync                         |
        t3   | XINFO GROUPS x -> [group1]   | XINFO GROUPS x -> [group1]   |
        t4   |                              | XGROUP DESTROY x group1      | XGROUP CREATE x group1 0
        t5   | Sync                         | Sync                         | Sync
        t6   | EXISTS x -> 0                | EXISTS x -> 0                | EXISTS x -> 0
    """)  # fmt: skip


def test_region_3_sees_no_group_before_its_sync(make_world: Make) -> None:
    world = make_world(3)
    world[1].execute_command("XGROUP", "CREATE", "x", "group1", "0")
    world.sync([1, 2])
    with pytest.raises(redis.ResponseError, match="no such key"):
        world[3].execute_command("XINFO", "GROUPS", "x")


def test_groups_travel_and_consumers_stay(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                                                         | region 2
        t1   | XADD messages 110 text hello                                     |
        t2   | XGROUP CREATE messages group1 0                                  |
        t3   | XREADGROUP GROUP group1 Alice STREAMS messages > -> [110-1]      |
        t4   | Sync                                                             | Sync
        t5   | XRANGE messages - + -> [110-1]                                   | XRANGE messages - + -> [110-1]
        t6   | XINFO GROUPS messages -> [group1]                                | XINFO GROUPS messages -> [group1]
        t7   | XINFO CONSUMERS messages group1 -> [Alice]                       | XINFO CONSUMERS messages group1 -> []
        t8   | XPENDING messages group1 - + 1 -> [110-1]                        | XPENDING messages group1 - + 1 -> []
    """)  # fmt: skip


ACKED = """
    time | region 1                                                            | region 2
    t1   | XADD x 110-0 f1 v1                                                  |
    t2   | XADD x 120-0 f1 v1                                                  |
    t3   | XADD x 130-0 f1 v1                                                  |
    t4   | XGROUP CREATE x group1 0                                            |
    t5   | XREADGROUP GROUP group1 Alice STREAMS x > -> [110-0, 120-0, 130-0]  |
    t6   | XACK x group1 110-0                                                 |
    t7   | Sync                                                                | Sync
"""


def test_an_acknowledgement_travels_once_all_before_it_are_acknowledged(make_world: Make) -> None:
    world = make_world(2, id_mode="semi-strict")
    play(world, ACKED)
    assert last_delivered(world, 2) == "110-0"
    play(world, """
        time | region 1               | region 2
        t8   | XACK x group1 130-0    |
        t9   | Sync                   | Sync
    """)  # fmt: skip
    assert last_delivered(world, 2) == "110-0"
    play(world, """
        time | region 1               | region 2
        t10  | XACK x group1 120-0    |
        t11  | Sync                   | Sync
        t12  |                        | XREADGROUP GROUP group1 Alice STREAMS x > -> []
    """)  # fmt: skip
    assert last_delivered(world, 2) == "130-0"


def test_after_redirection_only_what_was_not_acknowledged_is_read_again(make_world: Make) -> None:
    world = make_world(2, id_mode="semi-strict")
    play(world, ACKED)
    play(world, """
        time | region 1 | region 2
        t8   |          | XREADGROUP GROUP group1 Alice STREAMS x > -> [120-0, 130-0]
    """)  # fmt: skip


def last_delivered(world: World, region: int) -> str:
    [group] = world[region].xinfo_groups("x")
    return str(group["last-delivered-id"])


def test_xsetid_fails_when_the_new_id_is_less_than_the_current_one(make_world: Make) -> None:
    world = make_world(2)
    play(world, """
        time | region 1           | region 2
        t1   |                    | XADD x 115 f1 v1
        t2   | XADD x 110 f1 v1   |
        t3   | Sync               | Sync
    """)  # fmt: skip
    for region in world:
        with pytest.raises(redis.ResponseError, match="smaller"):
            world[region].execute_command("XSETID", "x", "112-0")
        assert world[region].execute_command("XSETID", "x", "200-0")
    world.sync()
    for region in world:
        with pytest.raises(redis.ResponseError):
            world[region].execute_command("XADD", "x", "150", "f1", "v1")


def test_rename_drops_the_groups_in_every_region(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                           | region 2
        t1   | XADD x 110 f1 v1                   |
        t2   | XGROUP CREATE x group1 0           |
        t3   | Sync                               | Sync
        t4   | RENAME x y                         |
        t5   | Sync                               | Sync
        t6   | EXISTS x -> 0                      | EXISTS x -> 0
        t7   | XRANGE y - + -> [110-1]            | XRANGE y - + -> [110-1]
        t8   | XINFO GROUPS y -> []               | XINFO GROUPS y -> []
    """)  # fmt: skip


def test_group_setid_and_consumers_stay_in_their_region(make_world: Make) -> None:
    play(make_world(2), """
        time | region 1                                      | region 2
        t1   | XADD x 110 f v                                |
        t2   | XADD x 120 f v                                |
        t3   | XGROUP CREATE x g 0                           |
        t4   | XGROUP SETID x g 120-1                        |
        t5   | Sync                                          | Sync
        t6   | XREADGROUP GROUP g a STREAMS x > -> []        | XREADGROUP GROUP g a STREAMS x > -> [110-1, 120-1]
        t7   | XGROUP DELCONSUMER x g a                      |
        t8   | Sync                                          | Sync
        t9   | XINFO CONSUMERS x g -> []                     | XINFO CONSUMERS x g -> [a]
    """)  # fmt: skip

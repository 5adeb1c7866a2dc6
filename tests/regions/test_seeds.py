"""What `make simulate` has found, told shortly."""

from tests.support.rolling_back import Make, assert_alike, ids, meet_again, write


def test_a_relay_leaves_deletions_beyond_memory_to_their_region(make_world: Make) -> None:
    """Region 1 has region 3's strand from region 2, which had deleted an entry: it cannot say which."""
    world = make_world(3)
    first, gone, last = write(world, 3, "a", "b", "c")
    world.ship(3, 2, "x")
    [other] = write(world, 2, "d")
    world[2].xdel("x", gone)
    world[2].xdel("x", other)
    with world.engines[1].client() as engine:
        engine.xtrim("bs:2:j:{x}", maxlen=1, approximate=False)
    world.ship(2, 1, "x", relay=True)
    world.ship(1, 3, "x", relay=True)
    assert_alike(world, [first, last])


def test_a_trim_of_a_strand_that_was_there_before_and_went_reaches_the_peers(make_world: Make) -> None:
    """The strand came with a group and went with it, before a link had read it. Then it comes again."""
    world = make_world(2)
    world[1].xgroup_create("x", "first", id="0", mkstream=True)
    world.ship(1, 2, "x")
    world[2].xgroup_destroy("x", "first")
    world.ship(2, 1, "x")
    world[1].xgroup_create("x", "second", id="0", mkstream=True)
    world.ship(1, 2, "x")
    write(world, 2, "a", "b", "c")
    world.ship(2, 1, "x")
    world[2].xtrim("x", maxlen=1, approximate=False)
    meet_again(world)
    assert_alike(world, ids(world, 2))
    assert len(ids(world, 1)) == 1

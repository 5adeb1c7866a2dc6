"""`braid spark archive --group lake`: the archive is a group, so that ACKED keeps what is not in the lake."""

from tests.support.lakes import Run, add, archived
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.world import World


def trim(world: World, region: int) -> int:
    with world.answering():
        return int(world[region].execute_command("XTRIM", "orders", "MAXLEN", 0, "ACKED"))


def test_acked_keeps_what_is_not_in_the_lake_in_every_region(archive: Run, lake: str, engine: Engine) -> None:
    with Engine() as two:
        world = World([engine, two])
        try:
            add(world[1], *range(6))
            add(world[2], *range(6, 8))
            archive(group=b"lake", max_entries=4)
            assert trim(world, 2) == 0, "the group has not arrived there"
            done = len(archived(lake))
            assert 0 < done < 6
            assert trim(world, 1) == done
            world.sync()
            assert trim(world, 2) == 0
            archive(group=b"lake")
            world.sync()
            assert trim(world, 2) == 8 - done
            world.sync()
            assert [world[region].xlen("orders") for region in (1, 2)] == [0, 0]
        finally:
            world.close()
    assert archived(lake) == [*range(8)]


def test_a_stream_of_which_nothing_is_archived_yet_has_the_group_too(archive: Run, engine: Engine) -> None:
    become(engine)
    with client_of(engine) as client:
        add(client, 0)
        archive(group=b"lake")
        client.xgroup_destroy("orders", "lake")
        add(client, 1)
        archive(group=b"lake")
        [group] = client.xinfo_groups("orders")
        assert (group["name"], group["lag"]) == (b"lake", 0)


def test_plain_streams_have_the_group_as_well(archive: Run, engine: Engine) -> None:
    with engine.client() as client:
        for number in range(3):
            client.xadd("orders", {"n": number})
        archive(group=b"lake")
        [group] = client.xinfo_groups("orders")
        assert group["last-delivered-id"] == client.xinfo_stream("orders")["last-generated-id"]

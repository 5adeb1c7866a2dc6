"""Moves the home of the log `log` between the regions of a test's world."""

import braidstream
from braidstream.operations import log_upkeep
from tests.support.world import World


def end_epoch(world: World, to: int, *, force: bool = False, home: int = 1) -> int:
    place = world[to if force else home]
    registry = place.run_plan(log_upkeep.read_log(b"log"))
    return place.run_plan(log_upkeep.end_epoch(b"log", log_upkeep.home_of(registry), to, force=force))


def rescue(world: World, old: int, new: int) -> int:
    """What `braid log rescue` does for one former home."""
    done = 0
    registry = world[new].run_plan(log_upkeep.read_log(b"log"))
    for strand, end in log_upkeep.lost_tails(b"log", registry, old):
        while entries := world[old].run_plan(log_upkeep.read_tail(strand, end)):
            done += world[new].run_plan(log_upkeep.append_tail(b"log", (strand, end), entries))
            assert world[new].run_plan(log_upkeep.append_tail(b"log", (strand, end), entries)) == 0
            world[old].run_plan(log_upkeep.delete_tail(strand, entries))
    return done


def write(client: braidstream.Redis, *entries: str) -> list[int]:
    offsets = client.twrite("log", entries=[("t", entry) for entry in entries])
    return list(offsets)


def bodies(world: World, region: int) -> list[str | None]:
    return [row and row[2] for row in world[region].tread("log", 1, 1_000)]

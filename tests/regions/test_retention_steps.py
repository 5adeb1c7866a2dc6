"""Single steps of retention, without daemons."""

import time

from braidstream.model import keys
from braidstream.model.retention_policy import Policy
from braidstream.model.strand import Strand
from braidstream.operations.retention_trim import Due, Step, find_due, trim_step
from braidstream.plan.ask_peers import Needs
from braidstream.plan.lookup import read_ms
from tests.support.rolling_back import Make
from tests.support.world import World

DAY_MS = 86_400_000


def due(world: World, *words: str) -> tuple[Due, int]:
    policy = Policy.parse((1, 0), [b"streams", b"x", *(word.encode() for word in words)])
    now_ms = world[1].run_plan(read_ms())
    [found], _ = world[1].run_plan(find_due({b"x": policy}, now_ms))
    return found, now_ms


def carry_out(world: World, *words: str) -> int:
    found, now_ms = due(world, *words)
    removed = 0
    while (step := world[1].run_plan(trim_step(found, Needs(), now_ms))).removed:
        removed += step.removed
    return removed


def size(world: World) -> int:
    with world.engines[0].client() as client:
        strands = [Strand(b"x", kind, 1) for kind in (keys.GENERATED, keys.CHOSEN)]
        return sum(client.memory_usage(strand.key, samples=0) or 0 for strand in strands)


def write_at(world: World, ms: int, entries: int, width: int) -> None:
    with world[1].pipeline(transaction=False) as pipe:
        for number in range(entries):
            pipe.xadd("x", {"n": "x" * width}, id=f"{ms + number}-1")
        pipe.execute()


def test_nothing_goes_after_the_last_group_was_destroyed(make_world: Make) -> None:
    """As when a group is destroyed and created again, to read everything once more."""
    world = make_world(1)
    world[1].xgroup_create("x", "jobs", "0", mkstream=True)
    world[1].xadd("x", {"n": 1})
    found, now_ms = due(world, "acked", "1")
    world[1].xgroup_destroy("x", "jobs")
    assert world[1].run_plan(trim_step(found, Needs(), now_ms)) == Step()
    assert world[1].xlen("x") == 1


def test_max_bytes_removes_little_of_a_burst(make_world: Make) -> None:
    """Most of the stream was written in a moment of the time that it spans."""
    world, now_ms = make_world(1, id_mode="liberal"), round(time.time() * 1000)
    write_at(world, now_ms - 30 * DAY_MS, 2_000, 3_000)
    write_at(world, now_ms - 1_000, 10, 10)
    most = size(world) * 95 // 100
    carry_out(world, "max-bytes", f"{most}")
    assert 0.9 * most < size(world) <= most


def test_max_bytes_removes_little_before_an_entry_of_the_future(make_world: Make) -> None:
    world, now_ms = make_world(1, id_mode="liberal"), round(time.time() * 1000)
    write_at(world, now_ms - 10_000, 5_000, 10)
    write_at(world, now_ms + 1_000 * DAY_MS, 1, 10)
    most = size(world) * 2 // 3
    carry_out(world, "max-bytes", f"{most}")
    assert 0.9 * most < size(world) <= most


def test_hold_removes_nothing_that_max_bytes_leaves(make_world: Make) -> None:
    world, now_ms = make_world(1, id_mode="liberal"), round(time.time() * 1000)
    world[1].xgroup_create("x", "jobs", "0", mkstream=True)
    write_at(world, now_ms - DAY_MS, 2_000, 100)
    most = size(world) * 95 // 100
    carry_out(world, "max-bytes", f"{most}", "acked", "1", "hold", "1h")
    assert 0.9 * most < size(world) <= most

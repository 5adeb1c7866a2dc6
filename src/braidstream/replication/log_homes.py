"""Moves the home of a log between two regions, and rescues what a former home wrote late: `braid log`.

    move      1  the new home gets what it lacks, while writers go on
              2  the old home is sealed; no region can write until step 3
              3  the new home learns of its epoch, and gets the rest; writers go on there. It accepts messages
                 (TWRITE IDMP) when it has the journals of all former homes (lua/log_move.lua)
    rescue    1  the former home learns that its epoch is over, and is sealed
              2  page by page: append at the home, once; delete at the former home

Everything here can be killed between any two steps and run again.
"""

from braidstream.admin import log_moves
from braidstream.model.meta import Registry
from braidstream.model.offset_log import Epoch
from braidstream.protocol.identify import read_any_region
from braidstream.replication.endpoint import PlanRunner
from braidstream.replication.link import Link


async def link_of(source: PlanRunner, target: PlanRunner) -> Link:
    """A link that is not a daemon's."""
    here, there = await source.run(read_any_region()), await target.run(read_any_region())
    return Link(source, target, here=here, there=there)


async def move_home(name: bytes, source: PlanRunner, target: PlanRunner, *, epoch: Epoch, to: int) -> int:
    """Move the home from `source` to `target`, whose number is `to`. Returns the first offset there."""
    registry: Registry = await source.run(log_moves.read_log(name))
    link = await link_of(source, target)
    relay = bool({each.writer for each in registry.epochs} - {epoch.writer, to})  # what other homes wrote
    for _ in range(2):  # the second time brings little, so that writers do not wait for it
        await link.sync(name, relay=relay)
    first = await source.run(log_moves.end_epoch(name, epoch, to, force=False))
    await link.sync(name, relay=relay)
    return first


async def rescue(name: bytes, old: PlanRunner, home: PlanRunner, *, writer: int) -> int:
    """Append at the home what region `writer` wrote after its epochs had ended. Returns how many entries."""
    await (await link_of(home, old)).sync(name)  # it seals its strand when it learns of the next epoch
    return await rescue_tails(name, old, home, writer=writer)


async def rescue_tails(name: bytes, old: PlanRunner, home: PlanRunner, *, writer: int) -> int:
    """The same if region `writer` knows that its epochs have ended. It may be the home again."""
    registry: Registry = await home.run(log_moves.read_log(name))
    done = 0
    for strand, end in log_moves.lost_tails(name, registry, writer):
        while entries := await old.run(log_moves.read_tail(strand, end)):
            done += await home.run(log_moves.append_tail(name, (strand, end), entries))
            await old.run(log_moves.delete_tail(strand, entries))
    return done

"""The end of a storm: every request arrives or is lost, then links run until nothing moves."""

from collections.abc import Sequence
from random import Random
from typing import Final

from braidstream.replication.detect.sweep import differing
from tests.long.simulation.network import Line, Network
from tests.long.simulation.witness import NAMES

ROUNDS: Final = 15
FACTS: Final = ("entries", "merged", "trimmed", "deletions", "waiting")


async def calm(network: Network, dice: Random) -> None:
    """What is under way arrives or is lost."""
    # While one line is cut, another may send what it had prepared.
    while busy := [line for line in network.lines if line.busy]:
        await network.cut(busy[0].parked[0], dice.choice(("lose", "cut")))
    while network.late:
        network.arrive(dice.choice(network.late))


async def settle(network: Network, lines: list[Line], names: Sequence[str] = NAMES) -> None:
    """Links run until nothing moves."""
    for _ in range(ROUNDS):
        if not await one_round(network, lines, names):
            return
    raise AssertionError(f"links still move after {ROUNDS} rounds")


async def one_round(network: Network, lines: list[Line], names: Sequence[str] = NAMES) -> bool:
    """Whether something moved, or waits for what another link brings."""
    moved = False
    for line in lines:
        for name in names:
            line.name, line.dead = name, False
            ends = line.link.source, line.link.target
            differ = await differing([name.encode()], line.link.here.writers, *ends)
            progress = await line.link.sync(name.encode())
            if progress.moved and not differ:
                raise AssertionError(f"{line}: a glance at {name} shows nothing: {progress}")
            if progress.moved or progress.waiting:
                found = {fact: getattr(progress, fact) for fact in FACTS if getattr(progress, fact)}
                network.tell(f"{line} sync {name}", str(found))
            moved = moved or progress.moved or progress.waiting
    return moved

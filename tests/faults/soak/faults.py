"""What goes wrong and when. The same seed gives the same schedule; what it hits differs from run to run."""

import random
from dataclasses import dataclass
from typing import Final

# Each kind, the sort of target it needs, and how long it lasts at most.
KINDS: Final = {
    "daemon killed": ("daemon", 3.0),
    "daemon paused": ("daemon", 8.0),
    "engine killed": ("engine", 3.0),
    "engine paused": ("engine", 5.0),
    "memory full": ("engine", 5.0),
    "link cut": ("link", 6.0),
    "link silent": ("link", 6.0),
}
# A silent connection is given up after 10 s: now and then something lasts longer than that.
LONG_S: Final = 13.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, from `at_s` for `lasts_s`. where: a region, or both ends of a link."""

    at_s: float
    lasts_s: float
    kind: str
    where: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'>'.join(map(str, self.where))}"

    @property
    def target(self) -> tuple[object, ...]:
        return (KINDS[self.kind][0], *self.where)


def schedule(seed: int, seconds: float, regions: int) -> list[Fault]:
    """Every kind once in some order, then any, until the time is over. No target suffers two at once."""
    dice = random.Random(seed)
    first = list(KINDS)
    dice.shuffle(first)
    faults, busy, at_s = list[Fault](), dict[object, float](), 0.5
    while at_s < seconds - 2:
        kind = first[0] if first else dice.choice(list(KINDS))
        where = tuple(dice.sample(range(1, regions + 1), 2 if KINDS[kind][0] == "link" else 1))
        lasts_s = dice.uniform(0.3, KINDS[kind][1])
        if seconds > 100 and "killed" not in kind and dice.random() < 0.1:
            lasts_s = LONG_S
        fault = Fault(at_s, min(lasts_s, seconds - at_s), kind, where)
        if busy.get(fault.target, 0.0) < at_s:
            faults.append(fault)
            busy[fault.target] = at_s + lasts_s + 0.5
            first = first[1:]
        at_s += dice.uniform(0.5, 2.5)
    return faults

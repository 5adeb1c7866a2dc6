"""What goes wrong and when. The same seed gives the same schedule; what it hits differs from run to run."""

import random
from collections.abc import Sequence
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
    "writes refused": ("engine", 5.0),
    "clock stepped": ("engine", 8.0),
    "planned failover": ("engine", 1.0),
    "replica promoted": ("engine", 4.0),
    "old primary lives on": ("engine", 6.0),
    "engine emptied": ("engine", 3.0),
    "part lost": ("engine", 3.0),
    "backup restored": ("engine", 6.0),
}
# A region loses something. Only one at a time: what two regions lose at once, no other may have. Nor while a
# clock steps, or just after it: the daemons must have noted it (docs/design/guarantees.md).
LOSSES: Final = ("replica promoted", "old primary lives on", "engine emptied", "part lost", "backup restored")
CLOCK: Final = "clock stepped"
# The target of all of them: one at a time.
LOSS: Final = "loss"
HOUR_S: Final = 3600.0
# A silent connection is given up after 10 s: now and then something lasts longer than that.
LONG_S: Final = 13.0
# How long a target is left alone afterwards; after a loss replicas and regions copy what they lack.
RECOVERY_S: Final = {**dict.fromkeys((*LOSSES, "planned failover"), 5.0), CLOCK: 2.5}


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
    def targets(self) -> list[object]:
        """What it hits. Nothing is hit by two at once."""
        return [(KINDS[self.kind][0], *self.where), *([LOSS] if self.kind in (*LOSSES, CLOCK) else [])]

    @property
    def step_s(self) -> float:
        """How far a clock steps."""
        return random.Random(self.at_s).choice((-HOUR_S, -60.0, -10.0, 10.0, 60.0, HOUR_S))


def schedule(seed: int, seconds: float, regions: int, kinds: Sequence[str] = tuple(KINDS)) -> list[Fault]:
    """Every kind once in some order, then any, until the time is over. No target suffers two at once."""
    dice = random.Random(seed)
    first = list(kinds)
    dice.shuffle(first)
    faults, busy, at_s = list[Fault](), dict[object, float](), 0.5
    while at_s < seconds - 2:
        kind = first[0] if first else dice.choice(kinds)
        where = tuple(dice.sample(range(1, regions + 1), 2 if KINDS[kind][0] == "link" else 1))
        lasts_s = dice.uniform(0.3, KINDS[kind][1])
        if seconds > 100 and "killed" not in kind and dice.random() < 0.1:
            lasts_s = LONG_S
        fault = Fault(at_s, min(lasts_s, seconds - at_s), kind, where)
        if all(busy.get(target, 0.0) < at_s for target in fault.targets):
            faults.append(fault)
            busy |= dict.fromkeys(fault.targets, at_s + lasts_s + RECOVERY_S.get(kind, 0.5))
            first = first[1:]
        at_s += dice.uniform(0.5, 2.5)
    return faults

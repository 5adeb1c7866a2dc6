"""Shrinks a failure to the smallest script that still shows the difference, as commands to type."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from tests.oracle.differential.generator import VALUES
from tests.oracle.differential.report import Mismatch, Tally, retold
from tests.oracle.differential.runner import Run
from tests.oracle.differential.script import Call, Script, Step
from tests.oracle.differential.sides import Said, Servers

SHRINK_S: Final = 60


def compare(servers: Servers, script: Script, tally: Tally) -> None:
    """Run a script; if the sides differ, fail with the smallest script that still shows it."""
    run = Run(servers, script, tally)
    try:
        run.all()
    except Mismatch as error:
        small, story, found = shrink(servers, script, run.sides.story, error)
        listing = "\n".join(map(retold, story))
        found.args = (
            f"{found}\n\nThe smallest sequence found, RESP{small.protocol}, stream-node-max-entries "
            f"{small.node_entries}:\n{listing}\n\nas data:\n{small.steps}",
        )
        raise found from None


def shrink(
    servers: Servers, script: Script, story: list[Said], error: Mismatch, *, within_s: float = SHRINK_S
) -> tuple[Script, list[Said], Mismatch]:
    """Drop steps, large runs of them first, while the sides still differ; then make steps smaller."""
    deadline = time.monotonic() + within_s
    best = (script, story, error)

    def differs(steps: Sequence[Step]) -> bool:
        nonlocal best
        run = Run(servers, replace(script, steps=tuple(steps)), Tally())
        try:
            run.all()
        except Mismatch as found:
            best = (run.script, run.sides.story, found)
            return True
        return False

    size = len(script.steps)
    while size and time.monotonic() < deadline:
        dropped = False
        for start in range(max(len(best[0].steps) - size, 0), -1, -size):
            steps = best[0].steps
            dropped |= differs(steps[:start] + steps[start + size :])
            if time.monotonic() > deadline:
                break
        if not dropped or size > 1:
            size = 0 if size == 1 else max(size // 2, 1)
    smaller = _smaller(best[0].steps)
    while time.monotonic() < deadline and (attempt := next(smaller, None)) is not None:
        if differs(attempt):
            smaller = _smaller(best[0].steps)
    return best


def _smaller(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Short values; pipelines with fewer commands; commands on their own; one client."""
    short = tuple(replace(step, calls=tuple(map(_short, step.calls))) for step in steps)
    if short != steps:
        yield short
    for at, step in enumerate(steps):
        before, after, half = steps[:at], steps[at + 1 :], len(step.calls) // 2
        if half > 3:
            yield (*before, replace(step, calls=step.calls[:half]), *after)
            yield (*before, replace(step, calls=step.calls[half:]), *after)
        for drop in range(len(step.calls) if 1 < len(step.calls) < 20 else 0):
            yield (*before, replace(step, calls=step.calls[:drop] + step.calls[drop + 1 :]), *after)
        if len(step.calls) == 1 and step.mode != "single":
            yield (*before, replace(step, mode="single"), *after)
        if step.who:
            yield (*before, replace(step, who=0), *after)


def _short(call: Call) -> Call:
    long = [value for value in VALUES if len(value) > 3]
    long += [value.swapcase() for value in long]
    return tuple(b"v" if word in long else word for word in call)

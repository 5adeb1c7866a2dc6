"""Which engines a test runs on in CI, and in which order tests run.

    every   marked `every_engine`: tests of what engines do differently, on all that their fixture names
    newest  tests of processes, option words and pages, which hardly depend on the engine: the newest Redis
    turns   all others: one engine each, by the test's name, so that together they run on all
    nightly marked `nightly`: slow ones, of which a quicker test or another variant shows the most; not in CI

BRAID_ENGINE, or BRAID_ENGINE=all for all four, runs every test on the engines that it names. The nightly
workflow does, with BRAID_NIGHTLY=1.
"""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.servers import EVERY

# Searches are larger then.
NIGHTLY: Final = "BRAID_NIGHTLY" in os.environ
TESTS: Final = Path(__file__).resolve().parents[1]
NEWEST: Final = "redis-8.10"
ON_NEWEST: Final = {"cli", "console"}
# They wait for processes, or search for long, as do tests that are marked `long`. The others take moments.
LONG: Final = {"cli", "other_clients", "console", "docs", "long", "spark"}


def thin(metafunc: pytest.Metafunc) -> None:
    """Run a test on the engines that it needs, of those that its fixture names."""
    test = metafunc.definition
    for name, fixtures in metafunc._arg2fixturedefs.items():
        named = any(name == mark.args[0] for mark in test.iter_markers("parametrize"))
        engines = fixtures[-1].params or ()
        if engines and set(engines) <= {*EVERY} and not named:
            test.add_marker(pytest.mark.parametrize(name, _engines(test, engines), indirect=True))


def _engines(test: pytest.Item, engines: Sequence[Any]) -> Sequence[Any]:
    if "BRAID_ENGINE" in os.environ or len(engines) < 2 or test.get_closest_marker("every_engine"):
        return engines
    if folder_of(test.path) in ON_NEWEST and NEWEST in engines:
        return [NEWEST]
    name = test.nodeid.encode()
    return [engines[zlib.crc32(name) % len(engines)]]  # the same in every process


def mark_long(items: list[pytest.Item]) -> None:
    """`make test-fast` leaves them out."""
    for item in items:
        if folder_of(item.path) in LONG:
            item.add_marker(pytest.mark.long)


def leave_to_the_night(items: list[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("nightly"):
            reason = f"the nightly workflow runs it (BRAID_NIGHTLY=1). {mark.args[0]}"
            item.add_marker(pytest.mark.skipif(not NIGHTLY, reason=reason))


def keep_together(items: list[pytest.Item]) -> None:
    """Tests with the Spark session, or with one fixture of a module, run in one worker, one by one."""
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)
        if fixtures is None:
            continue
        found = [each for several in fixtures.name2fixturedefs.values() for each in several]
        params = getattr(getattr(item, "callspec", None), "params", {})
        shared = [params.get(each.argname, "") for each in found if each.scope == "module"]
        if "spark" in fixtures.names_closure:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif shared:
            name = "-".join([item.path.stem, *map(str, shared)])
            item.add_marker(pytest.mark.xdist_group(name))


def spread(items: list[pytest.Item]) -> None:
    """Long tests between short ones, and none among the last fifth: no worker is left alone with one."""
    long = [item for item in items if item.get_closest_marker("long")]
    short = [item for item in items if not item.get_closest_marker("long")]
    placed = [(0.8 * at / len(long), item) for at, item in enumerate(long)]
    placed += [(at / len(short), item) for at, item in enumerate(short)]
    placed.sort(key=lambda each: each[0])
    items[:] = [item for _, item in placed]


def folder_of(path: Path) -> str:
    """That of a test, below tests/."""
    return path.relative_to(TESTS).parts[0]

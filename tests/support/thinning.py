"""Which engines a slow test runs on in CI: two of the four, other ones for other tests.

Together the tests of a folder run on every engine, each of them on the oldest of one family and the newest of
the other. BRAID_ENGINE, or BRAID_ENGINE=all for all four, runs every test on the engines that were asked for.
"""

import os
import zlib
from pathlib import Path

import pytest

PAIRS = (("redis-7.0", "valkey-9.1"), ("redis-8.10", "valkey-8.0"))


def keep_two_engines(config: pytest.Config, items: list[pytest.Item], folder: Path) -> None:
    if "BRAID_ENGINE" in os.environ:
        return
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        engine = getattr(item, "callspec", None) and item.callspec.params.get("flavour")  # type: ignore[attr-defined]
        name = getattr(item, "originalname", item.name)
        pair = PAIRS[zlib.crc32(name.encode()) % len(PAIRS)]
        wanted = engine is None or folder not in item.path.parents or engine in pair
        (kept if wanted else left_out).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)

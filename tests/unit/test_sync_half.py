"""The rewriting of asyncio code to code that blocks: scripts/sync_half.py."""

from pathlib import Path

import pytest

from scripts.sync_half import HALVES, blocking, page


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("async def f() -> None:\n    await g(a)\n", "def f() -> None:\n    g(a)\n"),
        ("x = await awaited(g(a)[0], (b))\n", "x = g(a)[0], (b)\n"),
        ("def f() -> Awaitable[list[int]]: ...\n", "def f() -> list[int]: ...\n"),
        ("async with a as b:  # await\n    'async'\n", "with a as b:  # await\n    'async'\n"),
        ("awaited = [await f(x) for x in y]\n", "awaited = [f(x) for x in y]\n"),
        ("class A(AsyncReading, redis.asyncio.Redis): ...\n", "class A(Reading, redis.Redis): ...\n"),
    ],
)
def test_awaits_and_wrappers_go(source: str, wanted: str) -> None:
    assert blocking(source) == wanted


@pytest.mark.parametrize("path", HALVES, ids=lambda path: path.name)
def test_nothing_is_awaited_in_a_file_that_blocks(path: Path) -> None:
    text = page(path)
    assert not any(word in text for word in ("async ", "await ", "Async", "import asyncio"))

"""Waiting for a condition, or failing with a sentence."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], *, within_s: float, why: str) -> T:
    """Return the first true value of `check`; fail with `why` and the last value if none comes in time.

    A check that takes long runs more rarely: what the test waits for needs the processor too.
    """
    deadline = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        seen = check()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            raise AssertionError(f"{why}: not within {within_s} s, last seen {seen!r}")
        took_s = time.monotonic() - began
        time.sleep(min(max(0.01, 4 * took_s), 0.25))

"""The `braid` command as a process, as a user starts it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

BRAID: Final = (sys.executable, "-m", "braidstream.cli.main")


def braid(
    *words: str, within_s: float = 60, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end. env: more environment variables."""
    return subprocess.run(
        [*BRAID, *words], capture_output=True, text=True, timeout=within_s, env={**os.environ, **(env or {})}
    )

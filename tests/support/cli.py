"""The `braid` command as a process, as a user starts it."""

import subprocess
import sys
from typing import Final

BRAID: Final = (sys.executable, "-m", "braidstream.cli.main")


def braid(*words: str, within_s: float = 60) -> "subprocess.CompletedProcess[str]":
    """Run it to its end."""
    return subprocess.run([*BRAID, *words], capture_output=True, text=True, timeout=within_s)

"""The `braid` command as a process, run to its end."""

import subprocess
from collections.abc import Mapping

from tests.support.forked import BRAID, braid_process

__all__ = ["BRAID", "braid"]


def braid(
    *words: str, within_s: float = 60, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run it to its end. env: more environment variables."""
    pipe = subprocess.PIPE
    with braid_process(words, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            said, errors = process.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess([*BRAID, *words], process.returncode, said, errors)

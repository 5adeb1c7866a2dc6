"""Constructors and methods show their types: mypy --strict on a program that uses braidstream."""

import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).resolve().parents[2]


def test_mypy_finds_the_marked_errors_and_no_others() -> None:
    wanted = {}
    for number, line in enumerate(PROGRAM.read_text(encoding="utf-8").splitlines(), 1):
        if marked := re.search(r"# E: (.*)", line):
            wanted[number] = marked[1]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(PROGRAM)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    seen = {int(line.split(":")[1]): line for line in run.stdout.splitlines() if ": error: " in line}
    assert set(seen) == set(wanted), run.stdout + run.stderr
    assert {number: wanted[number] in seen[number] for number in wanted} == dict.fromkeys(wanted, True), seen

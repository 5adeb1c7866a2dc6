"""Constructors and methods show their types: mypy --strict on a program that uses braidstream."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.reader import blocks

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


def test_the_programs_of_the_workers_guide_pass_mypy_strict(tmp_path: Path) -> None:
    """As one program: each block goes on where the one before ended."""
    program = tmp_path / "guide.py"
    python = [text for kind, text in blocks("docs/guides/worker.md") if kind == "python"]
    program.write_text("\n\n".join(python), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout


WRONG = """
import braidstream

r = braidstream.Redis()
braidstream.Consumer(r, "orders", group="g", concurency=3)
braidstream.Consumer(r, "orders", group="g", attempts="5")
braidstream.Consumer(r, "orders")
"""


def test_mypy_knows_the_arguments_of_a_consumer(tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    program.write_text(WRONG, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    seen = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert [int(line.split(":")[1]) for line in seen.splitlines() if ": error: " in line] == [5, 6, 7], seen

"""tests/support/second_tries.py: a test that passes at the second try is printed, and only a few may."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.second_tries import MOST

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from tests.support.second_tries import SecondTries
def pytest_configure(config): config.pluginmanager.register(SecondTries(config))
"""
FLAKY = """
import pathlib, pytest
@pytest.mark.parametrize("n", range({count}))
def test_late(n):
    first = pathlib.Path(__file__).with_name(f"seen-{{n}}")
    if not first.exists():
        first.touch()
        assert not "at the first try"
"""


@pytest.mark.parametrize(("count", "code"), [(0, 5), (1, 0), (MOST, 0), (MOST + 1, 1)])
def test_a_few_tests_may_pass_at_the_second_try(tmp_path: Path, count: int, code: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_late.py").write_text(FLAKY.format(count=count) if count else "")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--reruns",
        "1",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    done = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert done.stdout.count("failed, runs again: ") == count
    assert done.stdout.count("AssertionError") >= count

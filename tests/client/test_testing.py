"""`braidstream.testing` as tests of users get it: pytest runs on a folder of theirs, in a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import NEWEST, Engine

TESTS = """
import braidstream

def test_a_region_is_there(braid_region: braidstream.Redis) -> None:
    assert braid_region.xlen("orders") == 0
    braid_region.xadd("orders", {"order": 1})
    braid_region.set("plain", 1)

def test_it_is_empty_again(braid_region: braidstream.Redis, braid_url: str) -> None:
    assert braid_region.keys("*") == []
    assert braid_region.xlen("orders") == 0
    assert braid_url.startswith("redis://")
"""


def run(folder: Path, **env: str) -> str:
    (folder / "test_orders.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "BRAID"))}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(
        command, cwd=folder, env={**clean, **env}, capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr


def test_a_server_of_the_path_is_started_and_emptied_between_tests(tmp_path: Path) -> None:
    assert "2 passed" in run(tmp_path)


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_the_server_of_the_environment_is_used_again_and_again(engine: Engine, tmp_path: Path) -> None:
    for _ in range(2):
        assert "2 passed" in run(tmp_path, BRAID_TEST_URL=engine.url, PATH="/nowhere")


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_a_database_with_keys_is_never_touched(engine: Engine, tmp_path: Path) -> None:
    with engine.client() as client:
        client.set("precious", 1)
        said = run(tmp_path, BRAID_TEST_URL=engine.url)
        assert "2 skipped" in said
        assert "tests would delete its keys" in said
        assert client.keys() == [b"precious"]


def test_without_a_server_tests_are_skipped_with_the_reason(tmp_path: Path) -> None:
    said = run(tmp_path, PATH="/nowhere")
    assert "2 skipped" in said
    assert "neither redis-server nor valkey-server is in the PATH" in said
    said = run(tmp_path, BRAID_TEST_URL="redis://user:s3cret@127.0.0.1:1/0")
    assert "2 skipped" in said
    assert "s3cret" not in said

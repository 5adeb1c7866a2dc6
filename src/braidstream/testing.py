"""pytest fixtures that give tests a real region. Installed with braidstream; pytest finds them by itself.

    def test_orders(braid_region: braidstream.Redis) -> None:
        braid_region.xadd("orders", {"order": 1})

The server is the one that BRAID_TEST_URL names, else a redis-server or valkey-server of the PATH, started on
loopback for the test session. If there is none, tests that ask for a region are skipped, with the reason.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

# pytest loads this for every test suite: only a test that uses a fixture pays for the rest.
if TYPE_CHECKING:
    import braidstream

URL_VARIABLE: Final = "BRAID_TEST_URL"
_PROGRAMS: Final = ("redis-server", "valkey-server")
_START_WITHIN_S: Final = 20.0
_ATTEMPTS: Final = 5
_NOT_EMPTY: Final = "{} is not empty, and tests would delete its keys. Use an empty database."


@pytest.fixture(scope="session")
def braid_server() -> Iterator[str]:
    """The URL of a server that is a region, for the whole session."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield _prepared(given)
        return
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(
            f"no region to test with: neither {' nor '.join(_PROGRAMS)} is in the PATH. Install one, or set "
            f"{URL_VARIABLE} to the URL of an empty database."
        )
    with _started(program) as url:
        yield _prepared(url)


@pytest.fixture
def braid_url(braid_server: str) -> Iterator[str]:
    """The URL of an empty region. What the test leaves behind is deleted."""
    import braidstream

    yield braid_server
    with contextlib.suppress(braidstream.ConnectionError), braidstream.Redis.from_url(braid_server) as client:
        _empty(client)


@pytest.fixture
def braid_region(braid_url: str) -> "Iterator[braidstream.Redis]":
    """A client of an empty region, replies as text."""
    import braidstream

    with braidstream.Redis.from_url(braid_url, decode_responses=True) as client:
        yield client


def _prepared(url: str) -> str:
    """Make the database a region, if it is empty or one already."""
    import braidstream
    from braidstream import lua
    from braidstream.engine.address import shown
    from braidstream.model.keys import CONFIG
    from braidstream.operations.membership import initialise
    from braidstream.plan.plan import send_one

    try:
        with braidstream.Redis.from_url(url) as client:
            is_region = bool(client.run_plan(send_one(("EXISTS", CONFIG), resend=True)))
            if not is_region and client.run_plan(send_one(("DBSIZE",), resend=True)):
                pytest.skip(_NOT_EMPTY.format(shown(url)))
            if not is_region:
                client.run_plan(initialise(1, "test"))
            client.run_plan(lua.load())
            if any(True for _ in client.scan_iter(count=1000)):
                pytest.skip(_NOT_EMPTY.format(shown(url)))
    except (braidstream.ConnectionError, braidstream.TimeoutError, braidstream.BraidError) as error:
        pytest.skip(f"{shown(url)} cannot be used as a region: {error}")
    return url


def _empty(client: "braidstream.Redis") -> None:
    """Delete all keys of users. The region stays one."""
    keys = list(client.scan_iter(count=1000))
    for at in range(0, len(keys), 500):
        client.delete(*keys[at : at + 500])


@contextlib.contextmanager
def _started(program: str) -> Iterator[str]:
    """A server on a free port of loopback, without persistence."""
    from braidstream.engine.address import free_port

    with tempfile.TemporaryDirectory(prefix="braid-test-") as folder:
        for attempt in range(_ATTEMPTS):
            port = free_port()
            command = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
            command += ["--save", "", "--appendonly", "no"]
            with (
                open(Path(folder) / "log", "ab") as log,
                subprocess.Popen(command, stdout=log, stderr=log) as server,
            ):
                try:
                    url = f"redis://127.0.0.1:{port}/0"
                    if _answers(url, server):
                        yield url
                        return
                finally:
                    server.terminate()
            if attempt == _ATTEMPTS - 1:
                text = (Path(folder) / "log").read_text(errors="replace")[-500:]
                pytest.skip(f"no region to test with: {program} does not start: {text}")


def _answers(url: str, server: "subprocess.Popen[bytes]") -> bool:
    import braidstream

    until = time.monotonic() + _START_WITHIN_S
    with braidstream.Redis.from_url(url) as client:
        while time.monotonic() < until and server.poll() is None:
            with contextlib.suppress(braidstream.RedisError):
                return bool(client.ping())
            time.sleep(0.02)
    return False

"""node-redis, ioredis and BullMQ, unchanged, against the gateway."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateways import Served

HERE = Path(__file__).parent / "node"


@pytest.mark.parametrize("program", ["node_redis.js", "ioredis.js", "bullmq.js"])
def test_a_javascript_client_produces_consumes_and_retries(served: Served, program: str) -> None:
    if shutil.which("node") is None or not (HERE / "node_modules").exists():
        pytest.skip("node, or its packages, are not here. make setup installs both.")
    run = subprocess.run(
        ["node", program, served.url], cwd=HERE, capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "fine\n", "")

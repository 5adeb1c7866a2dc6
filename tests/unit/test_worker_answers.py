"""What the parent of `braid gateway --workers` hears from a worker in which something fails."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from braidstream.cli.gateway_pool import Worker
from braidstream.cli.gateway_worker import FAMILIES, METRICS, READY, _answer_to


def test_a_worker_whose_metrics_fail_answers_and_serves_on() -> None:
    logged = list[Exception]()

    def families() -> list[Any]:
        raise RuntimeError("odd")

    async def why_not_ready() -> str:
        raise RuntimeError("odd")

    server: Any = SimpleNamespace(
        families=families, why_not_ready=why_not_ready, hub=SimpleNamespace(crashed=logged.append)
    )
    assert FAMILIES.validate_json(asyncio.run(_answer_to(METRICS, server))) == []
    assert json.loads(asyncio.run(_answer_to(READY, server))) == "RuntimeError: odd"
    assert len(logged) == 2


def test_a_worker_whose_answer_is_too_long_is_taken_for_one_that_ended() -> None:
    async def line() -> bytes:
        worker = Worker(SimpleNamespace(number=0))  # type: ignore[arg-type]
        worker._reader = asyncio.StreamReader(limit=10)
        worker._reader.feed_data(b"x" * 100 + b"\n")
        return await worker._line()

    assert asyncio.run(line()) == b""

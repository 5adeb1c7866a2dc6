"""The examples of docs/guides/idempotence.md, run as printed."""

import re
from pathlib import Path
from typing import Any

import redis

import braidstream
from tests.support.servers import Engine

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "idempotence.md"


def test_the_guides_examples_run_and_do_what_it_says(region: braidstream.Redis, engine: Engine) -> None:
    client, named, settings, failover = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, Any] = {
        "redis": redis,
        "us": region,
        "eu": region,
        "order_id": b"1",
        "fields": {"a": "1"},
    }
    exec(client.replace("6379", str(engine.port)), names)
    assert region.xlen("orders") == 1
    for _ in range(2):
        exec(named, names)
    assert region.xlen("orders") == 3
    exec(settings, names)
    info = region.xinfo_stream("orders")
    assert (info["idmp-duration"], info["idmp-maxsize"], info["iids-added"]) == (1000, 100, 3)
    for _ in range(2):
        exec(failover, names)
    assert region.xlen("orders") == 4
    names["r"].close()

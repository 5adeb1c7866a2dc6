"""A lake in a test: rounds of the archive, and what the lake has."""

from collections.abc import Callable
from typing import Any

from braidstream.spark.jobs.archive import Round
from tests.support.microbatch import rows_at_once

Run = Callable[..., Round]


def add(client: Any, *numbers: int, name: str = "orders") -> list[Any]:
    return [client.xadd(name, {"n": n}) for n in numbers]


def archived(lake: str, **options: Any) -> list[int]:
    """What the lake alone has."""
    rows = rows_at_once({"lake": lake, "streams": "orders", **options})
    return sorted(int(row["fields"]["n"]) for row in rows)

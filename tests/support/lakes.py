"""A lake in a test: rounds of the archive, and what the lake has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet

from braidstream.spark.jobs.archive import Round
from tests.support.microbatch import rows_at_once

Run = Callable[..., Round]


def add(client: Any, *numbers: int, name: str = "orders") -> list[Any]:
    return [client.xadd(name, {"n": n}) for n in numbers]


def files_with(lake: str, secret: bytes) -> list[Path]:
    """The files of a lake that contain some bytes, also compressed in Parquet."""
    return [path for path in Path(lake).rglob("*") if path.is_file() and _has(path, secret)]


def _has(path: Path, secret: bytes) -> bool:
    if path.suffix != ".parquet" or "_delta_log" in path.parts:
        return secret in path.read_bytes()
    return secret in repr(pyarrow.parquet.read_table(path).to_pylist()).encode()


def archived(lake: str, **options: Any) -> list[int]:
    """What the lake alone has."""
    rows = rows_at_once({"lake": lake, "streams": "orders", **options})
    return sorted(int(row["fields"]["n"]) for row in rows)

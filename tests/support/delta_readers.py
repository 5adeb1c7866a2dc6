"""Programs that read Delta tables, each in its own way. All give the same rows: (stream, id, fields)."""

from collections.abc import Callable
from typing import Any

import duckdb
import polars
from deltalake import DeltaTable, QueryBuilder
from duckdb_extensions import import_extension

Rows = list[tuple[str, str, tuple[tuple[str, bytes], ...]]]
COLUMNS = ["stream", "id", "fields"]
SQL = "SELECT stream, id, fields FROM "


def _rows(found: list[dict[str, Any]]) -> Rows:
    return sorted(
        (
            row["stream"],
            row["id"],
            tuple((pair["name"], bytes(pair["value"])) for pair in row["fields"]),
        )
        for row in found
    )


def by_duckdb(uri: str) -> Rows:
    """By the Delta kernel, like Spark's newest connectors."""
    import_extension("delta")
    found = duckdb.sql(f"{SQL} delta_scan('{uri}')")
    return _rows([dict(zip(COLUMNS, row, strict=True)) for row in found.fetchall()])


def by_polars(uri: str) -> Rows:
    return _rows(polars.scan_delta(uri).select(COLUMNS).collect().to_dicts())


def by_pandas(uri: str) -> Rows:
    return _rows(DeltaTable(uri).to_pandas(columns=COLUMNS).to_dict("records"))


def by_pyarrow(uri: str) -> Rows:
    return _rows(DeltaTable(uri).to_pyarrow_dataset().to_table(columns=COLUMNS).to_pylist())


def by_delta_rs(uri: str) -> Rows:
    import pyarrow as pa

    found = QueryBuilder().register("entries", DeltaTable(uri)).execute(f"{SQL} entries")
    return _rows(pa.table(found).to_pylist())


READERS: dict[str, Callable[[str], Rows]] = {
    "duckdb": by_duckdb,
    "polars": by_polars,
    "pandas": by_pandas,
    "pyarrow": by_pyarrow,
    "delta-rs": by_delta_rs,
}

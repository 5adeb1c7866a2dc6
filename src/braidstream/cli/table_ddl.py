"""`braid spark ddl`: print what registers a table in DuckDB, Spark and Trino."""

from typing import Annotated, Final

import typer

from braidstream.cli.spark_run import need_spark
from braidstream.cli.terminal import refuse

_DIALECTS: Final = ("duckdb", "spark", "trino")


def ddl(
    table: Annotated[str, typer.Option(help="Folder of a table: LAKE/STREAM.")],
    dialect: Annotated[
        str, typer.Option("--for", metavar="PROGRAM", help="Only for one of them: duckdb, spark or trino.")
    ] = "",
    name: Annotated[str, typer.Option(help="Name that queries use. Default: the name of the folder.")] = "",
) -> None:
    """Print the SQL that registers a table in DuckDB, Spark and Trino.

    Example: braid spark ddl --table /lake/orders --for duckdb
    """
    need_spark()
    from deltalake import DeltaTable

    from braidstream.spark.lake.store import store_of

    if dialect and dialect not in _DIALECTS:
        refuse(f"--for {dialect}: choose one of {', '.join(_DIALECTS)}")
    store = store_of(table)
    if not DeltaTable.is_deltatable(store.uri(""), storage_options=store.options):
        refuse(f"{table} is no table. `braid spark archive` makes one")
    called = name or store.uri("").rpartition("/")[2]
    for each in (dialect,) if dialect else _DIALECTS:
        typer.echo(_sql(each, called, store.uri("")))


def _sql(dialect: str, name: str, uri: str) -> str:
    where = _quoted(uri, "'")
    if dialect == "duckdb":
        return (
            "-- DuckDB (once before: INSTALL delta)\n"
            f"CREATE OR REPLACE VIEW {_quoted(name, chr(34))} AS SELECT * FROM delta_scan({where});"
        )
    if dialect == "spark":
        return (
            "-- Spark, with the jars of Delta Lake\n"
            f"CREATE TABLE IF NOT EXISTS {_quoted(name, '`')} USING delta LOCATION {_of_hadoop(where)};"
        )
    location = where if "://" in uri else _quoted(f"file://{uri}", "'")
    called = _quoted(name.lower(), "'")
    return (
        "-- Trino, connector delta_lake, with delta.register-table-procedure.enabled=true\n"
        f"CALL system.register_table(schema_name => 'default', table_name => {called}, "
        f"table_location => {location});"
    )


def _of_hadoop(where: str) -> str:
    """Spark reads S3 through hadoop-aws, which has another name for it."""
    return where.replace("'s3://", "'s3a://", 1)


def _quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark + mark) + mark

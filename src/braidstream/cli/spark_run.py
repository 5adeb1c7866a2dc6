"""What the verbs of `braid spark` share: options, checks before Spark starts, errors, Ctrl-C."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from braidstream.cli.reach import trouble
from braidstream.cli.screen import Screen
from braidstream.engine.address import shown
from braidstream.errors import JobError, MissingStreamError
from braidstream.model.frontier import name_of_text, name_text
from braidstream.spark.options import duration_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from braidstream.spark.options import Servers


# ----------------------------------------------------------------------------------------------------
# What `braid spark` prints in a terminal: errors, a progress bar, tables.

progress_console = Screen(stderr=True)


@contextmanager
def logs_above_bars() -> Iterator[None]:
    """Processes that are started inside get a pipe as stderr; what they write is printed above progress bars.

    Without it, log lines of the JVM and the bar would share lines. Nothing to do if stderr is not a terminal.
    """
    if not progress_console.is_terminal:
        yield
        return
    reader, writer = os.pipe()
    terminal = os.dup(2)
    progress_console.file = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")
    threading.Thread(target=_print_lines, args=(reader,), daemon=True, name="braid-logs").start()
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _print_lines(reader: int) -> None:
    with os.fdopen(reader, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            progress_console.print(line.rstrip("\n"), markup=False, highlight=False, soft_wrap=True)


def refuse(text: str) -> NoReturn:
    """A usage error: exit code 2."""
    Screen(stderr=True, highlight=False).print(f"[bold red]error[/] {escape(text)}", soft_wrap=True)
    raise typer.Exit(2)


class _Count(MofNCompleteColumn):
    """Done and total; empty while the total is unknown."""

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else super().render(task)


def bar(what: str, total: float | None) -> Progress:
    shown = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Count(),
        TimeElapsedColumn(),
        console=progress_console,
        transient=True,
    )
    shown.add_task(what, total=total)
    return shown


def print_summary(as_json: bool, title: str, facts: dict[str, Any]) -> None:
    """The summary of a run: one line of JSON, or a table."""
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = Table("what", "how much", title=escape(title), title_justify="left")
    table.columns[1].justify = "right"
    for name, value in facts.items():
        number = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
        table.add_row(name.replace("_", " "), escape(number))
    Screen().print(table)


def print_rows(title: str, rows: list[dict[str, Any]], shown: Callable[[Any], str]) -> None:
    """A table of rows; nothing if there are none."""
    if rows:
        table = Table(*map(escape, rows[0]), title=title, title_justify="left")
        for row in rows:
            table.add_row(*(escape(shown(value)) for value in row.values()))
        Screen().print(table)


# ----------------------------------------------------------------------------------------------------
# Spark run

_OUR_CLASS: Final = re.compile(r"^braidstream\.errors\.\w+: ")
_HINT: Final = "List them: braid streams"

LakePath = Annotated[
    str,
    typer.Option(
        "--lake", help="Lake: a folder that all Spark nodes have at this path, or s3://bucket/path."
    ),
]
Streams = Annotated[str, typer.Option("--streams", help="Streams by name: a,b,c.")]
Pattern = Annotated[str, typer.Option("--pattern", help="Streams that match a glob, like 'orders-*'.")]

RedisOptions = Annotated[
    list[str] | None, typer.Option("--redis", help="An option of redis-py, like cluster=true. Repeatable.")
]
Follow = Annotated[bool, typer.Option("--follow", help="Run until stopped.")]


def duration(text: str) -> float:
    try:
        return duration_s(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a duration; one is like 500ms, 30s, 15m, 1h, 7d") from None


def duration_option(text: str) -> Any:
    return typer.Option(parser=duration, metavar="DURATION", help=text)


def need_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        refuse("Spark is not installed here. Run: pip install 'braidstream[spark]'")


def chosen(streams: str, pattern: str) -> tuple[tuple[bytes, ...], bytes | None]:
    if bool(streams) == bool(pattern):
        refuse("give either --streams a,b,c or --pattern 'orders-*'")
    names = tuple(name_of_text(each.strip()) for each in streams.split(",") if each.strip())
    return names, name_of_text(pattern) if pattern else None


def servers_of(url: str, redis: list[str] | None = None) -> "Servers":
    from braidstream.spark.options import Servers

    pairs = [each.partition("=") for each in redis or ()]
    if any(not name or not equals for name, equals, _ in pairs):
        refuse("write --redis name=value, like --redis cluster=true")
    return Servers((url,), {name: value for name, _, value in pairs})


@contextlib.contextmanager
def spark_trouble(where: str | Path, as_json: bool) -> Iterator[None]:
    """As `trouble`; for an error of a Spark job, the last error line only, without Spark's stack traces."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    with trouble(where, as_json):
        try:
            yield
        except (PySparkException, Py4JError) as error:
            lines = [line.strip() for line in str(error).splitlines() if "Error: " in line]
            text = lines[-1] if lines else str(error).splitlines()[0]
            raise JobError(_OUR_CLASS.sub("", text)) from None


def check_streams(
    servers: "Servers", names: tuple[bytes, ...], pattern: bytes | None, lake: str = ""
) -> None:
    """Before Spark starts, which takes long: the server answers, and the streams are there or in the lake."""
    missing = _missing(servers, names, pattern)
    if missing and lake:
        from braidstream.spark.lake.log import Lake

        archived = {each.stream for each in Lake(lake, names or None).load().files.values()}
        missing = [name for name in missing if name not in archived]
    if missing:
        raise MissingStreamError.of(missing, shown(servers.urls[0]), _HINT)


def check_regions(regions: "Mapping[int, Servers]", names: tuple[bytes, ...], pattern: bytes | None) -> None:
    """As check_streams, for all regions: every one answers, and each stream is in one of them."""
    nowhere = [set(_missing(servers, names, pattern)) for servers in regions.values()]
    missing = sorted(set.intersection(*nowhere))
    if missing:
        raise MissingStreamError.of(missing, "all regions", _HINT)


def _missing(servers: "Servers", names: tuple[bytes, ...], pattern: bytes | None) -> list[str]:
    from braidstream.spark.source.survey import Surveyor

    surveyor = Surveyor(servers, names, pattern)
    try:
        return [name_text(name) for name in surveyor.missing()]
    finally:
        surveyor.close()


def start_spark(name: str) -> "SparkSession":
    with bar("starting Spark", None):
        return open_spark(name)


def spark_when_needed(name: str) -> Callable[[], "SparkSession"]:
    """A function that starts Spark once. Under spark-submit its JVM is there, and waits for a session."""
    start = cache(partial(open_spark, name))
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        start()
    return start


def open_spark(name: str) -> "SparkSession":
    """The session of spark-submit, or one on this machine: quiet, in UTC, with our Python for its workers.
    The master comes from spark-submit or its files.

    In a terminal, Spark's log lines are printed above progress bars from now on.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"braid spark {name}")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    with logs_above_bars():
        session = builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
    return session


@contextlib.contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set: the job ends after the current round."""
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set()) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

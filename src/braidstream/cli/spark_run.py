"""What the verbs of `braid spark` share: options, checks before Spark starts, errors, Ctrl-C."""

import contextlib
import importlib.util
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidstream.cli.reach import trouble
from braidstream.cli.terminal import bar, logs_above_bars, refuse
from braidstream.errors import JobError, MissingStreamError
from braidstream.model.frontier import name_of_text, name_text
from braidstream.net.address import shown
from braidstream.spark.option_values import duration_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from braidstream.spark.options import Servers

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
        raise typer.BadParameter(f"{text!r} is no duration; one is like 500ms, 30s, 15m, 1h, 7d") from None


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
    from braidstream.spark.jobs.spark_session import JOB_ERRORS

    with trouble(where, as_json):
        try:
            yield
        except JOB_ERRORS as error:
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
    """A Spark session. In a terminal, Spark's log lines are printed above progress bars from now on."""
    from braidstream.spark.jobs.spark_session import open_session

    with bar("starting Spark", None), logs_above_bars():
        return open_session(name)


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

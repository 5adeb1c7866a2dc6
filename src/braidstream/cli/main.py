"""The `braid` command. Exit codes: 0 success, 1 error or problem found, 2 usage error.

A verb's module is imported when the verb is used: `braid --help` and shell completion import none of them.
"""

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer

from braidstream.cli.frame import SETTINGS, HelpGroup, Verbs


class Verb(NamedTuple):
    """Where a verb is defined: a module of braidstream.cli, and the function or group there."""

    place: str
    summary: str


VERBS: Final = {
    "init": Verb("init:init", "Make a database a region, or upgrade its functions."),
    "adopt": Verb("adopt:adopt", "Take over native streams, in place."),
    "gateway": Verb("gateway:gateway", "Serve any Redis client, in any language."),
    "replicate": Verb("replicate:replicate", "Replicate one region to all the others."),
    "worker": Verb("worker:worker", "Run consumers of your modules, in several processes."),
    "up": Verb("up:up", "Start several regions on this machine."),
    "console": Verb("console:console", "Serve a web page that shows regions, streams and groups."),
    "status": Verb("status:status", "Show all regions, their links, and what is wrong."),
    "doctor": Verb("doctor:doctor", "Check how the regions are set up."),
    "upgrade": Verb("upgrade:upgrade", "Check or do an upgrade of a region's functions."),
    "debug": Verb("debug:app", "Collect what a report of a problem needs."),
    "acl": Verb("acl:acl", "Print the rights that a user needs."),
    "streams": Verb("streams:streams", "List the streams of a region."),
    "groups": Verb("streams:groups", "List the consumer groups of a region and their lag."),
    "group": Verb("streams:app", "Take and give the work of groups between regions."),
    "tail": Verb("streams:tail", "Print the entries of a stream as they arrive."),
    "dead": Verb("dead:app", "List, show, retry and drop dead letters."),
    "log": Verb("logs:app", "Create, move and read logs: entries with offsets."),
    "topic": Verb("topics:app", "Create and show topics: streams in several partitions."),
    "region": Verb("region:app", "Add, restore or remove a region."),
    "failover": Verb("failover:failover", "Move a region to a replica of its server; lose no write."),
    "retention": Verb("retention:app", "Remove old entries by themselves, in all regions."),
    "later": Verb("later:app", "List entries that wait for later, or promote them."),
    "spark": Verb("spark:app", "Archive, audit, replay, compact and measure with Spark."),
    "tune": Verb("tune:app", "Change how a region behaves, at run time."),
}


class LazyVerbs(HelpGroup):
    """The verbs, each imported when it is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Loading()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return [*VERBS]

    def summaries(self, ctx: Any) -> list[tuple[str, str]]:
        return [(name, verb.summary) for name, verb in VERBS.items()]


class _Loading(Mapping[str, Any]):
    """The commands by name. A command is imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


@cache
def load(name: str) -> Any:
    """A verb as a command, or as a group of them."""
    module, _, attribute = VERBS[name].place.partition(":")
    found = getattr(import_module(f"braidstream.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = Verbs()
    alone.command(name)(found)
    return typer.main.get_group(alone).commands[name]


app = typer.Typer(
    name="braid",
    cls=LazyVerbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=dict(SETTINGS),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from braidstream import __version__
        from braidstream.lua import VERSION

        typer.echo(f"braidstream {__version__} (engine functions {VERSION})")
        raise typer.Exit


@app.callback()
def braid(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Active-active event streams on the Redis or Valkey servers you already run."""
    # Only daemons add a handler. Without one, logging prints warnings, such as: a verb waits for a replica.
    if logging.lastResort is not None:
        logging.lastResort.addFilter(_is_no_lost_node)


def _is_no_lost_node(record: logging.LogRecord) -> bool:
    """A primary that is lost is in what the verb prints."""
    return not record.getMessage().startswith("node.lost ")


if __name__ == "__main__":
    app()

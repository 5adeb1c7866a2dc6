"""`braid status`: all regions and links at a glance, with what is wrong and what to do."""

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from braidstream.cli.reach import ConfigFile, trouble
from braidstream.cli.regions import OneUrl, choose_regions
from braidstream.cli.screen import Screen
from braidstream.config import Config, RegionConfig, Selection
from braidstream.operations.read_regions import Rates, look, rates_between
from braidstream.operations.status import LinkView, Overview, View, as_json, overview
from braidstream.operations.words import daemon_words, is_broken, is_held, link_words, memory_words

_ANY_WIDTH: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Looking:
    """What to read, and how. has_file: the regions are all those of a file, not one by its URL."""

    regions: Config
    max_lag_ms: int
    has_file: bool

    def look(self) -> Overview:
        views = asyncio.run(look(self.regions))
        return overview(views, self.max_lag_ms, has_file=self.has_file)

    def show(self, found: Overview, rates: Rates) -> RenderableType:
        return screen(found, rates, self.regions.region, [] if self.has_file else _peers(found))


def status(
    ctx: typer.Context,
    url: OneUrl = None,
    config: ConfigFile = Path("braid.toml"),
    region: Annotated[str | None, typer.Option("--region", help="Only this region of the file.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh the screen until stopped.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="With --watch: seconds between refreshes.")] = 2.0,
    max_lag: Annotated[
        float, typer.Option(min=0, help="Report peers that are behind longer, in seconds.")
    ] = 60,
    as_json_: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Show all regions and the links between them: state, lag, memory, clocks, and what is wrong.

    It reads the servers, not the daemons. It works while daemons are down, and shows that they are. With
    --region or --url it shows one region and its links; --url needs no file. The exit code is 1 if it found
    a problem.

    Example: braid status --config braid.toml --watch
    """
    with trouble(url or config, as_json_):
        regions = choose_regions(ctx, url, config)
        if region is not None:
            regions = regions.model_copy(update={"region": (regions.named(region),)})
    looking = _Looking(regions, round(max_lag * 1000), has_file=url is None and region is None)
    if watch:
        _watch(looking, every, as_json_)
        return
    found = looking.look()
    if as_json_:
        typer.echo(json.dumps(_facts(found, regions)))
    else:
        Screen(highlight=False).print(looking.show(found, {}))
    raise typer.Exit(1 if found.problems else 0)


def _watch(looking: _Looking, every_s: float, in_json: bool) -> None:
    console, before, rates = Screen(highlight=False), None, Rates()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            now = time.monotonic()
            found = looking.look()
            if before is not None:
                rates = rates_between(before[1], found, now - before[0])
            before = now, found
            if in_json:
                typer.echo(json.dumps(_facts(found, looking.regions)))
            else:
                title = Text(f"{time.strftime('%H:%M:%S')}  Ctrl-C stops", style="dim")
                shown = Group(title, looking.show(found, rates))
                if console.is_terminal:
                    live.update(shown, refresh=True)
                else:
                    console.print(shown, "")  # into a pipe, Live prints nothing until it ends
            time.sleep(every_s)


def _facts(found: Overview, regions: Config) -> dict[str, Any]:
    facts, chosen = as_json(found), {each.name: each.selection for each in regions.region}
    for each in facts["regions"]:
        selection = chosen[each["name"]]
        each |= {"include": list(selection.include), "exclude": list(selection.exclude)}
    return facts


# The screen


def screen(
    found: Overview,
    rates: Rates,
    regions: Iterable[RegionConfig] = (),
    notes: Iterable[RenderableType] = (),
) -> RenderableType:
    links: list[RenderableType] = [_Links(found, rates), ""] if found.links else []
    return Group(_regions(found), "", *links, *_selections(regions), *notes, _problems(found))


class _Links:
    """A table of regions by regions, or, where that is too wide for the screen, a list of links."""

    def __init__(self, found: Overview, rates: Rates) -> None:
        self._found, self._rates = found, rates

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = _matrix(self._found, self._rates)
        unlimited = options.update(max_width=_ANY_WIDTH)
        is_wide = console.measure(table, options=unlimited).maximum > options.max_width
        yield _list(self._found, self._rates) if is_wide else table


def _regions(found: Overview) -> Table:
    table = Table("region", "server", "IDs", "memory", "clock", "daemon", box=None, pad_edge=False)
    sound = [view for view in found.views if not view.error]
    middle = sorted(view.clock_ms for view in sound)[(len(sound) - 1) // 2] if sound else 0.0
    for view in found.views:
        if view.error:
            table.add_row(escape(view.name), Text(view.trouble[0], style="bold red"), "", "", "", "")
            continue
        assert view.region is not None
        clock = f"{round((view.clock_ms - middle) / 1000, 1) + 0.0:+.1f}s"
        words = map(escape, (view.name, view.engine, view.region.id_mode))
        table.add_row(*words, _memory(view), clock, _daemon(view, found))
    return table


def _memory(view: View) -> Text:
    return Text(memory_words(view), style="bold red" if view.is_full else "")


def _daemon(view: View, found: Overview) -> Text:
    style = "yellow" if is_held(view) else ""
    if not view.live:
        style = "bold red" if found.needs_daemon(view) else "dim"
    return Text(daemon_words(view, found), style=style)


def _matrix(found: Overview, rates: Rates) -> Table:
    sources = [view.name for view in found.views]
    targets = [*dict.fromkeys([*sources, *(link.target for link in found.links)])]
    table = Table("from \\ to", *map(escape, targets), box=None, pad_edge=False)
    cells = {(link.source, link.target): _cell(link, rates) for link in found.links}
    for source in sources:
        row = (cells.get((source, target), Text("-", style="dim")) for target in targets)
        table.add_row(escape(source), *row)
    return table


def _list(found: Overview, rates: Rates) -> Table:
    table = Table("from", "to", "link", box=None, pad_edge=False)
    for link in found.links:
        table.add_row(escape(link.source), escape(link.target), _cell(link, rates))
    return table


def _cell(link: LinkView, rates: Rates) -> Text:
    words = link_words(link, rates.get((link.source, link.target), 0.0))
    if is_broken(link):
        return Text(words, style="bold red")
    style = "yellow" if link.status is None else ""
    return Text(words, style="green" if words.startswith("ok") else style)


def _selections(regions: Iterable[RegionConfig]) -> list[RenderableType]:
    """Regions that do not exchange all their streams."""
    lines: list[RenderableType] = [
        Text.assemble((each.name, "bold"), f" exchanges {each.selection}. Its other streams stay local.")
        for each in regions
        if each.selection != Selection()
    ]
    return [*lines, ""] if lines else []


def _peers(found: Overview) -> list[RenderableType]:
    """The peers of a region that was read by its URL. Their addresses are in the file, not in the server."""
    lines = list[RenderableType]()
    for view in found.views:
        if view.region is not None and view.region.peers:
            numbers = ", ".join(map(str, view.region.peers))
            text = f" has peers: region {numbers}. To read their servers too: "
            lines.append(
                Text.assemble((view.name, "bold"), text, ("braid status --config braid.toml", "cyan"))
            )
    return [*lines, ""] if lines else []


def _problems(found: Overview) -> RenderableType:
    if not found.problems:
        return Text("No problems found.", style="green")
    count = len(found.problems)
    lines: list[RenderableType] = [Text(f"{count} problem{'s' if count > 1 else ''}:", style="bold red")]
    for each in found.problems:
        line = Text.assemble((each.place, "bold"), f": {each.text.rstrip('.')}. ", (each.fix, "cyan"))
        lines.append(_Hanging(line))
    return Group(*lines)


class _Hanging:
    """A paragraph whose first line is indented by two columns, and the others by four."""

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = self._text.wrap(console, max(10, options.max_width - 4))
        for at, line in enumerate(lines):
            yield Text.assemble("    " if at else "  ", line)

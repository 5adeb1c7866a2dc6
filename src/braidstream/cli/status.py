"""`braid status`: all regions and links at a glance, with what is wrong and what to do."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from braidstream.admin.region_status import LinkView, Overview, View, as_json, overview, read_view
from braidstream.cli.reach import ConfigFile, trouble
from braidstream.config import Config, RegionConfig, load
from braidstream.errors import BraidError
from braidstream.net.wire import connect, parse_address
from braidstream.protocol.plan import arun

_WITHIN_S: Final = 2.0
_ANY_WIDTH: Final = 10_000

Rates = dict[tuple[str, str], float]


def status(
    config: ConfigFile = Path("braid.toml"),
    watch: Annotated[bool, typer.Option("--watch", help="Refresh the screen until stopped.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="With --watch: seconds between refreshes.")] = 2.0,
    max_lag: Annotated[
        float, typer.Option(min=0, help="Report peers that are behind longer, in seconds.")
    ] = 60,
    as_json_: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Show all regions and the links between them: state, lag, memory, clocks, and what is wrong.

    It reads the servers, not the daemons. It works while daemons are down, and shows that they are.
    The exit code is 1 if it found a problem.

    Example: braid status --config braid.toml --watch
    """
    with trouble(config, as_json_):
        regions = load(config)
        for region in regions.region:
            parse_address(region.url)
    max_lag_ms = round(max_lag * 1000)
    if watch:
        _watch(regions, every, max_lag_ms, as_json_)
        return
    found = overview(asyncio.run(look(regions)), max_lag_ms)
    if as_json_:
        typer.echo(json.dumps(as_json(found)))
    else:
        Console(highlight=False).print(screen(found, {}))
    raise typer.Exit(1 if found.problems else 0)


def _watch(regions: Config, every_s: float, max_lag_ms: int, in_json: bool) -> None:
    console, before, rates = Console(highlight=False), None, Rates()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            now = time.monotonic()
            found = overview(asyncio.run(look(regions)), max_lag_ms)
            if before is not None:
                rates = _rates(before[1], found, now - before[0])
            before = now, found
            if in_json:
                typer.echo(json.dumps(as_json(found)))
            else:
                title = Text(f"{time.strftime('%H:%M:%S')}  Ctrl-C stops", style="dim")
                live.update(Group(title, screen(found, rates)), refresh=True)
            time.sleep(every_s)


def _rates(before: Overview, now: Overview, seconds: float) -> Rates:
    """Entries per second of each link."""
    counts = {(link.source, link.target): link.status.entries for link in before.links if link.status}
    found = Rates()
    for link in now.links:
        was = counts.get((link.source, link.target))
        if was is not None and link.status is not None and link.status.entries >= was:
            found[link.source, link.target] = (link.status.entries - was) / seconds
    return found


async def look(regions: Config) -> list[View]:
    """Read all regions at once. One that does not answer is a view with an error."""
    return [*await asyncio.gather(*(_look(region, regions) for region in regions.region))]


async def _look(region: RegionConfig, regions: Config) -> View:
    peers = [each.id for each in regions.region if each.id != region.id]
    try:
        async with asyncio.timeout(_WITHIN_S):
            conn = await connect(parse_address(region.url))
            try:
                began = time.time()
                view = await arun(read_view(region.id, region.name, peers), conn.send)
                ended = time.time()
            finally:
                conn.close()
    except TimeoutError:
        return View(region.id, region.name, error=f"no answer within {_WITHIN_S:g} s")
    except (BraidError, OSError) as error:
        why = getattr(error, "why", "") or str(error)
        return View(region.id, region.name, error=why)
    middle = (began + ended) / 2 * 1000
    return replace(view, clock_ms=view.now_ms - middle, clock_error_ms=(ended - began) * 500)


# The screen


def screen(found: Overview, rates: Rates) -> RenderableType:
    return Group(_regions(found), "", _Links(found, rates), "", _problems(found))


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
            table.add_row(view.name, Text("unreachable", style="bold red"), "", "", "", "")
            continue
        assert view.region is not None
        clock = f"{round((view.clock_ms - middle) / 1000, 1) + 0.0:+.1f}s"
        table.add_row(view.name, view.engine, view.region.id_mode, _memory(view), clock, _daemon(view))
    return table


def _memory(view: View) -> Text:
    used = f"{view.memory.used / 2**20:,.1f}"
    if not view.memory.most:
        return Text(f"{used} MB")
    style = "bold red" if view.is_full else ""
    return Text(f"{used} of {view.memory.most / 2**20:,.0f} MB", style=style)


def _daemon(view: View) -> Text:
    if view.live:
        count = f"{len(view.live)} daemons" if len(view.live) > 1 else "up"
        held = max(each.held_ms for each in view.live)
        return Text(f"{count}, held {age(held)}", style="yellow") if held > 1000 else Text(count)
    if not view.daemons:
        return Text("none", style="bold red")
    return Text(f"silent {age(view.now_ms - view.daemons[0].at_ms)}", style="bold red")


def _matrix(found: Overview, rates: Rates) -> Table:
    names = [view.name for view in found.views]
    table = Table("from \\ to", *names, box=None, pad_edge=False)
    cells = {(link.source, link.target): _cell(link, rates) for link in found.links}
    for source in names:
        table.add_row(source, *(cells.get((source, target), Text("-", style="dim")) for target in names))
    return table


def _list(found: Overview, rates: Rates) -> Table:
    table = Table("from", "to", "link", box=None, pad_edge=False)
    for link in found.links:
        table.add_row(link.source, link.target, _cell(link, rates))
    return table


def _cell(link: LinkView, rates: Rates) -> Text:
    status = link.status
    if status is None:
        return Text("?", style="yellow")
    words = list[str]()
    if status.state != "up":
        words.append(f"{status.state.upper()} {age(link.now_ms - status.since_ms)}")
    if status.lag_entries:
        behind = f"{short(status.lag_entries)} behind"
        words.append(f"{behind} {age(status.lag_ms)}" if status.lag_ms else behind)
    elif status.lag_entries is None:
        words.append("lag ?")
    elif status.state == "up":
        words.append("ok")
    if rate := rates.get((link.source, link.target)):
        words.append(f"{short(round(rate))}/s")
    style = "green" if words[0] == "ok" else ""
    if status.state != "up":
        style = "bold red"
    elif status.refusal:
        words.insert(0, "REFUSED")
        style = "bold red"
    return Text(" ".join(words), style=style)


def _problems(found: Overview) -> RenderableType:
    if not found.problems:
        return Text("No problems found.", style="green")
    count = len(found.problems)
    lines: list[RenderableType] = [Text(f"{count} problem{'s' if count > 1 else ''}:", style="bold red")]
    for each in found.problems:
        line = Text.assemble((each.where, "bold"), f": {each.text.rstrip('.')}. ", (each.fix, "cyan"))
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


def age(ms: int | None) -> str:
    """A time span in two or three letters: 12s, 3m, 5h, 2d."""
    seconds = max(0, ms or 0) / 1000
    if seconds < 10:
        return f"{seconds:.1f}s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def short(number: int) -> str:
    """A count in at most six letters."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= 10 * size:
            return f"{number / size:,.0f}{unit}"
    return f"{number:,}"

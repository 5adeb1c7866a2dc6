"""`braid doctor`: checks how regions are set up, and says what to type."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from braidstream.cli.acl import Kind, described, rights_of
from braidstream.cli.reach import ConfigFile, Json, trouble
from braidstream.cli.regions import OneUrl, choose_regions
from braidstream.cli.screen import Screen
from braidstream.operations.checkup import check_file, check_up
from braidstream.operations.doctor import Finding, Level

_STYLES: dict[Level, str] = {"error": "bold red", "warning": "yellow", "note": "dim"}


def doctor(
    ctx: typer.Context,
    url: OneUrl = None,
    config: ConfigFile = Path("braid.toml"),
    region: Annotated[str | None, typer.Option("--region", help="Check only this region.")] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            help="Also check the rights of this user, and print the command that adds what is missing. Needs "
            "URLs of an administrator. Default: a user of daemons, such as link.",
        ),
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--as", metavar="KIND", help="What the user is, as for `braid acl`."),
    ] = None,
    streams: Annotated[str, typer.Option(help="Of a program's user: its streams, as for `braid acl`.")] = "",
    as_json: Json = False,
) -> None:
    """Check how the regions are set up: memory policy, persistence, replicas, rights, TLS, clocks, strays.

    For each finding it says what it means and what to type. The exit code is 1 if there is an error or a
    warning. It changes nothing. With --url it checks one region, and needs no file.

    Example: braid doctor --config braid.toml
    """
    program = None if kind is None else (described(kind, streams), tuple(rights_of(kind, streams)))
    if (program is not None or streams) and not (user and program):
        raise typer.BadParameter("--as and --streams say what a user is: name it with --user.")
    with trouble(url or config, as_json):
        regions = choose_regions(ctx, url, config)
        wanted = [regions.named(region)] if region else regions.region
    names = {each.name for each in wanted}
    found = asyncio.run(check_up(regions, names, has_file=url is None, user=user, program=program))
    if url is None:
        found += check_file(config)
    if as_json:
        typer.echo(json.dumps({"findings": [asdict(finding) for finding in found]}))
    else:
        show_findings(found, len(names))
    raise typer.Exit(1 if any(finding.level != "note" for finding in found) else 0)


def show_findings(found: list[Finding], count: int) -> None:
    console = Screen(highlight=False)
    table = Table.grid(padding=(0, 1))
    for finding in found:
        text = Text.assemble((finding.place, "bold"), f": {finding.text}\n", (finding.fix, "cyan"))
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), text)
    if found:
        console.print(table)
    serious = sum(finding.level != "note" for finding in found)
    regions = f"{count} region{'s' if count > 1 else ''}"
    if serious:
        console.print(f"\n{regions} checked: {serious} to fix.", style="bold red")
    else:
        console.print(f"{regions} checked: nothing to fix.", style="green")

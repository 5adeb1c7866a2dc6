"""`braid upgrade`: loads the engine functions of this release, after it has looked at who uses the region."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from braidstream.cli.doctor import show_findings
from braidstream.cli.reach import ConfigFile, Json, trouble
from braidstream.cli.regions import OneUrl, choose_regions, prepare
from braidstream.cli.screen import Screen, say
from braidstream.cli.system_log import log_change
from braidstream.config import Config, RegionConfig
from braidstream.engine.address import shown
from braidstream.operations.read_regions import look
from braidstream.operations.upgrade import OURS, Check, check_upgrade


def upgrade(
    ctx: typer.Context,
    url: OneUrl = None,
    config: ConfigFile = Path("braid.toml"),
    region: Annotated[str | None, typer.Option("--region", help="The region to upgrade or check.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing. Without --region: all regions of the file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Upgrade the engine functions of a region, in place and under load, as `braid init` does.

    First it looks whether all daemons, gateways and clients that it sees can go on with them; --check only
    looks. It loads nothing if there is an error, and the exit code is then 1; with --check also after a
    warning.

    Example: braid upgrade --check --config braid.toml
    """
    if not check and url is None and region is None:
        raise typer.BadParameter(
            "upgrade one region after the other: --region NAME. To look at all: --check."
        )
    with trouble(url or config, as_json):
        regions = choose_regions(ctx, url, config)
        wanted = [regions.named(region)] if region else [*regions.region]
        found = _checked(regions, wanted)
        loads = not check and found[0].can_go_on and found[0].functions < found[0].brings
        if loads:
            here = wanted[0]
            log_change("upgrade", region=here.name, server=shown(here.url))
            prepare(here.url, here.id, here.name)
    findings = [finding for each in found for finding in each.findings]
    if as_json:
        facts = [asdict(each) | {"can_go_on": each.can_go_on} for each in found]
        typer.echo(json.dumps({"release": OURS, "loaded": loads, "regions": facts}))
    else:
        for each in found:
            _show(each, loads)
        show_findings(findings, len(found))
    bad = ("error", "warning") if check else ("error",)
    raise typer.Exit(1 if any(each.level in bad for each in findings) else 0)


def _checked(regions: Config, wanted: list[RegionConfig]) -> list[Check]:
    views = asyncio.run(look(regions))
    return [check_upgrade(each, views) for each in wanted]


def _show(found: Check, loaded: bool) -> None:
    if not found.engine:
        return
    if found.functions >= found.brings:
        words = f"version {found.functions}, nothing to load"
    elif loaded:
        words = f"version {found.brings}, loaded, was {found.functions or 'none'}"
    else:
        words = f"{found.functions or 'none'}, this release loads version {found.brings}"
    screen = Screen(highlight=False)
    screen.print(f"[bold]{found.region}[/]: {found.engine}. Engine functions: {words}.", soft_wrap=True)
    for each in found.programs:
        say(f"  {each.kind:<8} braidstream {each.version or '?':<10} {each.where}")

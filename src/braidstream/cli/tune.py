"""`braid tune`: change how a region behaves, at run time."""

import re
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from braidstream.cli.frame import Verbs
from braidstream.cli.reach import ConfigFile, Json, report, trouble
from braidstream.cli.regions import OneUrl, choose_regions, on_region
from braidstream.cli.system_log import log_change
from braidstream.config import RegionConfig, load
from braidstream.engine.address import shown
from braidstream.errors import BraidError
from braidstream.model.region import DURABILITY, ID_MODES, Region
from braidstream.operations.membership import tune_durability
from braidstream.operations.open_region import CLIENT_ERRORS, open_region
from braidstream.plan.lookup import read_any_region
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.region_facts import set_id_mode

IdMode = Enum("IdMode", {mode: mode for mode in ID_MODES})  # type: ignore[misc]

# Without a default: no region is changed that the user did not name.
File = Annotated[
    Path | None,
    typer.Option("--config", envvar="BRAID_CONFIG", help="Change all regions that this file lists."),
]

app = Verbs("Change how a region behaves, at run time.")


@app.command("id-mode")
def id_mode(
    ctx: typer.Context,
    mode: Annotated[IdMode, typer.Argument(help="strict, semi-strict or liberal.")],
    url: OneUrl = None,
    config: File = None,
    as_json: Json = False,
) -> None:
    """Choose which IDs XADD accepts: strict (* or ms), semi-strict (also full IDs), liberal (ms means ms-0).

    It changes all regions of the file, or with --url the region of one server. Running clients use the new
    mode within a second. Only strict prevents two regions from using the same ID.

    Example: braid tune id-mode liberal --config braid.toml
    """
    where = url or config
    if where is None:
        raise typer.BadParameter(
            "give --config FILE to change all regions of the file, or --url redis://localhost:6379 for one."
        )
    with trouble(where, as_json):
        listed = choose_regions(ctx, url, config or Path()).region
        done = _tuned(listed, mode.value)
    facts = [{"region": region.id, "name": region.name, "id_mode": region.id_mode} for region in done]
    lines = [
        f"{shown(each.url)}: region {region.id} ({region.name}) now has ID mode {region.id_mode}."
        for each, region in zip(listed, done, strict=True)
    ]
    report(as_json, facts[0] if url else {"regions": facts}, "\n".join(lines))


@app.command("durability")
def durability(
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="none, aof, replicas:N, or file: what braid.toml says, again."),
    ],
    region: Annotated[
        str | None, typer.Option("--region", help="Which region of the file: its name or number.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Instead of a region of the file: its server.")] = None,
    config: ConfigFile = Path("braid.toml"),
    as_json: Json = False,
) -> None:
    """Choose what daemons of a region wait for before they send an entry to peers, whatever their file says.

    For a region whose replication is held because its replica is away. With none, entries that a failover
    removes may be in other regions, which give them back. Daemons follow within seconds, also those that are
    started later. `braid status` shows it until you type `file`.

    Example: braid tune durability none --config braid.toml --region us-east
    """
    if (region is None) == (url is None):
        raise typer.BadParameter("give either --region or --url.")
    if value != "file" and not re.match(DURABILITY, value):
        raise typer.BadParameter(f"{value!r} is not none, aof, replicas:N or file.")
    if url is None:
        with trouble(config, as_json):
            url = load(config).named(str(region)).url
    with trouble(url, as_json), open_region(url) as client:
        log_change("tune durability", value=value, server=shown(url))
        found = client.run_plan(read_any_region())
        client.run_plan(tune_durability(None if value == "file" else value))
    facts = {"region": found.id, "name": found.name, "durability": value}
    what = "as in the file of its daemon again" if value == "file" else f"{value} now, whatever the file says"
    report(as_json, facts, f"{shown(url)}: durability of region {found.id} ({found.name}) is {what}.")


def _tuned(listed: Sequence[RegionConfig], mode: str) -> list[Region]:
    """Change every region; an error in one does not stop the rest."""
    done, failed = list[Region](), dict[str, Exception]()
    for each in listed:
        try:
            done.append(on_region(each.url, partial(_set_id_mode, each.url, mode)))
        except (BraidError, OSError, *CLIENT_ERRORS) as error:
            if len(listed) == 1:
                raise
            failed[each.name] = error
    if failed:
        faults = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise BraidError(f"not all regions have ID mode {mode} now. Run this again. {faults}")
    return done


async def _set_id_mode(url: str, mode: str, region: Endpoint) -> Region:
    log_change("tune id-mode", value=mode, server=shown(url))
    return await set_id_mode(region, mode)

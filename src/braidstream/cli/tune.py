"""`braid tune`: change how a region behaves, at run time."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from braidstream.cli.reach import Json, report, trouble
from braidstream.cli.region_choice import OneUrl, choose_regions
from braidstream.cli.verbs import Verbs
from braidstream.clients.any_region import CLIENT_ERRORS, open_region
from braidstream.clients.region_facts import set_id_mode
from braidstream.config import RegionConfig
from braidstream.errors import BraidError
from braidstream.model.region_config import ID_MODES, Region
from braidstream.net.bulk import shown

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


def _tuned(listed: Sequence[RegionConfig], mode: str) -> list[Region]:
    """Change every region; an error in one does not stop the rest."""
    done, failed = list[Region](), dict[str, Exception]()
    for each in listed:
        try:
            with open_region(each.url) as client:
                done.append(set_id_mode(client, mode))
        except (BraidError, OSError, *CLIENT_ERRORS) as error:
            if len(listed) == 1:
                raise
            failed[each.name] = error
    if failed:
        faults = "; ".join(f"{name}: {error}" for name, error in failed.items())
        raise BraidError(f"not all regions have ID mode {mode} now. Run this again. {faults}")
    return done

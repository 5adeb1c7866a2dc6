"""`braid tune`: change how a region behaves, at run time."""

from enum import Enum
from typing import Annotated

import typer

from braidstream.cli.reach import Json, Url, report, trouble
from braidstream.cli.verbs import Verbs
from braidstream.clients.any_region import open_region
from braidstream.clients.region_facts import set_id_mode
from braidstream.model.region_config import ID_MODES
from braidstream.net.bulk import shown

IdMode = Enum("IdMode", {mode: mode for mode in ID_MODES})  # type: ignore[misc]

app = Verbs("Change how a region behaves, at run time.")


@app.command("id-mode")
def id_mode(
    mode: Annotated[IdMode, typer.Argument(help="strict, semi-strict or liberal.")],
    url: Url,
    as_json: Json = False,
) -> None:
    """Choose which IDs XADD accepts: strict (* or ms), semi-strict (also full IDs), liberal (ms means ms-0).

    Running clients use the new mode within a second. Only strict prevents two regions from using the same ID.

    Example: braid tune id-mode liberal --url redis://localhost:6379
    """
    with trouble(url, as_json), open_region(url) as client:
        region = set_id_mode(client, mode.value)
    facts = {"region": region.id, "name": region.name, "id_mode": region.id_mode}
    report(
        as_json, facts, f"{shown(url)}: region {region.id} ({region.name}) now has ID mode {region.id_mode}."
    )

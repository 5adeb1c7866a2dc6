"""`braid init`: make a database a region."""

from typing import Annotated

import typer

from braidstream import lua
from braidstream.admin.membership import initialise
from braidstream.cli.reach import Json, Url, ask, report, trouble
from braidstream.model.ids import LAST_WRITER
from braidstream.net.bulk import shown
from braidstream.protocol.identify import refuse_cluster


def init(
    url: Url,
    region: Annotated[
        int,
        typer.Option(
            min=1, max=LAST_WRITER, help=f"Number of this region, 1 to {LAST_WRITER}. Entry IDs contain it."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of this region, like us-east.")],
    as_json: Json = False,
) -> None:
    """Make a database a braidstream region, or upgrade its engine functions.

    You can run it again at any time, also under load. It never changes which region a database is.

    Example: braid init --url redis://localhost:6379 --region 1 --name us-east
    """
    with trouble(url, as_json):
        # The region first: if the database belongs to another one, the functions are not loaded.
        _, ready, before = ask(url, refuse_cluster(), initialise(region, name), lua.load())
    facts = {
        "region": ready.id,
        "name": ready.name,
        "writer": ready.writer,
        "id_mode": ready.id_mode,
        "functions": {"version": lua.VERSION, "was": before},
    }
    loaded = "already there" if before == lua.VERSION else f"loaded, was {before or 'none'}"
    report(
        as_json,
        facts,
        f"{shown(url)} is region {ready.id} ({ready.name}), ID mode {ready.id_mode}. "
        f"Engine functions: version {lua.VERSION}, {loaded}.",
    )

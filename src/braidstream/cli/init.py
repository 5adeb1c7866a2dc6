"""`braid init`: make a database a region."""

from contextlib import closing
from typing import Annotated

import typer

from braidstream import lua
from braidstream.cli.reach import Json, Url, ask, report, trouble
from braidstream.cli.regions import is_cluster_at
from braidstream.clusters.bulk import Server
from braidstream.engine.address import shown
from braidstream.model.ids import LAST_WRITER
from braidstream.model.region import Region
from braidstream.operations.membership import initialise, initialise_cluster
from braidstream.operations.requirements import refuse_dropped_transactions


def init(
    url: Url,
    region: Annotated[
        int,
        typer.Option(
            min=1, max=LAST_WRITER, help=f"Number of this region, 1 to {LAST_WRITER}. Entry IDs contain it."
        ),
    ],
    name: Annotated[str, typer.Option(help="Name of this region, like us-east.")],
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace the engine functions, also newer and changed ones."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a database or a cluster a braidstream region, or upgrade its engine functions.

    You can run it again at any time, also under load. It never changes which region a database is. Of a
    cluster, name any node. Run it again after you add a primary.

    Example: braid init --url redis://localhost:6379 --region 1 --name us-east
    """
    with trouble(url, as_json):
        act = _cluster if is_cluster_at(url) else _server
        ready, before, nodes = act(url, region, name, force=force)
    facts = {
        "region": ready.id,
        "name": ready.name,
        "writer": ready.writer,
        "id_mode": ready.id_mode,
        "functions": {"version": lua.VERSION, "was": before},
        "primaries": nodes,
    }
    is_kept = before == lua.VERSION and not force
    loaded = "already there" if is_kept else f"loaded, was {before or 'none'}"
    what = shown(url) if nodes == 1 else f"the cluster of {shown(url)} ({nodes} primaries)"
    report(
        as_json,
        facts,
        f"{what} is region {ready.id} ({ready.name}), ID mode {ready.id_mode}. "
        f"Engine functions: version {lua.VERSION}, {loaded}.",
    )


def _server(url: str, region: int, name: str, *, force: bool) -> tuple[Region, int, int]:
    # The region first: if the database belongs to another one, the functions are not loaded.
    plans = refuse_dropped_transactions(), initialise(region, name), lua.load(force=force)
    _, ready, before = ask(url, *plans)
    return ready, before, 1


def _cluster(url: str, region: int, name: str, *, force: bool) -> tuple[Region, int, int]:
    with closing(Server(url, {"cluster": True})) as cluster:
        primaries = cluster.each_primary()
        for node in primaries:
            node(refuse_dropped_transactions())
        ready, before = initialise_cluster(primaries, region, name, force=force)
    return ready, before, len(primaries)

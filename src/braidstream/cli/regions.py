"""The regions that a verb works on: of braid.toml or one URL; a server, a Sentinel group or a cluster."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from braidstream import lua
from braidstream.cli.reach import ask
from braidstream.clusters.bulk import Server
from braidstream.config import Config, RegionConfig, load
from braidstream.engine.address import parse_address
from braidstream.errors import ConfigError, LibraryError
from braidstream.model.region import Region
from braidstream.operations.membership import STRICT, initialise, initialise_cluster
from braidstream.plan.lookup import ask_is_cluster
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.region_facts import meet_everywhere, part_region, region_of

T = TypeVar("T")


def is_cluster_at(url: str) -> bool:
    """Whether a server says that it is a node of a cluster. Not if the user may not ask."""
    [found] = ask(url, ask_is_cluster())
    return bool(found)


def region_at(url: str) -> Region:
    """Which region a server or a cluster is."""
    return on_region(url, region_of)


def prepare(url: str, number: int, name: str, *, fenced: bool = False, among: Sequence[Region] = ()) -> None:
    """Do what `braid init` does. fenced: an empty server or cluster serves no client yet.

    among: the other regions. A new or empty one gets the ID mode that they have, if it is one.
    """
    modes = {region.id_mode for region in among}
    id_mode = modes.pop() if len(modes) == 1 else STRICT
    if is_cluster_at(url):
        prepare_cluster(url, number, name, fenced=fenced, id_mode=id_mode)
    else:
        ask(url, initialise(number, name, fenced=fenced, id_mode=id_mode), lua.load())


def prepare_cluster(url: str, number: int, name: str, *, fenced: bool = False, id_mode: str = STRICT) -> None:
    """The same for a cluster. Newer functions are kept, so that an upgrade can be rolled back."""
    with closing(Server(url, {"cluster": True})) as cluster:
        try:
            initialise_cluster(cluster.each_primary(), number, name, fenced=fenced, id_mode=id_mode)
        except LibraryError:
            if min(cluster.run_everywhere(lua.installed)) < lua.VERSION:
                raise


def add_writers(url: str, writers: Iterable[int]) -> Region:
    """Add writers to a region. Running clients follow within a second."""
    wanted = {*writers}
    return on_region(url, lambda region: meet_everywhere(region, wanted))


def remove_writer(url: str, writer: int) -> None:
    """Mark a writer as gone for good."""
    on_region(url, lambda region: part_region(region, [writer]))


def on_region(url: str, work: Callable[[Endpoint], Awaitable[T]]) -> T:
    """Work on the region at a URL, whatever it is."""

    async def run() -> T:
        async with reached(url) as region:
            return await work(region)

    return asyncio.run(run())


@asynccontextmanager
async def reached(url: str) -> AsyncIterator[Endpoint]:
    """A region, connected. A cluster is followed when its slots move."""
    region = Endpoint(parse_address(url))
    await region.connect()
    watch = asyncio.ensure_future(region.watch())
    try:
        yield region
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        region.close()


# ----------------------------------------------------------------------------------------------------
# What `braid status`, `braid doctor` and `braid console` read: all regions of a file, or one by its URL.

OneUrl = Annotated[
    str | None,
    typer.Option(
        help="Only the region of this server, without a file, like redis://user:password@host:6379."
    ),
]
# Options that name regions of a file.
_OF_FILE: Final = ("config", "region")


def choose_regions(ctx: typer.Context, url: str | None, config: Path) -> Config:
    """The regions of the file; with a URL the one that its server is, which the server itself says."""
    if url is None:
        return _listed(config)
    for name in _OF_FILE:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"give either --url or --{name}, not both.")
    return _alone(url)


def _listed(config: Path) -> Config:
    if not config.exists():
        raise ConfigError(
            f"{config}: cannot be read: there is no such file. Give its place with --config, or name the "
            "server of one region: --url redis://localhost:6379"
        )
    regions = load(config)
    for region in regions.region:
        parse_address(region.url)
    return regions


def _alone(url: str) -> Config:
    """Not validated: a server may have a name that a file must not have."""
    parse_address(url)
    region = region_at(url)
    here = RegionConfig.model_construct(id=region.id, name=region.name, url=url)
    return Config.model_construct(region=(here,))

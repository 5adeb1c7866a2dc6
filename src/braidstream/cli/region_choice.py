"""What `braid status`, `braid doctor` and `braid console` read: all regions of a file, or one by its URL."""

from pathlib import Path
from typing import Annotated, Final

import typer

from braidstream.cli.region_reach import region_at
from braidstream.config import Config, RegionConfig, load
from braidstream.errors import ConfigError
from braidstream.net.wire import parse_address

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

"""`braid failover`: a planned failover of a region's server that loses nothing."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from braidstream.cli.reach import ConfigFile, Json, report, trouble
from braidstream.cli.regions import is_cluster_at
from braidstream.cli.screen import say
from braidstream.config import load
from braidstream.engine.address import parse_address
from braidstream.engine.failover import TIMEOUT_S, fail_over
from braidstream.errors import BraidError

Region = Annotated[str | None, typer.Option("--region", help="Which region of the file: its name or number.")]
SentinelUrl = Annotated[
    str | None,
    typer.Option(
        help="Instead of a region of the file: redis+sentinel://user:password@host:26379,host:26379/service, "
        "with a user who may use CLIENT, INFO, ROLE and REPLICAOF."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(min=1.0, max=60.0, help="How long writes may wait for the promotion, in seconds."),
]


def failover(
    region: Region = None,
    url: SentinelUrl = None,
    config: ConfigFile = Path("braid.toml"),
    timeout: Timeout = TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Move a region to a replica of its server, and lose no write: for maintenance, under load.

    Writes wait for some two seconds: until the replicas have everything, the sentinels have promoted one of
    them, and the old primary is a replica of it. If a step fails, writes go on with the old primary.

    Example: braid failover --config braid.toml --region us-east
    """
    if (region is None) == (url is None):
        raise typer.BadParameter("give either --region or --url.")
    if url is None:
        with trouble(config, as_json):
            url = load(config).named(str(region)).url

    def tell(text: str) -> None:
        if not as_json:
            say(f"{text}.", err=True)

    with trouble(url, as_json):
        address = parse_address(url)
        if address.sentinels is None:
            raise BraidError(_without_sentinels(is_cluster=is_cluster_at(url)))
        done = asyncio.run(fail_over(address, tell, timeout))
    facts = {"old": done.old, "new": done.new, "paused_s": round(done.paused_s, 1)}
    report(
        as_json,
        facts,
        f"The primary is {done.new}. Writes waited for {done.paused_s:.1f} s. Nothing was lost.",
    )


def _without_sentinels(*, is_cluster: bool) -> str:
    if is_cluster:
        return (
            "this region is a cluster, whose own failover loses nothing. Type CLUSTER FAILOVER into the "
            "replica that is to take over."
        )
    return (
        "only sentinels can fail over a region while its clients follow, and this URL names none. Without "
        "them, type FAILOVER into the primary, which loses nothing, and move the address to the new primary."
    )

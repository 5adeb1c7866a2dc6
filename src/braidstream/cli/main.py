"""The `braid` command. Exit codes: 0 success, 1 error or problem found, 2 usage error."""

from typing import Annotated

import typer

from braidstream import __version__
from braidstream.cli import (
    adopt,
    compact,
    dead,
    doctor,
    gateway,
    init,
    log_verbs,
    region,
    replicate,
    spark,
    status,
    streams,
    tune,
    up,
)
from braidstream.cli.secret import UrlCommand

app = typer.Typer(
    name="braid",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"braidstream {__version__}")
        raise typer.Exit


@app.callback()
def braid(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Active-active event streams on the Redis or Valkey servers you already run."""


app.command("init", cls=UrlCommand)(init.init)
app.command("adopt", cls=UrlCommand)(adopt.adopt)
app.command("gateway", cls=UrlCommand)(gateway.gateway)
app.command("replicate")(replicate.replicate)
app.command("up")(up.up)
app.command("status")(status.status)
app.command("doctor")(doctor.doctor)
app.command("streams", cls=UrlCommand)(streams.streams)
app.command("groups", cls=UrlCommand)(streams.groups)
app.command("tail", cls=UrlCommand)(streams.tail)
spark.app.command("compact", cls=UrlCommand)(compact.compact)
app.add_typer(dead.app, name="dead")
app.add_typer(log_verbs.app, name="log")
app.add_typer(region.app, name="region")
app.add_typer(spark.app, name="spark")
app.add_typer(tune.app, name="tune")


if __name__ == "__main__":
    app()

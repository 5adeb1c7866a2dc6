"""The `braid` command. Exit codes: 0 fine, 1 found trouble, 2 misused."""

import typer

from braidstream.cli import compact, gateway, init, region, replicate, spark, tune, up

app = typer.Typer(
    name="braid",
    help="Active-active event streams on the Redis or Valkey servers you already run.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("init")(init.init)
app.command("gateway")(gateway.gateway)
app.command("replicate")(replicate.replicate)
app.command("up")(up.up)
spark.app.command("compact")(compact.compact)
app.add_typer(region.app, name="region")
app.add_typer(spark.app, name="spark")
app.add_typer(tune.app, name="tune")


if __name__ == "__main__":
    app()

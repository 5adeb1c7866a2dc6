"""`braid acl`: the command that gives a user the rights of a program or a daemon, and no more."""

from enum import StrEnum
from typing import Annotated

import typer

from braidstream.cli.reach import Json, report
from braidstream.errors import BraidError
from braidstream.operations.rights import IDEMPOTENT, daemon_rights, operator_rights, program_rights


class Kind(StrEnum):
    """What the user is for."""

    reader = "reader"
    writer = "writer"
    consumer = "consumer"
    worker = "worker"
    operator = "operator"
    daemon = "daemon"
    link = "link"


def acl(
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help=f"{', '.join(Kind)}.")],
    streams: Annotated[
        str, typer.Option(help="Names, or prefixes with a star: orders, or 'orders,payments*'.")
    ] = "",
    topics: Annotated[
        str, typer.Option(help="Topics, as --streams: the program works on their partitions.")
    ] = "",
    user: Annotated[str, typer.Option(help="Name of the user. Default: the kind.")] = "",
    idempotent: Annotated[
        bool,
        typer.Option(
            "--idempotent",
            help="The writer, or one behind the link, sends messages: idempotent=True, MultiRegion.",
        ),
    ] = False,
    later: Annotated[
        bool, typer.Option("--later", help="Entries may wait for later: delay=, at=, raise Later.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the ACL SETUSER command for a user. It changes nothing.

    Put a password in the place of PASSWORD. If the user exists and has one, leave out `on >PASSWORD`.

    A reader reads by XREAD and XRANGE. A writer appends and deletes. A consumer reads by groups. A worker
    is a consumer that also creates its stream and its dead letters (braidstream.Consumer). An operator uses
    `braid` and the console to look at everything, and to change groups, dead letters, retention and ID mode.
    A daemon logs in to its own server as daemon, to the servers of its peers as link. Operators and daemons
    work on all streams.

    Example: braid acl worker --streams orders --user billing
    """
    if idempotent and kind not in (Kind.writer, Kind.link):
        raise typer.BadParameter("--idempotent is for a writer and a link.")
    if later and kind in (Kind.operator, Kind.daemon, Kind.link):
        raise typer.BadParameter(f"--later is for programs: {described(kind, '')} works on all streams.")
    rights = rights_of(kind, streams, topics, idempotent=idempotent, later=later)
    line = " ".join(["ACL SETUSER", user or kind, "on", ">PASSWORD", *rights])
    report(as_json, {"user": user or kind, "rights": rights}, line)


def described(kind: Kind, streams: str) -> str:
    """`a writer of orders`, `an operator`."""
    article = "an" if kind is Kind.operator else "a"
    return f"{article} {kind} of {streams}" if streams else f"{article} {kind}"


def rights_of(
    kind: Kind, streams: str, topics: str = "", *, idempotent: bool = False, later: bool = False
) -> list[str]:
    """streams, topics: names, separated by commas; empty for a daemon and an operator."""
    is_program = kind not in (Kind.daemon, Kind.link, Kind.operator)
    if is_program != bool(streams or topics):
        what = "needs --streams or --topics." if is_program else "works on all streams: no --streams."
        raise typer.BadParameter(f"{described(kind, '')} {what}")
    if kind is Kind.operator:
        return operator_rights()
    if not is_program:
        found = daemon_rights(own=kind is Kind.daemon, peer=kind is Kind.link)
        return [*found, *(f"+{each}" for each in IDEMPOTENT if idempotent and f"+{each}" not in found)]
    try:
        return program_rights(
            kind, _names(streams), topics=_names(topics), idempotent=idempotent, later=later
        )
    except BraidError as error:
        raise typer.BadParameter(str(error)) from None


def _names(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")] if text else []

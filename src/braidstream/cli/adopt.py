"""`braid adopt`: take native streams over in place, give them back, bring strays in."""

from typing import Annotated, Any, Final

import typer

from braidstream.cli.reach import Json, Url, report, trouble
from braidstream.cli.regions import on_region
from braidstream.cli.screen import say
from braidstream.cli.system_log import log_change
from braidstream.engine.address import shown
from braidstream.model.frontier import name_text
from braidstream.operations import adoption as plans
from braidstream.operations.adoption import Done, NativeStream
from braidstream.operations.open_region import AnyClient, open_region
from braidstream.plan.lookup import current
from braidstream.replication.region_facts import note_adoption


def adopt(
    url: Url,
    patterns: Annotated[
        list[str] | None, typer.Argument(help="Names of streams, like orders or 'orders*'.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Make adopted streams native again. The region must have no peers.")
    ] = False,
    strays: Annotated[
        bool,
        typer.Option(
            "--strays", help="Append entries that a client wrote directly at the server to their stream."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Take native streams of the server over, in place and in constant time.

    Entries, IDs, groups, consumers and pending entries stay as they are. Clients and gateways of braidstream
    keep running. XADD of other clients under an adopted name fails with WRONGTYPE.

    Example: braid adopt 'orders*' --url redis://localhost:6379 --dry-run
    """
    if undo and strays:
        raise typer.BadParameter("--undo and --strays are two different things. Use one of them.")
    if not patterns and not strays:
        raise typer.BadParameter("name the streams, like orders or 'orders*'.", param_hint="GLOB")
    wanted = [pattern.encode("utf-8", "surrogateescape") for pattern in patterns or ["*"]]
    with trouble(url, as_json), open_region(url) as client:
        client.run_plan(plans.open_view())
        if undo:
            found, act, verb = _adopted(client, wanted), plans.release, "made native again"
        else:
            found = [each for each in _native(client, wanted) if each.is_stray or not strays]
            act, verb = (plans.bring_in, "brought in") if strays else (plans.adopt, "adopted")
        if any(not each.is_stray for each in found) and not (undo or strays or dry_run):
            on_region(url, note_adoption)
        if not dry_run:
            log_change("adopt", streams=" ".join(patterns or ["*"]), what=verb, server=shown(url))
        results = list[dict[str, Any]]()
        for each in found:
            if each.is_stray and not strays:
                done = plans.taken(each.name)
            elif dry_run:
                done = Done(each.name, each.entries, each.groups)
            else:
                done = client.run_plan(act(each.name))
            results.append(_facts(each, done))
            if not as_json:
                say(_line(each, done, f"would be {verb}" if dry_run else verb))
        there = {each.name for each in found}
        for name in wanted if patterns else ():
            if not _GLOB.isdisjoint(name) or name in there:
                continue
            if not undo and client.run_plan(current(name)).exists:
                line = f"{name_text(name)}: adopted already"
            else:
                done = Done(name, problem=_NO_SUCH[undo])
                results.append(_facts(NativeStream(name, 0), done))
                line = _line(NativeStream(name, 0), done, "")
            if not as_json:
                say(line)
    failed = sum("problem" in each for each in results)
    count = len(results) - failed
    state = f"would be {verb}" if dry_run else verb
    text = f"{shown(url)}: {count} stream{'' if count == 1 else 's'} {state}."
    if failed:
        text += f" {failed} could not be."
    report(as_json, {"dry_run": dry_run, "done": count, "failed": failed, "streams": results}, text)
    if failed:
        raise typer.Exit(1)


_GLOB: Final = frozenset(b"*?[\\")
# By whether it was to be made native again.
_NO_SUCH: Final = {
    False: "there is no native stream of this name",
    True: "no adopted stream has this name",
}


def _native(client: AnyClient, wanted: list[bytes]) -> list[NativeStream]:
    pages = client.run_on_primaries(lambda: plans.find_native(wanted))
    found = {each.name: each for page in pages for each in page}
    return [found[name] for name in sorted(found)]


def _adopted(client: AnyClient, wanted: list[bytes]) -> list[NativeStream]:
    pages = client.run_on_primaries(lambda: plans.adopted_names(wanted))
    return [NativeStream(name, 0) for name in sorted({name for page in pages for name in page})]


def _facts(stream: NativeStream, done: Done) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": name_text(stream.name), "entries": done.entries}
    if stream.groups:
        facts |= {"groups": stream.groups, "pending": stream.pending}
    return facts | ({"problem": done.problem} if done.problem else {})


def _line(stream: NativeStream, done: Done, state: str) -> str:
    name = name_text(stream.name)
    if done.problem:
        return f"{name}: not done: {done.problem}."
    count = f"{stream.groups} group{'' if stream.groups == 1 else 's'}"
    groups = f", {count}, {stream.pending} pending" if stream.groups else ""
    if groups and stream.is_stray:
        groups = f"; {count} with {stream.pending} pending dropped: XGROUP CREATE again"
    entries = f"{done.entries} {'entry' if done.entries == 1 else 'entries'}"
    if state.endswith("native again"):
        return f"{name}: {state}" if state.startswith("would") else f"{name}: {state}, {entries} moved"
    return f"{name}: {state}, {entries}{groups}"

"""The first page (regions, links, what is wrong, rates, lag), findings of the doctor, results of an audit."""

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from braidstream.console.drawing import draw, draw_map, link_state
from braidstream.console.page import Console, console_of, render, time_text
from braidstream.console.samples import SPAN_S
from braidstream.operations.words import daemon_words, link_words, memory_words


async def show(request: Request) -> Response:
    console = console_of(request)
    sampler, names = console.sampler, [each.name for each in console.regions.region]
    found = await sampler.newest()
    rates = sampler.rates
    links = [
        (link, link_state(link), link_words(link, rates.get((link.source, link.target), 0.0)))
        for link in found.links
    ]
    lags = {name: sampler.worst_lags(name) for name in names}
    shipped = {name: sampler.shipped(name) for name in names}
    charts = [
        draw("Lag of the slowest peer, by source region", lags, unit="s", span_s=SPAN_S),
        draw("Entries shipped to peers, by source region", shipped, unit="/s", span_s=SPAN_S),
    ]
    return render(
        request,
        "regions.html",
        page="map",
        found=found,
        map=draw_map(found, rates),
        links=links,
        regions=[
            (view, memory_words(view), daemon_words(view, found)) for view in found.views if not view.error
        ],
        charts=charts if len(names) > 1 else [],
    )


# ----------------------------------------------------------------------------------------------------
# Findings of the doctor, and the result of an audit.

_MOST_AUDIT_BYTES: Final = 16 * 2**20
_MOST_ANOMALIES: Final = 200


async def doctor(request: Request) -> Response:
    console = console_of(request)
    found = await console.findings.latest(console.regions)
    serious = sum(finding.level != "note" for finding in found.findings)
    return render(
        request,
        "doctor.html",
        page="doctor",
        findings=found.findings,
        why=found.why,
        serious=serious,
        at=time_text(round(found.at * 1000))[:-4],
    )


async def audit(request: Request) -> Response:
    """What `braid spark audit --json` wrote into the file that --audit names."""
    console = console_of(request)
    found, why = await asyncio.to_thread(_read_audit, console.audit_file)
    anomalies = found.get("anomalies", [])
    return render(
        request,
        "audit.html",
        page="audit",
        file=console.audit_file,
        why=why,
        at="" if why else _written(console.audit_file),
        facts=found,
        rows=_rows(console, found),
        waiting=sum(found.get("behind", {}).values()) + sum(found.get("removing", {}).values()),
        anomalies=anomalies[:_MOST_ANOMALIES],
        left_out=max(0, len(anomalies) - _MOST_ANOMALIES),
    )


def _read_audit(file: Path | None) -> tuple[dict[str, Any], str]:
    """The facts, or why there are none."""
    if file is None:
        return {}, "no audit"
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_AUDIT_BYTES + 1)
    except OSError as error:
        return {}, f"{file} cannot be read: {error.strerror}."
    if len(text) > _MOST_AUDIT_BYTES:
        return {}, f"{file} has more than {_MOST_AUDIT_BYTES:,} bytes."
    try:
        found = json.loads(text)
        is_audit = isinstance(found["regions"], list) and isinstance(found["anomalies"], list)
        counted = [found[key][str(number)] for key in ("behind", "removing") for number in found["regions"]]
    except (ValueError, KeyError, TypeError):
        return {}, f"{file} is not what braid spark audit --json prints."
    if not is_audit or not all(isinstance(each, int) for each in (*counted, found.get("wrong"))):
        return {}, f"{file} is not what braid spark audit --json prints."
    return found, ""


def _written(file: Path | None) -> str:
    return "" if file is None else time_text(round(file.stat().st_mtime * 1000))[:-4]


def _rows(console: Console, found: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Of each region: its name, what it has not seen, has still to remove, and what is wrong."""
    return [
        (
            console.region_name(number),
            found["behind"][str(number)],
            found["removing"][str(number)],
            sum(each["region"] == number and not each["healed"] for each in found["anomalies"]),
        )
        for number in found.get("regions", [])
    ]

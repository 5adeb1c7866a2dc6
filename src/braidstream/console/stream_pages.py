"""Streams: search with bounds, one stream with its strands, one group with its lag and consumers."""

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from braidstream.clients.raised import ServerError
from braidstream.console.access import Page, RegionAccess
from braidstream.console.drawing import draw
from braidstream.console.page import MissingPageError, Query, QueryError, render
from braidstream.console.samples import RATE_SPAN_S
from braidstream.consumers import dead_letters
from braidstream.errors import BraidError, DamagedError, LostError, ReplyError
from braidstream.model import ids
from braidstream.model.frontier import name_of_text
from braidstream.model.glob import matcher
from braidstream.model.later import later_name
from braidstream.model.retention_policy import Policy
from braidstream.operations.later_promotion import find_strands
from braidstream.operations.read_regions import GroupRow, read_consumers, read_groups
from braidstream.operations.retention_trim import read_policies
from braidstream.operations.rights import with_right
from braidstream.operations.streams import (
    StreamDetail,
    StreamRow,
    read_detail,
    read_entries,
    read_large,
    read_stream,
    try_stream,
    unlimited,
)
from braidstream.operations.words import age, printable, size_text
from braidstream.plan.lookup import read_any_region
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

# ----------------------------------------------------------------------------------------------------
# A search for streams by name, in bounded parts.

# A search ends after this number of found streams, pages of keys, or seconds, and can be continued.
_MOST_FOUND: Final = 50
_PAGE: Final = 200
_MOST_PAGES: Final = 100
_WITHIN_S: Final = 1.0
_CURSOR: Final = re.compile(r"[0-9]{1,20}\Z")


async def list_found(query: Query, *, logs_only: bool = False) -> dict[str, Any]:
    """One part of a search, for the templates of lists. Logs are few: the search goes on until it has found
    some."""
    rows, cursor, began = list[StreamRow](), query.text("cursor") or "0", time.monotonic()
    skipped, damaged = set[str](), list[DamagedError]()
    while True:
        part = await search(query, cursor)
        skipped.update(part.skipped)
        found = await read_rows(query.region, part.names, skipped, damaged)
        rows += [row for row in found if row.is_log or not logs_only]
        if rows or not part.cursor or time.monotonic() - began > _WITHIN_S:
            break
        cursor = str(part.cursor)
    return {
        "region": query.region.name,
        "pattern": query.text("pattern"),
        "rows": rows,
        "following": part.cursor,
        "skipped": sorted(skipped),
        "unread": [(each.stream, each.text) for each in damaged],
        "is_first": query.text("cursor") in ("", "0"),
    }


async def read_rows(
    region: RegionAccess, names: list[bytes], skipped: set[str], damaged: list[DamagedError]
) -> list[StreamRow]:
    """The streams that still exist. Those of a node that was lost since are skipped, damaged ones go into
    `damaged`."""
    reads = (region.run(try_stream(name)) for name in names)
    rows = list[StreamRow]()
    for found in await asyncio.gather(*reads, return_exceptions=True):
        if isinstance(found, LostError) and found.address != region.name:
            skipped.add(found.address)
        elif isinstance(found, DamagedError):
            damaged.append(found)
        elif isinstance(found, BaseException):
            raise found
        elif found is not None:
            rows.append(found)
    return rows


async def search(query: Query, text: str, pattern: str = "") -> Page:
    """Names of streams that match the pattern of the query, else the given one, from a cursor on."""
    pattern = query.text("pattern") or pattern
    if not _CURSOR.match(text):
        raise QueryError("cursor is not a number.")
    glob = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
    try:
        matches = matcher(name_of_text(glob))
    except (ValueError, ReplyError) as error:
        raise QueryError(f"the pattern cannot be read: {error}") from None
    names, skipped, cursor, began = set[bytes](), set[str](), int(text), time.monotonic()
    for _ in range(_MOST_PAGES):
        page = await query.region.list_streams(cursor, _PAGE)
        cursor = page.cursor
        names.update(name for name in page.names if matches(name))
        skipped.update(page.skipped)
        if not cursor or len(names) >= _MOST_FOUND or time.monotonic() - began > _WITHIN_S:
            break
    return Page(cursor, sorted(names), tuple(sorted(skipped)))


# ----------------------------------------------------------------------------------------------------
# Stream pages


async def list_page(request: Request) -> Response:
    found = await list_found(Query.of(request))
    return render(request, "streams.html", page="streams", now_ms=time.time() * 1000, **found)


async def show(request: Request) -> Response:
    query = Query.of(request)
    name = query.name()
    detail = await query.region.run(read_detail(name))
    if detail is None:
        raise MissingPageError(f"there is no stream {printable(name)} in {query.region.name}.")
    series = query.console.rates.note(query.region.name, name, detail.strands)
    named = {query.console.region_name(writer): points for writer, points in series.items()}
    chart = draw(
        "Entries that arrive here, by the region that wrote them", named, unit="/s", span_s=RATE_SPAN_S
    )
    return render(
        request,
        "stream.html",
        page="streams",
        region=query.region.name,
        name=name,
        row=detail.row,
        strands=detail.strands,
        groups=detail.groups,
        has_dead_letters=await _has_dead_letters(query, name),
        aside=await query.region.run(_read_aside(detail)),
        chart=chart,
        now_ms=time.time() * 1000,
    )


@dataclass(frozen=True, slots=True)
class Aside:
    """What stands beside a stream: the stream of entries that wait for it, how many they are, its policy, and
    why it may fill the server."""

    later: bytes = b""
    waiting: int = 0
    policy: str = ""
    unlimited: tuple[str, ...] = ()


def _read_aside(detail: StreamDetail) -> Plan[Aside]:
    later, waiting, name = b"", 0, detail.row.name
    with suppress(ValueError):
        later = later_name(name)
    strands = (yield from find_strands([later])).get(later, ()) if later else ()
    if strands:
        waiting = sum((yield Batch([("XLEN", strand.key) for strand in strands], resend=True)))
    policy = (yield from read_policies(View((yield from read_any_region())))).of(name)
    large = yield from read_large(detail)
    why = [text for text, _ in unlimited(large, policy)] if large is not None else []
    return Aside(later, waiting, "" if policy is None else _policy_words(policy), tuple(why))


def _policy_words(policy: Policy) -> str:
    ages = {"max age": policy.max_age_s, "hold": policy.hold_s}
    words = [f"{what} {age(1000 * seconds)}" for what, seconds in ages.items() if seconds]
    words += [f"max size {size_text(policy.max_bytes)}"] if policy.max_bytes else []
    return ", ".join([*words, "acked"] if policy.acked else words)


async def _has_dead_letters(query: Query, name: bytes) -> bool:
    """Whether the newest entry is a dead letter."""
    newest = await query.region.run(read_entries(name, ids.ZERO, ids.LAST, 1, reverse=True))
    return any(dead_letters.parse(entry[3]) is not None for entry in newest)


# ----------------------------------------------------------------------------------------------------
# Consumer groups: the lag in every region, who has which pending entries and for how long.

_MOST_PENDING: Final = 50
_MOST_CONSUMERS: Final = 100

# What a region says about groups: rows, or why it cannot.
Answer = tuple[list[GroupRow], str]


async def group_list_page(request: Request) -> Response:
    """The groups of the streams that a search finds, the largest lag first."""
    query = Query.of(request)
    part = await search(query, query.text("cursor") or "0")
    skipped, damaged = {*part.skipped}, list[DamagedError]()
    streams = [row for row in await read_rows(query.region, part.names, skipped, damaged) if row.groups]
    answers = await asyncio.gather(*(_groups(query.region, row) for row in streams))
    found = [group for groups, _ in answers for group in groups]
    return render(
        request,
        "groups.html",
        page="groups",
        region=query.region.name,
        pattern=query.text("pattern"),
        rows=sorted(found, key=lambda group: (-group.lag, group.stream, group.group)),
        unread=[
            *((each.stream, each.text) for each in damaged),
            *((row.name, why) for row, (_, why) in zip(streams, answers, strict=True) if why),
        ],
        following=part.cursor,
        skipped=sorted(skipped),
        is_first=query.text("cursor") in ("", "0"),
    )


async def _groups(region: RegionAccess, row: StreamRow) -> Answer:
    """An error of one stream does not hide the others."""
    now_ms = round(time.time() * 1000)
    try:
        return await region.converse(read_groups(row.name, now_ms, is_log=row.is_log)), ""
    except (BraidError, ServerError, OSError) as error:
        return [], with_right(str(error))


async def show_group(request: Request) -> Response:
    query = Query.of(request)
    name, group = query.name(), query.name("group")
    regions = list(query.console.access.values())
    answers = await asyncio.gather(*(_group(region, name, group) for region in regions))
    by_region = [
        (region.name, next((row for row in rows if row.group == group), None), why)
        for region, (rows, why) in zip(regions, answers, strict=True)
    ]
    if not any(row or why for _, row, why in by_region):
        raise MissingPageError(f"no region has the group {printable(group)} of {printable(name)}.")
    try:
        consumers, pending = await query.region.converse(read_consumers(name, group, _MOST_PENDING))
        why = ""
    except (ReplyError, ServerError) as error:
        consumers, pending, why = [], [], with_right(str(error))
    return render(
        request,
        "group.html",
        page="groups",
        region=query.region.name,
        name=name,
        group=group,
        by_region=by_region,
        names={region.id: region.name for region in regions},
        is_once=any(row and row.owned is not None for _, row, _ in by_region),
        consumers=consumers[:_MOST_CONSUMERS],
        left_out=max(0, len(consumers) - _MOST_CONSUMERS),
        pending=pending,
        why=why,
    )


async def _group(region: RegionAccess, name: bytes, group: bytes) -> Answer:
    try:
        row = await region.run(read_stream(name))
    except (BraidError, OSError) as error:
        return [], with_right(str(error))
    return ([], "") if row is None else await _groups(region, row)

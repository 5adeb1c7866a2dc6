"""A search for streams by name, in bounded parts."""

import asyncio
import re
import time
from typing import Any, Final

from braidstream.admin.stream_overview import StreamRow, try_stream
from braidstream.commands.glob import matcher
from braidstream.console.cluster_access import Page
from braidstream.console.page import Query, QueryError
from braidstream.console.region_access import RegionAccess
from braidstream.errors import DamagedError, LostError, ReplyError
from braidstream.model.frontier import name_of_text

# A search ends after so many found streams, pages of keys, or seconds, and can be continued.
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


async def search(query: Query, text: str) -> Page:
    """Names of streams that match `pattern`, from a cursor on."""
    pattern = query.text("pattern")
    if not _CURSOR.match(text):
        raise QueryError("cursor is no number.")
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

"""A search for streams by name, in bounded parts."""

import asyncio
import re
import time
from typing import Any, Final

from braidstream.admin.stream_overview import StreamRow, list_streams, read_stream
from braidstream.commands.glob import matcher
from braidstream.console.page import Query, QueryError
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
    while True:
        names, following = await search(query, cursor)
        found = await asyncio.gather(*(query.region.run(read_stream(name)) for name in names))
        rows += [row for row in found if row is not None and (row.is_log or not logs_only)]
        if rows or not following or time.monotonic() - began > _WITHIN_S:
            break
        cursor = str(following)
    return {
        "region": query.region.name,
        "pattern": query.text("pattern"),
        "rows": rows,
        "following": following,
        "is_first": query.text("cursor") in ("", "0"),
    }


async def search(query: Query, text: str) -> tuple[list[bytes], int]:
    """Names of streams that match `pattern`, from a cursor on, and where to continue; 0 at the end."""
    pattern = query.text("pattern")
    if not _CURSOR.match(text):
        raise QueryError("cursor is no number.")
    glob = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
    matches, names, cursor, began = matcher(name_of_text(glob)), set[bytes](), int(text), time.monotonic()
    for _ in range(_MOST_PAGES):
        cursor, page = await query.region.run(list_streams(cursor, _PAGE))
        names.update(name for name in page if matches(name))
        if not cursor or len(names) >= _MOST_FOUND or time.monotonic() - began > _WITHIN_S:
            break
    return sorted(names), cursor

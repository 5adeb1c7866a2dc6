"""What Tab completes besides words of `braid` itself: regions of braid.toml, and streams of a region.

frame.py asks here only when a shell does. Whatever fails, Tab then offers nothing.
"""

import contextlib
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from braidstream.backoff import NoBackoff
from braidstream.config import load
from braidstream.errors import ReplyError
from braidstream.model.frontier import name_of_text
from braidstream.model.registry import parse_each
from braidstream.operations.open_region import open_region
from braidstream.operations.streams import list_native, list_streams
from braidstream.operations.words import printable
from braidstream.plan.lookup import registry_of
from braidstream.plan.plan import Batch, Plan
from braidstream.retry import Retry

# Of a large database Tab sees a part: pages of 1,000 keys.
_MOST_PAGES: Final = 50
_MOST_NAMES: Final = 200
_WITHIN_S: Final = 0.5


def regions(file: Path, begun: str) -> list[str]:
    """The regions of the file. Its URLs may want variables that this shell lacks."""
    with contextlib.suppress(Exception):
        listed = tomllib.loads(file.read_text(encoding="utf-8"))["region"]
        return [each["name"] for each in listed if each["name"].startswith(begun)]
    return []


def streams(url: str | None, file: Path, region: str | None, begun: str) -> list[str]:
    """The streams at a URL, else of a region of the file, by default the first one.

    begun: the first letters of a name, perhaps after other names and commas.
    """
    done, comma, last = begun.rpartition(",")
    with contextlib.suppress(Exception):
        if url is None:
            known = load(file)
            url = known.named(region).url if region else known.region[0].url
        return [f"{done}{comma}{name}" for name in _streams(url, last)]
    return []


def _streams(url: str, prefix: str) -> Iterator[str]:
    wanted = name_of_text(prefix)
    at_once = {"socket_timeout": _WITHIN_S, "socket_connect_timeout": _WITHIN_S}
    with open_region(url, retry=Retry(NoBackoff(), 0), **at_once) as client:
        found, _ = client.run_on_reachable(lambda: _names(wanted))
        for name in sorted({name for names in found for name in names}):
            yield printable(name)


def _names(prefix: bytes) -> Plan[list[bytes]]:
    found = yield from _pages(list_streams, prefix)
    if found:
        replies = yield Batch([registry_of(name) for name in found], resend=True, attempt=True)
        known = ([] if isinstance(reply, ReplyError) else reply for reply in replies)
        found = [name for name, registry in parse_each(found, known).items() if registry.is_listed]
    return [*found, *(yield from _pages(list_native, prefix))]


def _pages(page_at: Callable[[int], Plan[tuple[int, list[bytes]]]], prefix: bytes) -> Plan[list[bytes]]:
    found, cursor = dict[bytes, None](), 0
    for _ in range(_MOST_PAGES):
        cursor, names = yield from page_at(cursor)
        found |= dict.fromkeys(name for name in names if name.startswith(prefix))
        if not cursor or len(found) > _MOST_NAMES:
            break
    return [*found][:_MOST_NAMES]

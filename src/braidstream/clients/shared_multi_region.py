"""What both MultiRegion clients share: which regions there are, which commands may follow to another one,
what the client was given, and whether a region is open. No I/O.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redis.exceptions import AskError, ClusterDownError, RedisClusterException, TryAgainError

from braidstream.clients import shared
from braidstream.clients.raised import NotARegionError
from braidstream.clients.shared import find_spec
from braidstream.engine.address import shown
from braidstream.engine.redis_py import LOST, is_refusal
from braidstream.errors import ReplyError
from braidstream.lua import require_current
from braidstream.model import ids, keys
from braidstream.model.ids import Id
from braidstream.model.region import Region
from braidstream.model.registry import CACHE_LIMIT
from braidstream.model.strand import Command, Strand, facts
from braidstream.plan.lookup import ms_of, read_any_region, read_registry
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View

if TYPE_CHECKING:
    from braidstream.config import Config

# The region does not serve this: it, or a node of its cluster, is away. What a region answers is no reason.
AWAY: Final = (*LOST, ClusterDownError, TryAgainError, AskError, RedisClusterException, NotARegionError)

# Where the regions are: braid.toml, what was read from it, or URLs in order of preference.
Regions: TypeAlias = "str | Path | Config | Sequence[str]"
# What to call after a change: the names of the two regions, and why.
OnChange = Callable[[str, str, str], object]


class BehindWarning(UserWarning):
    """The region that answers lacks entries that this client was given in another one."""


# ----------------------------------------------------------------------------------------------------
# Regions


def places(regions: Any, prefer: str | None) -> "tuple[list[tuple[str, str]], Config | None]":
    """The name and the URL of each region, the preferred one first; and the file, if that names them."""
    config: Config | None = None
    if not isinstance(regions, list | tuple):
        homes = shared.new_session(idempotent=False, producer=None, config=regions).homes
        assert homes is not None
        config = homes.config
        found = [(each.name, each.url) for each in config.region]
    else:
        found = [(shown(url), url) for url in regions]
    if not found:
        raise ValueError("regions: name at least one, as the file braid.toml or as a list of URLs.")
    first = [place for place in found if prefer in place]
    if prefer is not None and not first:
        raise ValueError(
            f"prefer: there is no region {prefer!r} among {', '.join(name for name, _ in found)}."
        )
    return [*first, *(place for place in found if place not in first)], config


def check_open() -> Plan[Region]:
    """The region behind a server. An error if it serves no clients."""
    region = require_current((yield from read_any_region()).require_open())
    if region.is_cluster:
        [info] = yield Batch([("CLUSTER", "INFO")], resend=True, attempt=True)
        if isinstance(info, bytes) and b"cluster_state:ok" not in info:
            raise ReplyError("CLUSTERDOWN The cluster is down")
    return region


# A status that is older says nothing.
FRESH_S: Final = 3.5
CAUGHT_UP_S: Final = 1.0


def link_lag(name: str) -> Plan[float | None]:
    """The age in seconds of the oldest entry of this region that another one lacks, as the daemons here say;
    infinite if the link is not up. None if no daemon says it."""
    now, stored = yield Batch([("TIME",), ("HGETALL", keys.STATUS)], resend=True)
    lags = [_lag(text, name, ms_of(now)) for text in facts(stored).values()]
    return max((lag for lag in lags if lag is not None), default=None)


def _lag(text: bytes, name: str, now_ms: int) -> float | None:
    try:
        status = json.loads(text)
        link = status["links"].get(name)
        if link is None or now_ms - status["at_ms"] > FRESH_S * 1000:
            return None
        is_known = link["state"] == "up" and link["lag_ms"] is not None
        return float(link["lag_ms"]) / 1000 if is_known else inf
    except (ValueError, KeyError, TypeError, AttributeError):  # of another version
        return None


def stays_text(here: str, there: str, error: Exception) -> str:
    return (
        f"this client cannot see whether region {there} has all entries again, so it stays in {here}: "
        f"{error} It needs %R~{keys.STATUS.decode()} and +hgetall, as `braid acl` grants them."
    )


# ----------------------------------------------------------------------------------------------------
# Commands

_ON_LOGS: Final = frozenset((b"TWRITE", b"TREAD", b"TACK", b"TEVICT", b"TCFGSET"))
# Reads that could go backward after a change. A group skips nothing, whatever has arrived.
READS: Final = frozenset(("XREAD", "XRANGE", "XREVRANGE"))
_GIVING: Final = READS | {"XREADGROUP"}


@lru_cache(maxsize=4096)
def _follows(word: str | bytes) -> bool:
    name = (word.encode() if isinstance(word, str) else word).split()[0].upper()
    return find_spec(word) is not None and (name[:1] == b"X" or name in _ON_LOGS)


def may_follow(commands: Iterable[tuple[Any, ...]]) -> bool:
    """Whether all commands are about streams and logs. Others may be about plain keys (also DEL or TYPE):
    regions do not exchange those, so they never go to a second region."""
    return all(isinstance(args[0], str | bytes) and _follows(args[0]) for args in commands)


def is_unknown(error: BaseException) -> bool:
    """Whether a write may have been applied, and is not sent again."""
    return bool(getattr(error, "is_unknown", False))


_MESSAGE: Final = (b"IDMP", b"IDMPAUTO", "IDMP", "IDMPAUTO")


def has_messages(commands: Iterable[tuple[Any, ...]]) -> bool:
    return any(args[0] == "XADD" and args[2] in _MESSAGE for args in commands)


def lost_everywhere(error: Exception, commands: Iterable[tuple[Any, ...]] | None) -> Exception:
    """The error for the user, if messages were sent and no reply came."""
    if commands is None or is_unknown(error) or is_refusal(error) or not has_messages(commands):
        return error
    why = (
        "No reply came: it may or may not have been applied. To send it later, give it an ID of your own: "
        "xadd(..., idmp=(producer, iid))."
    )
    return shared.as_unknown(error, why)  # type: ignore[no-any-return]


def refused_later(refused: Exception, place: str, lost: BaseException) -> Exception:
    """The error for the user, if a message is refused after the reply of a region was lost."""
    if is_refusal(lost):
        return refused
    why = f"Before, the reply of {place} was lost: it may or may not have been applied there."
    return shared.as_unknown(refused, why)  # type: ignore[no-any-return]


# ----------------------------------------------------------------------------------------------------
# What the client was given


def key_of(name: Any) -> bytes:
    if isinstance(name, str):
        return name.encode()
    return name if type(name) is bytes else bytes(name)


class Seen:
    """By stream and writer: the highest ID that this client was given by XADD and by reads."""

    def __init__(self) -> None:
        self._streams = OrderedDict[bytes, dict[int, Id]]()
        self._added = dict[Any, Any]()

    @property
    def streams(self) -> OrderedDict[bytes, dict[int, Id]]:
        added, self._added = self._added, {}
        for name, text in added.items():
            self._note(key_of(name), (text,))
        return self._streams

    def added(self, name: Any, text: Any) -> None:
        """XADD has generated an ID. Of those of one length only the highest is parsed, when it is needed."""
        known = self._added.get(name)
        if known is None or len(known) != len(text):
            if known is not None or len(self._added) >= CACHE_LIMIT:
                _ = self.streams
            self._added[name] = text
        elif text > known:
            self._added[name] = text

    def note(self, args: tuple[Any, ...], reply: Any) -> None:
        """A command, and its reply as redis-py's method returns it."""
        if args[0] == "XADD" and isinstance(reply, str | bytes):
            self._note(key_of(args[1]), (reply,))
        elif args[0] in _GIVING and reply and not isinstance(reply, Exception):
            for name, texts in _given(args, reply):
                self._note(key_of(name), texts)

    def _note(self, name: bytes, texts: Iterable[Any]) -> None:
        known = self._streams.get(name)
        if known is None:
            known = self._streams[name] = {}
            if len(self._streams) > CACHE_LIMIT:
                self._streams.popitem(last=False)
        for text in texts:
            ms, _, number = (text.decode() if type(text) is bytes else text).partition("-")
            entry = int(ms), int(number)
            writer = entry[1] & ids.LAST_WRITER
            if writer not in known or entry > known[writer]:
                known[writer] = entry


def _given(args: tuple[Any, ...], reply: Any) -> Iterator[tuple[Any, Iterable[Any]]]:
    """The IDs in the reply to a read, by stream."""
    if args[0] in ("XRANGE", "XREVRANGE"):
        yield args[1], (entry[0] for entry in reply)
    else:
        for name, page in reply.items() if isinstance(reply, dict) else reply:
            # As RESP3 has it, redis-py puts the entries into a list of their own.
            entries = chain.from_iterable(page) if page and isinstance(page[0], list) else page
            yield name, (entry[0] for entry in entries)


def lacking(view: View, name: bytes, seen: Mapping[int, Id]) -> Plan[dict[int, str]]:
    """By writer: the highest ID that was seen and is not here. Up to three round trips."""
    registry = yield from read_registry(view, name)
    ends = dict[int, Id]()
    infos = yield Batch([each.xinfo() for each in registry.strands], resend=True, attempt=True)
    last = {
        strand: ids.native(facts(info)[b"last-generated-id"])
        for strand, info in zip(registry.strands, infos, strict=True)
        if not isinstance(info, ReplyError)
    }
    for strand, native in chain(registry.cuts.items(), last.items()):
        if strand.has_generated_ids:
            ends[strand.writer] = max(ends.get(strand.writer, ids.ZERO), strand.user(native))
    found = {writer: entry for writer, entry in seen.items() if entry > ends.get(writer, ids.ZERO)}
    chosen = [strand for strand in registry.strands if strand.has_chosen_ids]
    if found and chosen:
        found = yield from _not_chosen(found, chosen)
    return {writer: ids.text(entry).decode() for writer, entry in found.items()}


def _not_chosen(found: dict[int, Id], chosen: list[Strand]) -> Plan[dict[int, Id]]:
    """Without those that users chose, and that are here."""
    pairs = [(writer, strand) for writer in found for strand in chosen]
    looks: list[Command] = [
        ("XRANGE", strand.key, *[ids.text(found[writer])] * 2) for writer, strand in pairs
    ]
    replies = yield Batch(looks, resend=True)
    there = {writer for (writer, _), reply in zip(pairs, replies, strict=True) if reply}
    return {writer: entry for writer, entry in found.items() if writer not in there}


def behind_text(name: bytes, region: str, lacks: Mapping[int, str]) -> str:
    upto = ", ".join(f"{entry} of region {writer}" for writer, entry in lacks.items())
    return (
        f"{name.decode(errors='replace')}: region {region} lacks entries that this client was given before, "
        f"up to {upto}. They come when the region that wrote them is back."
    )

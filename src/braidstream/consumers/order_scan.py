"""Reads the pending list: which entries of other consumers come before ours? See key_lanes.py."""

from collections.abc import Hashable, Mapping
from typing import Any, Final

from braidstream.consumers.key_lanes import SCAN_S, KeyLanes, number
from braidstream.consumers.message import Message
from braidstream.consumers.settings import Settings
from braidstream.consumers.spoken import ViewOf, command
from braidstream.model.ids import Id
from braidstream.protocol.plan import Plan

_PAGE: Final = 1000
_BODIES: Final = 100
# How long it rests after a scan, for each entry that it read: about four times the CPU that this takes.
# Consumers that died may leave thousands of entries.
_REST_S: Final = 40e-6
_LONGEST_REST_S: Final = 1.0
_NO_KEY: Final = object()

Place = tuple[bytes, bytes]


class OrderScan:
    """Remembers the keys of entries that are pending for others, while they are."""

    def __init__(self, settings: Settings, held: Mapping[Place, Any], lanes: KeyLanes) -> None:
        self._settings, self._held, self._lanes = settings, held, lanes
        self._keys = dict[Place, Hashable]()

    def is_due(self, now: float) -> bool:
        return self._lanes.next_scan is not None and self._lanes.next_scan <= now

    def scan(self, view_of: ViewOf, now: float) -> Plan[None]:
        """Which entries of other consumers are before ours, and what are their keys?"""
        questions = {name.encode(): self._lanes.in_question(name.encode()) for name in self._settings.streams}
        again_at = now + SCAN_S[1] if any(questions.values()) else None
        self._lanes.scan_again(again_at)
        read = 0
        for stream, asked in questions.items():
            if asked:
                last = max(asked, key=number)
                foreign = yield from self._foreign(view_of, stream, last.id)
                read += len(foreign)
                self._lanes.saw(asked, (yield from self._with_keys(view_of, stream, foreign)), now)
        self._lanes.rest(now + min(read * _REST_S, _LONGEST_REST_S))

    def _foreign(self, view_of: ViewOf, stream: bytes, last: bytes) -> Plan[list[bytes]]:
        """Pending entries up to an ID that we do not hold."""
        found, low = list[bytes](), b"-"
        while True:
            page = yield from command(view_of, "XPENDING", stream, self._settings.group, low, last, _PAGE)
            found += [row[0] for row in page if (stream, row[0]) not in self._held]
            if len(page) < _PAGE:
                return found
            low = b"(" + page[-1][0]

    def _with_keys(self, view_of: ViewOf, stream: bytes, entries: list[bytes]) -> Plan[list[tuple[Id, Any]]]:
        known = {entry: self._keys[stream, entry] for entry in entries if (stream, entry) in self._keys}
        unknown = [entry for entry in entries if entry not in known]
        while unknown:
            # They mostly stand side by side.
            page = yield from command(view_of, "XRANGE", stream, unknown[0], "+", "COUNT", _BODIES)
            bodies = dict(page)
            end = number(page[-1][0]) if len(page) == _BODIES else None
            read = [entry for entry in unknown if end is None or number(entry) <= end]
            known |= {entry: self._key(stream, entry, bodies.get(entry)) for entry in read}
            unknown = unknown[len(read) :]
        others = {place: key for place, key in self._keys.items() if place[0] != stream}
        self._keys = others | {(stream, entry): key for entry, key in known.items()}
        return [(number(entry), key) for entry, key in known.items() if key is not _NO_KEY]

    def _key(self, stream: bytes, entry: bytes, words: list[bytes] | None) -> Hashable:
        """The key of an entry; none if it was deleted, or if `key` fails for it."""
        if words is None:
            return _NO_KEY
        try:
            key = self._settings.key_of(Message(stream.decode(), entry.decode(), words))
            hash(key)
        except Exception:
            return _NO_KEY
        return key

"""Entries as people read them: fields and values as text, JSON indented, long values cut."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from braidstream.console.page import time_text
from braidstream.inspection.wording import printable, size_text
from braidstream.model.strand import Entry

SHORT: Final = 400
LONG: Final = 262_144
_MOST_JSON: Final = 65_536
# Shorter JSON stays on one line.
_MOST_LINE: Final = 80


@dataclass(frozen=True, slots=True)
class FieldValue:
    """json: the value indented, if it is JSON. cut: its whole size, if text is only a part of it."""

    name: str
    text: str
    json: str = ""
    cut: str = ""


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry. time: empty for an entry of a log."""

    id: str
    time: str
    writer: int
    fields: tuple[FieldValue, ...]


def entry_row(entry: Entry, most: int = SHORT) -> EntryRow:
    ms, seq, writer, words = entry
    pairs = zip(words[::2], words[1::2], strict=True)
    return EntryRow(
        f"{ms}-{seq}",
        time_text(ms) if ms else "",
        writer,
        tuple(field_value(name, value, most) for name, value in pairs),
    )


def field_value(name: bytes, value: bytes, most: int = SHORT) -> FieldValue:
    shown = printable(value[:most])
    if len(value) > most:
        return FieldValue(printable(name[:SHORT]), shown, cut=size_text(len(value)))
    return FieldValue(printable(name[:SHORT]), shown, json=_indented(value))


def _indented(value: bytes) -> str:
    """A JSON object or list, readable; empty for anything else."""
    if value.lstrip()[:1] not in (b"{", b"[") or len(value) > _MOST_JSON:
        return ""
    try:
        found = json.loads(value)
        text = json.dumps(found, ensure_ascii=False)
        if len(text) > _MOST_LINE:
            text = json.dumps(found, indent=2, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace").decode()  # halves of surrogate pairs are no text
    except (ValueError, RecursionError):
        return ""


def has(entry: Entry, field: str, text: str) -> bool:
    """Whether an entry has the field, and the text in its value; without a field: in any name or value."""
    words = entry[3]
    wanted = text.encode()
    if not field:
        return any(wanted in word for word in words)
    named = field.encode()
    return any(name == named and wanted in value for name, value in _pairs(words))


def _pairs(words: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(words[::2], words[1::2], strict=True)

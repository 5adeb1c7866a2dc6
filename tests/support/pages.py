"""Pages of entries as RESP, and what splicing must make of them."""

from typing import Any

import hiredis

from braidstream.model import ids
from braidstream.replication.link import batches
from braidstream.replication.link.splice import splice

Entry = tuple[bytes, list[bytes]]


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def page(entries: list[Entry]) -> bytearray:
    """What the engine answers to XRANGE."""
    body = bytearray(b"*%d\r\n" % len(entries))
    for native, words in entries:
        body += b"*2\r\n%b*%d\r\n" % (bulk(native), len(words)) + b"".join(map(bulk, words))
    return body


def parsed(reply: bytearray) -> Any:
    """What a RESP parser reads in these bytes; None if they are not one reply."""
    reader = hiredis.Reader()
    reader.feed(bytes(reply))
    try:
        found = reader.gets()
    except hiredis.HiredisError:
        return None
    return None if found is False or reader.has_data() else found


def entries_of(part: batches.Spliced) -> list[Entry]:
    words = batches.parse_array(b"*%d\r\n%b" % (part.count * (part.width + 1), part.body))
    step = part.width + 1
    return [(words[at], words[at + 1 : at + step]) for at in range(0, len(words), step)]


def check(reply: bytearray) -> bool:
    """Any bytes are refused, or spliced to what a parser reads in them. Returns whether they were spliced."""
    before = bytes(reply)
    parts = splice(reply)
    assert reply == before
    if parts is None:
        return False
    entries, read = [tuple(entry) for entry in parsed(reply)], list[Any]()
    for part in parts:
        assert isinstance(part, batches.Spliced)
        page = entries_of(part)
        assert part.body == b"".join(bulk(word) for native, words in page for word in (native, *words))
        assert (len(part), part.last) == (len(page), ids.native(page[-1][0]))
        assert 0 < len(part) <= batches.BATCH_ENTRIES
        assert len(part) == 1 or part.size <= batches.BATCH_BYTES
        assert {len(words) for _, words in page} == {part.width}
        read += page
    assert read == entries
    return True

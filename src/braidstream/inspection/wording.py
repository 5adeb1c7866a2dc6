"""How times, counts, sizes and bytes are written for people."""

from typing import Any


def age(ms: int | None) -> str:
    """A time span in two or three letters: 12s, 3m, 5h, 2d."""
    seconds = max(0, ms or 0) / 1000
    if seconds < 10:
        return f"{seconds:.1f}s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def short(number: int) -> str:
    """A count in at most six letters."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= 10 * size:
            return f"{number / size:,.0f}{unit}"
    return f"{number:,}"


def size_text(size: int) -> str:
    """A number of bytes."""
    for unit, name in ((2**30, "GB"), (2**20, "MB"), (2**10, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} B"


def printable(word: Any) -> str:
    """Bytes that are no text, and control characters, are shown escaped."""
    text = word.decode("utf-8", "backslashreplace") if isinstance(word, bytes) else str(word)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

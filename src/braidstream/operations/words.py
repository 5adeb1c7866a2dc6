"""Regions and links in a few words: the same ones in `braid status` and in the console."""

from typing import Any, Final

from braidstream.operations.status import LinkView, Overview, View

_HELD_MS: Final = 1_000
_SLOW_MS: Final = 5_000


def memory_words(view: View) -> str:
    used = f"{view.memory.used / 2**20:,.1f}"
    return f"{used} of {view.memory.most / 2**20:,.0f} MB" if view.memory.most else f"{used} MB"


def daemon_words(view: View, found: Overview) -> str:
    """Whether the region's daemons run: `up`, `none`, `not needed`, `silent 12s`, `up, held 3.0s`."""
    if view.live:
        count = f"{len(view.live)} daemons" if len(view.live) > 1 else "up"
        return f"{count}, held {age(held_ms(view))}" if is_held(view) else count
    if not found.needs_daemon(view):
        return "not needed"
    return f"silent {age(view.now_ms - view.daemons[0].at_ms)}" if view.daemons else "none"


def held_ms(view: View) -> int:
    """How long the region's links have waited for its durability."""
    return max((each.held_ms for each in view.live), default=0)


def is_held(view: View) -> bool:
    return held_ms(view) > _HELD_MS


def is_broken(link: LinkView) -> bool:
    """Whether it ships nothing: it is not up, or the peer refuses changes."""
    return link.status is not None and (link.status.state != "up" or bool(link.status.refusal))


def is_slow(link: LinkView) -> bool:
    """Whether the peer lacks entries that are older than a steady stream makes them."""
    return link.status is not None and (link.status.lag_ms or 0) > _SLOW_MS


def link_words(link: LinkView, rate: float = 0.0) -> str:
    """State, lag and entries per second: `ok, 40/s`, `12 behind, 0.4s`, `DOWN 3m, 12 behind, 3m`."""
    status = link.status
    if status is None:
        return "?"
    words = list[str]()
    if status.state != "up":
        words.append(f"{status.state.upper()} {age(link.now_ms - status.since_ms)}")
    elif status.refusal:
        words.append("REFUSED")
    if status.lag_entries:
        words.append(f"{short(status.lag_entries)} behind")
        words += [age(status.lag_ms)] if status.lag_ms else []
    elif status.lag_entries is None:
        words.append("lag ?")
    elif status.state == "up":
        words.append("ok")
    if rate:
        words.append(f"{short(round(rate))}/s")
    return ", ".join(words)


# ----------------------------------------------------------------------------------------------------
# How times, counts, sizes and bytes are written for people.


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

"""Regions and links in a few words: the same ones in `braid status` and in the console."""

from typing import Final

from braidstream.admin.region_status import LinkView, Overview, View
from braidstream.inspection.wording import age, short

_HELD_MS: Final = 1_000


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


def link_words(link: LinkView, rate: float = 0.0) -> str:
    """State, lag and entries per second: `ok 40/s`, `12 behind 0.4s`, `DOWN 3m 12 behind 3m`."""
    status = link.status
    if status is None:
        return "?"
    words = list[str]()
    if status.state != "up":
        words.append(f"{status.state.upper()} {age(link.now_ms - status.since_ms)}")
    elif status.refusal:
        words.append("REFUSED")
    if status.lag_entries:
        behind = f"{short(status.lag_entries)} behind"
        words.append(f"{behind} {age(status.lag_ms)}" if status.lag_ms else behind)
    elif status.lag_entries is None:
        words.append("lag ?")
    elif status.state == "up":
        words.append("ok")
    if rate:
        words.append(f"{short(round(rate))}/s")
    return " ".join(words)

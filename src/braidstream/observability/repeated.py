"""Trouble that goes on is one log line, and then one a minute with a count: not one for each attempt."""

import re
from dataclasses import dataclass
from typing import Final

from braidstream.observability.events import emit

AGAIN_S: Final = 60.0
LEAST_S: Final = 1.0
_NUMBERS: Final = re.compile(r"[0-9]+")  # ports, counts, seconds: the same trouble


@dataclass(slots=True)
class Repeated:
    """One kind of trouble. Times are of any monotonic clock.

    since_s: when it began; None if there is none now. times: how often it happened since.
    """

    since_s: float | None = None
    times: int = 0
    _told_s: float = 0.0
    _kind: str = ""

    def tell(self, event: str, now_s: float, *, why: str, **facts: object) -> None:
        """It happened. Another event or reason than before is logged at once, but at most once a second."""
        if self.since_s is None:
            self.since_s, self.times = now_s, 0
        self.times += 1
        kind = f"{event} {_NUMBERS.sub('', why)}"
        if now_s - self._told_s >= (AGAIN_S if kind == self._kind else LEAST_S) or not self._kind:
            self._kind, self._told_s = kind, now_s
            more = {"times": self.times, "down_s": round(now_s - self.since_s)} if self.times > 1 else {}
            emit(event, **facts, why=why, **more)

    def over(self, now_s: float) -> dict[str, object]:
        """It is over. What it was, for the event that says so: empty if there was none."""
        if self.since_s is None:
            return {}
        facts: dict[str, object] = {"times": self.times, "down_s": round(now_s - self.since_s, 1)}
        self.since_s, self.times, self._kind = None, 0, ""
        return facts

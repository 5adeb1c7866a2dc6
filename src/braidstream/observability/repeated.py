"""Logs a lasting problem once, then once a minute with a count, not for each attempt."""

import re
from dataclasses import dataclass
from typing import Final

from braidstream.observability.events import emit

AGAIN_S: Final = 60.0
LEAST_S: Final = 1.0
_NUMBERS: Final = re.compile(r"[0-9]+")  # ports, counts, seconds: the same problem


@dataclass(slots=True)
class Repeated:
    """One kind of problem. Times are of any monotonic clock.

    since_s: when it began; None if there is none now. times: how often it happened since.
    """

    since_s: float | None = None
    times: int = 0
    _logged_s: float = 0.0
    _kind: str = ""

    def log(self, event: str, now_s: float, *, why: str, **facts: object) -> None:
        """It happened. A new event or reason is logged at once, but at most once a second."""
        if self.since_s is None:
            self.since_s, self.times = now_s, 0
        self.times += 1
        kind = f"{event} {_NUMBERS.sub('', why)}"
        if now_s - self._logged_s >= (AGAIN_S if kind == self._kind else LEAST_S) or not self._kind:
            self._kind, self._logged_s = kind, now_s
            more = {"times": self.times, "down_s": round(now_s - self.since_s)} if self.times > 1 else {}
            emit(event, **facts, why=why, **more)

    def over(self, now_s: float) -> dict[str, object]:
        """It is over. Returns facts for the event that logs this; empty if there was no problem."""
        if self.since_s is None:
            return {}
        facts: dict[str, object] = {"times": self.times, "down_s": round(now_s - self.since_s, 1)}
        self.since_s, self.times, self._kind = None, 0, ""
        return facts

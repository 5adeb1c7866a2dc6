"""Logs a lasting problem once, then once a minute with a count, not for each attempt."""

import re
from dataclasses import dataclass, field
from typing import Final

from braidstream.observability.events import emit

AGAIN_S: Final = 60.0
LEAST_S: Final = 1.0
FEW: Final = 3
_NUMBERS: Final = re.compile(r"[0-9]+")  # ports, counts, seconds: the same problem


@dataclass(slots=True)
class Repeated:
    """One kind of problem. Times are of any monotonic clock.

    since_s: when it began; None if there is none now. times: how often it happened since.
    """

    since_s: float | None = None
    times: int = 0
    _logged_s: float = 0.0
    _kinds: dict[str, float] = field(default_factory=dict)  # reasons, and when each was last logged

    def log(self, event: str, now_s: float, *, why: str, **facts: object) -> None:
        """It happened. A new event or reason is logged at once, but at most once a second. Of reasons that
        take turns, only the first few of a minute are."""
        if self.since_s is None:
            self.since_s, self.times = now_s, 0
        self.times += 1
        kind = f"{event} {_NUMBERS.sub('', why)}"
        recent = {each: at for each, at in self._kinds.items() if now_s - at < AGAIN_S}
        is_new = kind not in recent and len(recent) < FEW and now_s - self._logged_s >= LEAST_S
        if is_new or not self._kinds or now_s - self._logged_s >= AGAIN_S:
            self._kinds, self._logged_s = recent | {kind: now_s}, now_s
            more = {"times": self.times, "down_s": round(now_s - self.since_s)} if self.times > 1 else {}
            emit(event, **facts, why=why, **more)

    def over(self, now_s: float) -> dict[str, object]:
        """It is over. Returns facts for the event that logs this; empty if there was no problem."""
        if self.since_s is None:
            return {}
        facts: dict[str, object] = {"times": self.times, "down_s": round(now_s - self.since_s, 1)}
        self.since_s, self.times, self._kinds = None, 0, {}
        return facts

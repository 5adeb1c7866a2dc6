"""Trouble that goes on is one log line, and then one a minute with a count: not one for each attempt."""

from dataclasses import dataclass
from typing import Final

from braidstream.observability.events import emit

AGAIN_S: Final = 60.0


@dataclass(slots=True)
class Repeated:
    """One kind of trouble. Times are of any monotonic clock.

    since_s: when it began; None if there is none now. times: how often it happened since.
    """

    since_s: float | None = None
    times: int = 0
    _told_s: float = 0.0
    _event: str = ""

    def tell(self, event: str, now_s: float, **facts: object) -> None:
        """It happened. Another event than before is logged at once."""
        if self.since_s is None:
            self.since_s, self.times = now_s, 0
        self.times += 1
        if event != self._event or now_s - self._told_s >= AGAIN_S:
            self._event, self._told_s = event, now_s
            more = {"times": self.times, "down_s": round(now_s - self.since_s)} if self.times > 1 else {}
            emit(event, **facts, **more)

    def over(self, now_s: float) -> dict[str, object]:
        """It is over. What it was, for the event that says so: empty if there was none."""
        if self.since_s is None:
            return {}
        facts: dict[str, object] = {"times": self.times, "down_s": round(now_s - self.since_s, 1)}
        self.since_s, self.times, self._event = None, 0, ""
        return facts

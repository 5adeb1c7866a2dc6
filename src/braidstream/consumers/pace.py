"""How many entries handlers finish in a short time: so many are worth having at hand."""

from typing import Final

WINDOW_S: Final = 0.1


class Pace:
    """Counts in windows of a tenth of a second. Grows at once, and shrinks by half in each window."""

    __slots__ = ("_began", "_count", "ahead")

    def __init__(self, now: float) -> None:
        self.ahead = 0
        self._count, self._began = 0, now

    def note(self, finished: int, now: float) -> None:
        self._count += finished
        passed = now - self._began
        if passed < WINDOW_S:
            self.ahead = max(self._count, self.ahead)
        else:
            seen = int(self._count * WINDOW_S / passed)
            self.ahead = max(seen, self.ahead // 2)
            self._count, self._began = 0, now

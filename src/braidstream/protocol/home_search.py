"""Follows a log to its home. Those who carry commands (clients, gateway) run a refused write there.

    TWRITE in region 3:   HOME 1     run it in region 1
           in region 1:   HOME 2     the home has moved: run it in region 2
           in region 2:   HOME 1     region 2 does not know yet: wait, and go round again

An error of this kind means that nothing was written, so no entry is written twice.
"""

from typing import Final

from braidstream.errors import HomeError

# How long a write follows a home that moves.
FOLLOW_S: Final = 5.0
_PAUSE_S: Final = 0.01


def is_elsewhere(error: object) -> bool:
    """Whether a write was refused because the home of its log is elsewhere, or about to be."""
    return isinstance(error, HomeError) or (isinstance(error, Exception) and str(error).startswith("SEALED "))


class HomeSearch:
    """The way of one write. It has no clock: times are arguments."""

    def __init__(self, here: int, now_s: float) -> None:
        self._at, self._seen, self._ends_s = here, {here}, now_s + FOLLOW_S

    def follow(self, error: Exception, now_s: float) -> tuple[int, float]:
        """The region to write in, and how long to wait before. Raises the error if it takes too long."""
        if now_s > self._ends_s:
            raise error
        self._at = error.region if isinstance(error, HomeError) else self._at
        goes_round = self._at in self._seen
        self._seen = {self._at} if goes_round else self._seen | {self._at}
        return self._at, _PAUSE_S if goes_round else 0.0

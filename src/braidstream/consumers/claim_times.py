"""When a consumer takes over entries that others have left pending. `in_hand.py` says how many. No I/O."""

from collections.abc import Callable
from math import inf
from typing import Final

# Claims are tried at least this often.
_EVERY_S: Final = 5.0


class ClaimTimes:
    """The time of the next claim, and the claims that have no reply yet."""

    def __init__(self, claim_after: float, dice: Callable[[], float], now: float) -> None:
        self._claim_after, self._dice = claim_after, dice
        self._every = min(claim_after / 2, _EVERY_S)
        self._next = now + dice() * self._every
        self._has_more = False
        # By stream and ID: the delivery count of an entry whose claim was sent.
        self.sent = dict[tuple[bytes, bytes], int]()

    def next_time(self, now: float, *, room: int, claim_room: int) -> float:
        """room: how many handlers have nothing to do. claim_room: how many entries may be claimed."""
        if self._has_more and room:
            return now
        return self._next if claim_room else inf

    def done(self, now: float, *, has_more: bool) -> None:
        """has_more: others may have left more. They are claimed as soon as a handler has nothing to do."""
        self._has_more = has_more
        self._next = now + self._every * (0.75 + self._dice() / 2)

    def unreached(self, now: float) -> None:
        """The connection was lost. Others get time to extend what they hold."""
        self._has_more = False
        self._next = max(self._next, now + self._claim_after / 2)

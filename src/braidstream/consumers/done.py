"""Entries that handlers are done with, and when to acknowledge them."""

from collections.abc import Iterable
from math import inf
from typing import Final

from braidstream.consumers.held import Held

# While handlers are busy, entries are acknowledged together: so many, or those of so many seconds.
_AT_ONCE: Final = 500
_WITHIN_S: Final = 0.005


class Done:
    """The entries, in the order in which they were done."""

    def __init__(self) -> None:
        self.helds = list[Held]()
        self._since = inf

    def add(self, helds: Iterable[Held], now: float) -> None:
        self.helds += helds
        self._since = min(self._since, now)

    def remove(self, count: int) -> list[Held]:
        """The first ones are acknowledged."""
        first, self.helds = self.helds[:count], self.helds[count:]
        if not self.helds:
            self._since = inf
        return first

    @property
    def due_at(self) -> float:
        """When they shall be acknowledged at the latest."""
        return self._since if len(self.helds) >= _AT_ONCE else self._since + _WITHIN_S

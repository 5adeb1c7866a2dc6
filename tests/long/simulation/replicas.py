"""Each region's replica: it lags, and now and then it is promoted.

With the durability gate (replication/gate.py) a link hands on what it read only once the replica has it too.
Here the replica catches up whenever a link reads, which is the same seen from outside: a peer never knows
what its region may still lose. With `gate` off the replica catches up at random, and a promotion loses what
peers have.
"""

from tests.long.simulation.seat import Seat
from tests.oracle.history import History


class Replicas:
    """kept: how many facts of the history each region's replica has."""

    def __init__(self, seats: dict[int, Seat], history: History, *, gate: bool) -> None:
        self.seats, self.history, self.gate = seats, history, gate
        self.kept = dict[int, int]()
        for region in seats:
            self.catch_up(region)

    def read(self, region: int) -> None:
        """A link has read something in its own region."""
        if self.gate:
            self.catch_up(region)

    def catch_up(self, region: int) -> None:
        self.seats[region].replicate()
        self.kept[region] = self.history.facts[region]

    def promote(self, region: int) -> None:
        self.seats[region].promote()
        self.history.undo(region, self.kept[region])

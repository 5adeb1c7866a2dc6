"""What a gateway counts: commands, latencies by the way a command took, errors by code.

    way       append: XADD on the short way (fast_append.py); plan: other commands on streams;
              native: everything that passes to the engine

Commands that wait (BLOCK, BLPOP, WAIT) are counted and not timed: their latency is the caller's choice.
"""

from time import perf_counter
from typing import Final

from braidstream.commands.table import TABLE
from braidstream.errors import BraidError
from braidstream.net.resp import Words
from braidstream.observability.metrics import Counts, Family, Histogram

__all__ = ["GatewayMetrics", "perf_counter"]

# One in so many single appends is timed.
TIMED_EVERY: Final = 16

# Errors that are not the client's fault: alert rules watch them.
_ALERTING: Final = ("LOST", "OOM", "LOADING", "LIBRARY", "NOREGION")

_NAMES = {name: name.decode().lower() for name in TABLE}


class GatewayMetrics:
    """See the top of the file. Everything is a plain int or float: it is updated on the hot path."""

    __slots__ = (
        "appends",
        "plans",
        "natives",
        "commands",
        "errors",
        "refused",
        "evicted",
        "appended",
        "time_from",
        "_timed",
    )

    def __init__(self) -> None:
        self.appends, self.plans, self.natives = Histogram(), Histogram(), Histogram()
        self.appended = self._timed = 0  # XADD on the fast path
        self.time_from = 0  # the first run after so many appends is timed
        self.commands = Counts(most=len(_NAMES) + 2)
        self.errors = Counts()
        self.errors.update(dict.fromkeys(_ALERTING, 0))  # there from the start, so that the first one is seen
        self.refused = 0  # clients above --maxclients
        self.evicted = 0  # clients disconnected by --maxmemory-clients

    def time_appends(self, began: float) -> None:
        """Observe a timed run of appends, which also counts for the untimed ones before it."""
        self.appends.observe(perf_counter() - began, self.appended - self._timed)
        self._timed = self.appended
        self.time_from = self.appended + TIMED_EVERY

    def count(self, words: Words) -> None:
        """Count by name; all native commands as one, so that clients cannot create labels."""
        self.commands.add(_NAMES.get(words[0].upper(), "native"))

    def failed(self, error: BraidError) -> None:
        self.errors.add(error.code)

    def families(self) -> list[Family]:
        commands = dict(self.commands.labelled)
        if self.appended:
            commands["xadd",] = commands.get(("xadd",), 0) + self.appended
        ways = {"append": self.appends, "plan": self.plans, "native": self.natives}
        return [
            Family.counter(
                "braid_gateway_commands_total",
                "Commands taken, by name. Commands that pass to the engine unchanged are counted as native.",
                commands,
                ("command",),
            ),
            Family.histogram(
                "braid_gateway_command_duration_seconds",
                "Time from a command to its reply, by the way it took. Blocking commands are left out.",
                ways,
                "way",
            ),
            Family.counter(
                "braid_gateway_errors_total",
                "Error replies to stream commands, by code. LOST: the connection to the engine was lost.",
                self.errors.labelled,
                ("code",),
            ),
            Family.counter(
                "braid_gateway_clients_refused_total", "Clients refused by --maxclients.", {(): self.refused}
            ),
            Family.counter(
                "braid_gateway_clients_evicted_total",
                "Clients disconnected by --maxmemory-clients.",
                {(): self.evicted},
            ),
        ]

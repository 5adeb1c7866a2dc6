"""Numbers for Prometheus: counters and histograms that cost next to nothing, and their text format.

    families = [Family.gauge("braid_gateway_clients", "Connected clients.", {(): 3})]
    render(families, region="eu-west")        # what GET /metrics answers

Everything runs on one event loop, so nothing here locks, and the hot paths of the gateway can count: an
increment of an int and two readings of a clock for each run of commands. prometheus_client would take a lock.
"""

import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Upper bounds of the latency buckets in seconds: a fast command takes 0.1 ms, a stuck one seconds.
LATENCY_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    10,
)

# Values of the labels, in the order of their names.
Values = Mapping[tuple[str, ...], float]

_STARTED_S: Final = time.time()
_VERSION: Final = version("braidstream")


class Histogram:
    """How often something took how long."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(LATENCY_S, seconds)] += times
        self.sum_s += seconds * times


class Counts(dict[str, int]):
    """Counters by a label whose values come from outside: after `most` values, others count as `other`."""

    def __init__(self, most: int = 64) -> None:
        super().__init__()
        self._most = most

    def add(self, value: str, times: int = 1) -> None:
        if value not in self and len(self) >= self._most:
            value = "other"
        self[value] = self.get(value, 0) + times

    @property
    def labelled(self) -> dict[tuple[str, ...], float]:
        return {(value,): count for value, count in self.items()}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its samples: (suffix of the name, labels, value)."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, tuple[tuple[str, str], ...], float], ...]

    @staticmethod
    def gauge(name: str, text: str, values: Values, labels: Iterable[str] = ()) -> "Family":
        return Family._plain(name, "gauge", text, values, labels)

    @staticmethod
    def counter(name: str, text: str, values: Values, labels: Iterable[str] = ()) -> "Family":
        return Family._plain(name, "counter", text, values, labels)

    @staticmethod
    def _plain(name: str, kind: str, text: str, values: Values, labels: Iterable[str]) -> "Family":
        names = tuple(labels)
        samples = ((("", tuple(zip(names, given, strict=True)), value)) for given, value in values.items())
        return Family(name, kind, text, tuple(samples))

    @staticmethod
    def histogram(name: str, text: str, found: Mapping[str, Histogram], label: str) -> "Family":
        samples = list[tuple[str, tuple[tuple[str, str], ...], float]]()
        for given, histogram in found.items():
            mine, below = ((label, given),), 0
            for bound, count in zip((*LATENCY_S, None), histogram.counts, strict=True):
                below += count
                edge = "+Inf" if bound is None else _number(bound)
                samples.append(("_bucket", (*mine, ("le", edge)), below))
            samples += [("_sum", mine, histogram.sum_s), ("_count", mine, below)]
        return Family(name, "histogram", text, tuple(samples))


def render(families: Iterable[Family], region: str) -> bytes:
    """The text format, version 0.0.4. A metric without samples is left out.

    Every metric has the label `region`, so that one dashboard shows all regions; none if it is empty.
    """
    return "".join(line for family in families if family.samples for line in _lines(family, region)).encode()


def _lines(family: Family, region: str) -> Iterator[str]:
    ours = (("region", region),) if region and family.name.startswith("braid_") else ()
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {text}\n# TYPE {family.name} {family.kind}\n"
    for suffix, labels, value in family.samples:
        shown = ",".join(f'{label}="{_escaped(given)}"' for label, given in (*ours, *labels))
        yield (
            f"{family.name}{suffix}{{{shown}}} {_number(value)}\n"
            if shown
            else (f"{family.name}{suffix} {_number(value)}\n")
        )


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


def process_families(role: str) -> list[Family]:
    """Metrics of every process, with the names that Prometheus's own libraries use."""
    times = os.times()
    found = [
        Family.gauge(
            "braid_build_info",
            "Version and role of this process.",
            {(_VERSION, role): 1},
            ("version", "role"),
        ),
        Family.gauge("process_start_time_seconds", "When the process started (Unix time).", {(): _STARTED_S}),
        Family.counter("process_cpu_seconds_total", "CPU time used.", {(): times.user + times.system}),
    ]
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[1])
        files = len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        return found
    size = pages * os.sysconf("SC_PAGE_SIZE")
    return [
        *found,
        Family.gauge("process_resident_memory_bytes", "Resident memory.", {(): size}),
        Family.gauge("process_open_fds", "Open files.", {(): files}),
    ]

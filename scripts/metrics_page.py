"""docs/reference/metrics.md: every metric of a process of braidstream. Written by scripts/reference.py.

The page comes from the objects that produce the metrics. Each gets one sample value for every label, since a
metric without samples does not show its labels.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Metric

from braidstream.cli.worker import Pool
from braidstream.consumers.handler import Message
from braidstream.consumers.middleware import ConsumerMetrics
from braidstream.engine.address import Address, parse_address
from braidstream.engine.tunnel import Traffic
from braidstream.gateway.homes import Homes
from braidstream.gateway.server import Gateway
from braidstream.observability.metrics import Family
from braidstream.operations.status import DaemonStatus, LinkStatus
from braidstream.replication.daemon.daemon import Daemon
from braidstream.replication.daemon.reporting import (
    EngineState,
    FileState,
    GroupLag,
    GroupMetrics,
    Strays,
    families,
    group_families,
    own_families,
    rescue_families,
    traffic_families,
)
from braidstream.replication.endpoint import Endpoint
from braidstream.replication.receiver import Receiver
from braidstream.spark.jobs.archive import Freshness
from braidstream.spark.lag import LagListener
from braidstream.spark.lake.log import File

# (name, kind, labels, meaning)
Row = tuple[str, str, str, str]
_HEAD = "| metric | kind | labels | meaning |\n|---|---|---|---|"


def metrics() -> str:
    """Every metric, by the process that exposes it."""
    daemon, gateway = _rows(_daemon()), _rows(_gateway())
    both = [row for row in daemon if row in gateway]
    parts = {
        "Daemons and gateways": ("`braid replicate` and `braid gateway` expose these at `/metrics`.", both),
        "Daemons": ("Of `braid replicate`.", [row for row in daemon if row not in both]),
        "Gateways": ("Of `braid gateway`.", [row for row in gateway if row not in both]),
        "Archives": (
            "Of `braid spark archive --follow --metrics ADDRESS`, beside those of every process.",
            [row for row in _rows(_archive()) if row not in both],
        ),
        "Workers": (
            "Of `braidstream.Consumer(..., metrics=prometheus_client.REGISTRY)`. `braid worker --metrics`\n"
            "exposes them too, its own (`braid_worker_*`), and those of every process.",
            [*_consumer(), *(row for row in _rows(_worker()) if row not in both)],
        ),
        "Spark": ("Of `spark.streams.addListener(LagListener())`, from `braidstream.spark.lag`.", _spark()),
    }
    lines = [
        "# Metrics",
        "",
        "Metrics of daemons, gateways and archives whose names begin with `braid_` have the label `region`,\n"
        "in addition to those listed. [Monitoring](../guides/monitoring.md) says what to watch, and has\n"
        "alert rules and a dashboard.",
        "",
    ]
    for title, (intro, rows) in parts.items():
        table = [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows]
        lines += [f"## {title}", "", intro, "", _HEAD, *table, ""]
    return "\n".join(lines)


def _daemon() -> list[Family]:
    whole = Daemon(Address())
    link = LinkStatus(state="up", since_ms=1, lag_entries=1, lag_ms=1, clock_ms=1)
    status = DaemonStatus(
        at_ms=1, started_ms=1, host="", pid=1, version="", links={"peer": link}, taken={"1": 1}
    )
    return [
        *families(status, engine_up=True),
        *own_families(EngineState(functions=1, used=1, most=1), FileState()),
        *group_families(GroupMetrics([GroupLag("s", "g", 1, 1)], strays=Strays())),
        *rescue_families(1),
        *whole.retention.families,
        *whole.later.families,
        *whole.schedules.families,
        *traffic_families("braid_link", {("peer",): Traffic()}, ("peer",)),
        *Receiver(Endpoint(Address()), needs_password=True).families(),
    ]


def _gateway() -> list[Family]:
    gateway = Gateway(parse_address("redis://localhost"))
    gateway.hub.metrics.count([b"XADD"])
    gateway.hub.homes = Homes(1, {})
    gateway.hub.homes.forwarded["region",] = 1
    return gateway.families()


def _archive() -> list[Family]:
    stats = '{"minValues": {"timestamp": ""}, "nullCount": {}}'
    freshness = Freshness()
    freshness.committed([File("", "s", "", 1, 1, (1, 0), (1, 0), ("", ""), stats)])
    return freshness.families()


def _worker() -> list[Family]:
    return Pool([], 1, is_reloading=False, shared="").families


def _rows(found: Iterable[Family]) -> list[Row]:
    return [
        (family.name, family.kind, _names(labels for _, labels, _ in family.samples), family.help)
        for family in found
    ]


def _names(samples: Iterable[Iterable[tuple[str, str]]]) -> str:
    """`le` belongs to every histogram."""
    names = {name: None for labels in samples for name, _ in labels if name != "le"}
    return ", ".join(f"`{name}`" for name in names)


def _consumer() -> list[Row]:
    registry = CollectorRegistry()
    consumer = ConsumerMetrics(registry, "g", "c")
    consumer.taken("s", 1)
    consumer.claimed("s", 1)
    consumer.ended("s", "handled")
    consumer.in_hand(1, 1)
    with consumer.handling([Message("s", "1-1", [])]):
        pass
    return [_row(metric) for metric in registry.collect()]


def _spark() -> list[Row]:
    registry = CollectorRegistry()
    LagListener(registry)
    return [
        (metric.name, metric.type, "`query`, `stream`", metric.documentation) for metric in registry.collect()
    ]


def _row(metric: Metric) -> Row:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    samples = (sorted(sample.labels.items()) for sample in metric.samples)
    return name, metric.type, _names(samples), metric.documentation

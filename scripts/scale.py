"""Write the tables of docs/design/scale.md from bench/results/scale.json. `make docs-scale`.

The page has its own words. Each table stands between `<!-- table: name -->` and `<!-- end -->`, and only this
script writes there. tests/docs/test_scale.py fails if the page is not what this would write.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design" / "scale.md"
RESULTS = ROOT / "bench" / "results" / "scale.json"
_BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

# What each constant is.
MEANINGS = {
    "engine_append_us": ("engine: XADD into a strand, in pipelines", "us"),
    "engine_send_us": ("engine: reading an entry for links to 4 peers, long pages", "us"),
    "engine_apply_us": ("engine: applying an entry of a peer, long pages", "us"),
    "engine_group_us": ("engine: XREADGROUP COUNT 100 and XACK, 5 strands, for an entry", "us"),
    "daemon_1_us": ("daemon: an entry to 1 peer, long pages", "us"),
    "daemon_4_us": ("daemon: an entry to 4 peers, long pages", "us"),
    "daemon_visit_us": ("daemon: a visit of a stream with one new entry, 4 peers", "us"),
    "engine_visit_us": ("engine: the same visit, in the region that wrote it", "us"),
    "engine_visited_us": ("engine: the same visit, in one peer", "us"),
    "gateway_1_pipeline_1_us": ("gateway: XADD without pipelines, 50 clients", "us"),
    "gateway_1_pipeline_16_us": ("gateway: XADD in pipelines of 16", "us"),
    "gateway_2_pipeline_1_us": ("2 gateways on one port: XADD without pipelines", "us"),
    "gateway_2_pipeline_16_us": ("2 gateways on one port: XADD in pipelines of 16", "us"),
    "entry_bytes": ("engine: memory of an entry", "bytes"),
    "wire_bytes": ("network: an entry to one peer", "bytes"),
    "stream_bytes": ("engine: memory of a stream besides its entries", "bytes"),
    "alone_engine_ratio": ("engine CPU of XADD in a region without peers, of a bare engine", "ratio"),
}


@dataclass(frozen=True, slots=True)
class Load:
    """peak: the busiest second, of the average one. hours: how long entries stay in memory."""

    regions: int = 5
    entries_a_day: float = 100e9
    peak: float = 2.6
    hours: float = 2.0

    @property
    def own_s(self) -> float:
        """Entries that a region writes in a second, on average."""
        return self.entries_a_day / self.regions / 86_400

    @property
    def copies_s(self) -> float:
        """Entries of other regions that a region applies in a second, on average."""
        return self.own_s * (self.regions - 1)


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars a month. Round numbers of public clouds: change them to yours."""

    core: float = 25.0
    memory_gb: float = 4.0
    wan_tb: float = 20.0
    store_tb: float = 21.0


LOAD, PRICES = Load(), Prices()
HOURS = (24.0, 6.0, 2.0)
REPLICAS = 1
HEADROOM = 1.25  # memory beyond the entries: fragmentation, buffers, copy on write
BUSY = 0.6  # of a core, at peak
# Of a stored entry's payload, in a lake: 40 of 84 bytes in docs/benchmarks.md. Not measured again here.
LAKE_OF_PAYLOAD = 40 / 84
LAKE_DAYS = 365
# The same constants on an idle machine, in docs/benchmarks.md (Through the gateway: Redis, uvloop).
QUIET = {"gateway_1_pipeline_1_us": 13.5, "gateway_1_pipeline_16_us": 3.4}
NODE_GB = 100
WAN_GBIT = 10


def measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


class Model:
    """Costs of a load. of: the constants."""

    def __init__(self, about: dict[str, Any]) -> None:
        self.about, self.of = about["measured"], about["constants"]

    def engine_parts(self, load: Load) -> dict[str, float]:
        """Cores of a region's engines at peak."""
        own, copies, of = load.own_s * load.peak / 1e6, load.copies_s * load.peak / 1e6, self.of
        return {
            "own appends": own * of["engine_append_us"],
            "reading for links": own * of["engine_send_us"],
            "applying copies, long pages": copies * of["engine_apply_us"],
            "one group that reads everything (COUNT 100, XACK)": (own + copies) * of["engine_group_us"],
        }

    def engine_cores(self, load: Load) -> float:
        return sum(self.engine_parts(load).values())

    def daemon_cores(self, load: Load) -> float:
        return load.own_s * load.peak * self.of["daemon_4_us"] / 1e6

    def gateway_cores(self, load: Load, pipeline: int) -> float:
        return load.own_s * load.peak * self.of[f"gateway_1_pipeline_{pipeline}_us"] / 1e6

    def memory_gb(self, load: Load) -> float:
        """Entries in one region's primaries. Every region stores the entries of all."""
        return load.entries_a_day * load.hours / 24 * self.of["entry_bytes"] / 1e9

    def wan_gbit(self, load: Load) -> float:
        """What a region sends, on average."""
        return load.own_s * (load.regions - 1) * self.of["wire_bytes"] * 8 / 1e9

    def wan_tb_month(self, load: Load) -> float:
        return self.wan_gbit(load) / 8 / 1e3 * 86_400 * 30 * load.regions

    def nodes(self, load: Load) -> tuple[float, float]:
        """Primaries of a region: by memory, and by CPU."""
        return self.memory_gb(load) * HEADROOM / NODE_GB, self.engine_cores(load) / BUSY


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _n(value: float) -> str:
    """Two digits that count, or a whole number."""
    if value >= 100:
        digits = len(str(int(value))) - 2
        return f"{round(value, -digits):,.0f}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def how(model: Model) -> str:
    about = model.about
    rows = [
        ("when, by what", f"{about['date']}, `{about['command']}`, rounds: {about['rounds']} (medians)"),
        ("engine", about["engine"]),
        ("machine", f"{about['cores']} cores for everything, load average {about['load']}"),
        ("an entry", f"{about['payload_bytes']} bytes, names and values together"),
    ]
    return _table(("", ""), rows)


def constants(model: Model) -> str:
    rows = [
        (text, f"{model.of[name]:,.2f}" if unit != "bytes" else _n(model.of[name]), unit)
        for name, (text, unit) in MEANINGS.items()
    ]
    return _table(("constant", "measured", "unit"), rows)


def quiet(model: Model) -> str:
    """How much the load of the machine inflated the measurement."""
    rows = [
        (MEANINGS[name][0], f"{model.of[name]:.1f}", idle, f"{model.of[name] / idle:.1f}")
        for name, idle in QUIET.items()
    ]
    return _table(("us", "here", "idle machine", "factor"), rows)


def rates(model: Model) -> str:
    rows = [
        ("a region writes", _n(LOAD.own_s), _n(LOAD.own_s * LOAD.peak)),
        ("a region applies of the others", _n(LOAD.copies_s), _n(LOAD.copies_s * LOAD.peak)),
    ]
    return _table(("entries a second", "average", f"peak (x {LOAD.peak:g})"), rows)


def cores(model: Model) -> str:
    rows = [(f"engines: {name}", _n(value)) for name, value in model.engine_parts(LOAD).items()]
    rows += [
        ("**engines together**", f"**{_n(model.engine_cores(LOAD))}**"),
        ("daemons, long pages, 4 peers", _n(model.daemon_cores(LOAD))),
        ("gateways, if all writers use them, pipelines of 16", _n(model.gateway_cores(LOAD, 16))),
        ("gateways, the same without pipelines", _n(model.gateway_cores(LOAD, 1))),
    ]
    return _table(("cores of one region, busy at peak", ""), rows)


def visits(model: Model) -> str:
    """The other end: every entry in a page of its own."""
    own, of = LOAD.own_s / 1e6, model.of
    rows = [
        ("daemons", _n(own * of["daemon_4_us"]), _n(own * of["daemon_visit_us"])),
        ("engines: reading for links", _n(own * of["engine_send_us"]), _n(own * of["engine_visit_us"])),
        (
            "engines: applying copies",
            _n(own * (LOAD.regions - 1) * of["engine_apply_us"]),
            _n(own * (LOAD.regions - 1) * of["engine_visited_us"]),
        ),
    ]
    return _table(("cores of one region, average load", "long pages", "every entry alone"), rows)


def memory(model: Model) -> str:
    rows = []
    for hours in HOURS:
        load = Load(hours=hours)
        data = model.memory_gb(load)
        by_memory, by_cpu = model.nodes(load)
        total = data * (1 + REPLICAS) * HEADROOM * load.regions / 1e3
        rows.append((f"{hours:g} h", _n(data / 1e3), _n(total), _n(by_memory), _n(by_cpu)))
    head = (
        "entries stay in memory for",
        "TB in one region",
        "TB in all, with replicas and headroom",
        f"primaries of a region by memory ({NODE_GB} GB)",
        f"by CPU ({BUSY:.0%} busy)",
    )
    return _table(head, rows)


def network(model: Model) -> str:
    average = model.wan_gbit(LOAD)
    rows = [
        ("a region sends, and receives", f"{_n(average)} Gb/s", f"{_n(average * LOAD.peak)} Gb/s"),
        ("all regions, a month", f"{_n(model.wan_tb_month(LOAD))} TB", ""),
    ]
    return _table(("between regions", "average", "peak"), rows)


def money(model: Model) -> str:
    rows = []
    lake_tb = LOAD.entries_a_day * LAKE_DAYS * model.about["payload_bytes"] * LAKE_OF_PAYLOAD / 1e12
    for hours in HOURS:
        load = Load(hours=hours)
        memory_gb = model.memory_gb(load) * (1 + REPLICAS) * HEADROOM * load.regions
        busy = (
            model.engine_cores(load) * (1 + REPLICAS)
            + model.daemon_cores(load)
            + model.gateway_cores(load, 16)
        )
        parts = [
            memory_gb * PRICES.memory_gb,
            busy / BUSY * load.regions * PRICES.core,
            model.wan_tb_month(load) * PRICES.wan_tb,
            lake_tb * PRICES.store_tb,
        ]
        rows.append((f"{hours:g} h", *map(_n, parts), _n(sum(parts))))
    head = ("in memory", "memory", "cores", "network", f"lake of {LAKE_DAYS} days, one copy", "together")
    return _table(head, rows)


def breaks(model: Model) -> str:
    """How many entries a day all regions together may write until a limit is reached, lowest first."""
    unit = Load(entries_a_day=1e9)
    limits: list[tuple[str, str, float]] = [
        (
            f"memory of one server, {NODE_GB} GB, {unit.hours:g} h",
            "keep less, or a cluster",
            NODE_GB / (model.memory_gb(unit) * HEADROOM),
        ),
        (
            "CPU of one server, with one group that reads everything",
            "a cluster",
            BUSY / model.engine_cores(unit),
        ),
        (
            "CPU of one server, without groups",
            "a cluster",
            BUSY / (model.engine_cores(unit) - list(model.engine_parts(unit).values())[-1]),
        ),
        (
            "one daemon a region, every entry in a page of its own",
            "more daemons, larger pages",
            BUSY / (unit.own_s * unit.peak * model.of["daemon_visit_us"] / 1e6),
        ),
        ("one daemon a region, long pages", "more daemons", BUSY / model.daemon_cores(unit)),
        (
            "one gateway process a region, without pipelines",
            "more gateways",
            BUSY / model.gateway_cores(unit, 1),
        ),
        (
            "one gateway process a region, pipelines of 16",
            "more gateways",
            BUSY / model.gateway_cores(unit, 16),
        ),
        (
            f"a line of {WAN_GBIT} Gb/s between regions",
            "a wider one",
            WAN_GBIT * BUSY / (model.wan_gbit(unit) * unit.peak),
        ),
    ]
    rows = [(what, _n(billions), cure) for what, cure, billions in sorted(limits, key=lambda each: each[2])]
    return _table(("limit", "reached at, billion entries a day", "then"), rows)


def small(model: Model) -> str:
    of = model.of
    day = 1e6
    rows = [
        ("engine CPU of an XADD, of a bare engine's", f"{of['alone_engine_ratio']:.2f}"),
        ("memory of an entry", "the same: an entry is stored as the engine stores it"),
        ("memory of a stream besides its entries", f"{_n(of['stream_bytes'])} bytes"),
        ("engine CPU of 1,000,000 entries a day", f"{_n(day * of['engine_append_us'] / 1e6)} s a day"),
        ("daemons, network between regions", "none"),
        ("gateway", "none with the Python client; else one process"),
    ]
    return _table(("one region without peers", ""), rows)


TABLES: dict[str, Callable[[Model], str]] = {
    each.__name__: each
    for each in (how, constants, quiet, rates, cores, visits, memory, network, money, breaks, small)
}


def page(text: str) -> str:
    """The page with its tables computed again."""
    model = Model(measured())
    return _BLOCK.sub(lambda found: f"{found[1]}\n{TABLES[found[2]](model)}\n{found[3]}", text)


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

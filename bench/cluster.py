"""`python -m bench.cluster`: XADD through our cluster client against redis-py's own, on the same cluster."""

import argparse
from collections.abc import Callable
from typing import Any

import redis
from rich.progress import Progress

import braidstream
from bench import report
from bench.append import ENTRY, ONE_BY_ONE, PIPELINE, PIPELINES
from bench.bed import NEWEST
from bench.measure import Case, Turn, compare
from tests.support.cluster import Cluster, become_cluster
from tests.support.servers import EVERY

# As many streams as needed to use all nodes. Names of both sides have the same length and lie alike.
STREAMS = 12
QUICK_S, FULL_S = 1.5, 15.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S:.0f} s per case, not {FULL_S:.0f}")
    parser.add_argument("--engine", choices=EVERY, action="append", help="another one")
    chosen = parser.parse_args()
    measured = list[report.Measured]()
    todo = [(flavour, build) for flavour in chosen.engine or NEWEST for build in CASES]
    with Progress(transient=True) as progress:
        for flavour, build in progress.track(todo):
            with Cluster(flavour) as cluster:
                become_cluster(cluster)
                with (
                    braidstream.RedisCluster.from_url(cluster.url) as ours,
                    redis.RedisCluster.from_url(cluster.url) as bare,
                ):
                    case = build(ours, bare)
                    budget_s = QUICK_S if chosen.quick else FULL_S
                    ratios = compare(case, _engine_cpu(cluster), budget_s=budget_s)
                    measured.append(report.Measured(flavour, case, ratios))
    report.show(measured)


def _engine_cpu(cluster: Cluster) -> Callable[[], float]:
    clients = [node.client() for node in cluster.nodes]

    def used() -> float:
        found = [client.info("cpu") for client in clients]
        return float(sum(each["used_cpu_user"] + each["used_cpu_sys"] for each in found))

    return used


def control(ours: Any, bare: Any) -> Case:
    """How far the figures can be trusted: all three should be 1.00."""
    return Case("control: redis-py against itself", _adds(bare, "ours"), _adds(bare, "bare"))


def one_by_one(ours: Any, bare: Any) -> Case:
    return Case("XADD one by one, cluster", _adds(ours, "ours"), _adds(bare, "bare"), {"rate": 0.95})


def in_pipelines(ours: Any, bare: Any) -> Case:
    name = f"XADD in pipelines of {PIPELINE}, cluster"
    return Case(name, _pipelines(ours, "ours"), _pipelines(bare, "bare"), {"rate": 0.90})


CASES = (control, one_by_one, in_pipelines)


def _adds(client: Any, side: str) -> Turn:
    def turn() -> None:
        for number in range(ONE_BY_ONE):
            client.xadd(f"orders-{side}-{number % STREAMS}", ENTRY)

    return turn


def _pipelines(client: Any, side: str) -> Turn:
    def turn() -> None:
        for _ in range(PIPELINES):
            with client.pipeline() as pipe:
                for number in range(PIPELINE):
                    pipe.xadd(f"orders-{side}-{number % STREAMS}", ENTRY)
                pipe.execute()

    return turn


if __name__ == "__main__":
    main()

"""`python -m bench.cluster_gateway`: XADD through a gateway before a cluster, against one before one server.

redis-benchmark drives both, in turns, as in gateway.py: one stream, and twelve streams that lie on all nodes.
"""

import argparse
import statistics
import subprocess
from contextlib import ExitStack

from bench.gateway import CLIENTS, PIPELINES, TURN_WITHIN_S, Processes, Turn, cpu_s, running, turn_of
from tests.support.cluster import Cluster, become_cluster, start_alone
from tests.support.regions import become
from tests.support.servers import EVERY, Engine

STREAMS = 12
GOAL = 0.90


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster_gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--engine", choices=EVERY, default="redis-8.10")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(Engine(chosen.engine))
        become(server)
        lone = start_alone(chosen.engine)
        stack.callback(lone.stop)
        become_cluster(lone)
        three = stack.enter_context(Cluster(chosen.engine))
        become_cluster(three)
        gateways = {
            name: stack.enter_context(running(url, "uvloop"))
            for name, url in (("one server", server.url), ("1 primary", lone.url), ("3 primaries", three.url))
        }
        for pipeline, commands in PIPELINES.items():
            for streams in (1, STREAMS):
                rounds = list[dict[str, Turn]]()
                for number in range(chosen.rounds + 1):
                    seen = {
                        name: _turn(*gateway, streams, pipeline, commands)
                        for name, gateway in gateways.items()
                    }
                    rounds += [seen] if number else []  # the first one warms up
                _show(pipeline, streams, rounds)


def _turn(processes: Processes, port: int, streams: int, pipeline: int, commands: int) -> Turn:
    words = ["redis-benchmark", "-p", str(port), "-c", str(CLIENTS), "-P", str(pipeline), "-n", str(commands)]
    name = "s" if streams == 1 else "s__rand_int__"
    before = cpu_s(processes)
    run = subprocess.run(
        [*words, "-r", str(streams), "--csv", "XADD", name, "*", "field", "value"],
        capture_output=True,
        text=True,
        timeout=TURN_WITHIN_S,
        check=True,
    )
    return turn_of(run.stdout, (cpu_s(processes) - before) / commands * 1e6)


def _show(pipeline: int, streams: int, rounds: list[dict[str, Turn]]) -> None:
    for name in ("1 primary", "3 primaries"):
        rate = statistics.median(each[name].rate / each["one server"].rate for each in rounds)
        cpu = statistics.median(each[name].cpu_us / each["one server"].cpu_us for each in rounds)
        absolute = statistics.median(each[name].rate for each in rounds)
        print(
            f"P{pipeline}, {streams} streams, {name}: rate {rate:.2f} of one server (goal {GOAL:.2f}), "
            f"gateway CPU a command {cpu:.2f}, {absolute:,.0f} XADD/s"
        )


if __name__ == "__main__":
    main()

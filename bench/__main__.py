"""`python -m bench`: every ratio on the newest engines. `--quick`: the same in under three minutes."""

import argparse

from rich.progress import Progress

from bench import append, consumer, crowd, gateway, groups, idempotence, logs, read, report
from bench.bed import NEWEST, Bed
from bench.measure import compare
from tests.support.servers import EVERY

QUICK_S, FULL_S = 1.5, 15.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S:.0f} s per case, not {FULL_S:.0f}")
    parser.add_argument("--engine", choices=EVERY, action="append", help="another one")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    chosen = parser.parse_args()
    budget_s = QUICK_S if chosen.quick else FULL_S
    measured = list[report.Measured]()
    todo = [
        (flavour, build)
        for flavour in chosen.engine or NEWEST
        for build in (
            *append.CASES,
            *idempotence.CASES,
            *read.CASES,
            *groups.CASES,
            *consumer.CASES,
            *logs.CASES,
        )
    ]
    with Progress(transient=True) as progress:
        for flavour, build in progress.track(todo):
            with Bed(flavour) as bed:
                case = build(bed)
                if case is not None and chosen.only in case.name:
                    ratios = compare(case, bed.engine_cpu, budget_s=budget_s)
                    measured.append(report.Measured(flavour, case, ratios))
    report.show(measured)
    crowds = list[crowd.Wakeups]()
    if chosen.only in crowd.NAME:
        for flavour in chosen.engine or NEWEST:
            crowds += crowd.measure(flavour, quick=chosen.quick)
        crowd.show(crowds)
    gateways = list[gateway.Gateways]()
    if chosen.only in gateway.NAME:
        for flavour in chosen.engine or NEWEST:
            gateways += gateway.measure(flavour, quick=chosen.quick)
        gateway.show(gateways)
    shared = list[gateway.SharedPort]()
    if chosen.only in gateway.SHARED_NAME:
        for flavour in chosen.engine or NEWEST:
            shared += gateway.measure_shared(flavour, quick=chosen.quick)
        gateway.show_shared(shared)
    if not (chosen.only or chosen.engine):
        report.write(
            [result for each in (*measured, *crowds, *gateways, *shared) for result in each.results()]
        )


if __name__ == "__main__":
    main()

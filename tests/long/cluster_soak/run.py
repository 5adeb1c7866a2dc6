"""A soak of clusters: traffic while slots move and primaries are killed, then peace, and a verdict."""

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.long.cluster_soak.regions import AT_ONCE, KEY_BY_KEY, KILLED, ClusterRegion, ServerRegion
from tests.long.soak.evidence import keep_evidence
from tests.long.soak.run import (
    TELL_EVERY_S,
    Outcome,
    described,
    facts_of,
    make_group,
    progress,
    read_final,
    wait_for_rest,
)
from tests.long.soak.traffic import RULES, Traffic
from tests.oracle import verdict
from tests.oracle.client_log import ACKED, Op
from tests.support.daemons import Daemon, all_replicating
from tests.support.servers import Flavour

WRITERS: Final = 3
PAUSE_S: Final = 0.03
KILL_EVERY_S: Final = (1.0, 6.0)
MOVE_EVERY_S: Final = (0.1, 1.0)

Regions = Mapping[int, ClusterRegion | ServerRegion]


def cluster_soak(flavour: Flavour, folder: Path, *, seconds: float, seed: int) -> Outcome:
    """`seconds` of traffic, slots that move and primaries that die, then quiescence and the verdict."""
    print(f"cluster soak on {flavour}: seed {seed}, {seconds:g} s, logs in {folder}", flush=True)
    clusters = [ClusterRegion(1, flavour), ClusterRegion(2, flavour)]
    server = ServerRegion(3, flavour)
    regions: Regions = {region.number: region for region in (*clusters, server)}
    with ExitStack() as stack:
        for region in regions.values():
            stack.callback(region.stop)
            region.start()
        urls = {number: region.url for number, region in regions.items()}
        durability = dict.fromkeys((cluster.number for cluster in clusters), "replicas:1")
        daemons = stack.enter_context(all_replicating(folder, urls, durability=durability))
        make_group(regions)
        with Traffic(regions, seed, writers=WRITERS, pause_s=PAUSE_S, tails=False) as traffic:
            began = time.monotonic()
            failed = _suffer(clusters, server, traffic, seconds, seed)
            traffic.stop_writing()
            stopped = time.monotonic()
            quiet = wait_for_rest(regions, traffic, lambda: _ended(daemons))
            took_s = time.monotonic() - stopped
        finals = {number: read_final(region) for number, region in regions.items()}
        losses = [loss for cluster in clusters for loss in cluster.losses]
        judged = verdict.judge(traffic.log, finals, RULES, losses)
        anomalies = [
            *failed,
            *(line for cluster in clusters for line in cluster.unexpected()),
            *quiet,
            *_ended(daemons),
            *described(traffic, judged),
        ]
        if anomalies:
            faults = sorted((at, each.number, what) for each in clusters for at, what in each.came)
            lines = [f"{at - began:8.3f} region {number}: {what}" for at, number, what in faults]
            keep_evidence(folder, regions, traffic.log, lines, began, anomalies)
    missing = verdict.missing(traffic.log, finals[server.number], losses, RULES)
    facts = facts_of(traffic, finals, took_s, losses)
    facts["lost by killed primaries, in streams without deletions"] = missing
    facts |= _pauses(traffic.log.ops, clusters)
    return Outcome(anomalies, sum((_counted(cluster) for cluster in clusters), Counter()), facts)


def _suffer(
    clusters: Sequence[ClusterRegion], server: ServerRegion, traffic: Traffic, seconds: float, seed: int
) -> list[str]:
    """In each cluster slots move in one thread and primaries are killed in another; what went wrong there."""
    stop, failed = threading.Event(), list[str]()

    def repeat(what: str, every_s: tuple[float, float], act: Callable[[random.Random], None]) -> None:
        dice = random.Random(f"{seed} {what}")
        try:
            while not stop.wait(dice.uniform(*every_s)):
                act(dice)
        except Exception as error:
            failed.append(f"{what}: {''.join(traceback.format_exception(error))}")

    threads = list[threading.Thread]()
    for cluster in clusters:

        def kill(dice: random.Random, cluster: ClusterRegion = cluster) -> None:
            cluster.kill_a_primary(dice, server)

        for what, every_s, act in (("kill", KILL_EVERY_S, kill), ("move", MOVE_EVERY_S, cluster.move_slots)):
            words = (f"{what} in region {cluster.number}", every_s, act)
            threads.append(threading.Thread(target=repeat, args=words))
    for thread in threads:
        thread.start()
    began = time.monotonic()
    while (at_s := time.monotonic() - began) < seconds and not failed:
        came = sum((_counted(cluster) for cluster in clusters), Counter[str]())
        now = [f"{count} x {what}" for what, count in sorted(came.items())]
        print(progress(at_s, seconds, traffic, now), flush=True)
        time.sleep(min(TELL_EVERY_S, max(0.0, seconds - at_s)))
    stop.set()
    for thread in threads:
        thread.join()
    return failed


def _ended(daemons: Sequence[Daemon]) -> list[str]:
    """What no daemon may do: end, or meet an exception of ours."""
    ended = [f"daemon {each.region} ended: {each.text[-1000:]}" for each in daemons if not each.alive]
    texts = [(each.region, each.text) for each in daemons]
    return ended + [
        f"daemon {region}: {text[text.index('Traceback') :][:3000]}"
        for region, text in texts
        if "Traceback" in text
    ]


def _counted(cluster: ClusterRegion) -> Counter[str]:
    whats = [what.partition(",")[0] for _, what in cluster.came]
    return Counter(what for what in whats if what in (KILLED, KEY_BY_KEY, AT_ONCE))


def _pauses(ops: Sequence[Op], clusters: Sequence[ClusterRegion]) -> dict[str, float]:
    """The longest time in which a shard took no write: from the begin of a write that was slow or failed
    to the end of the next one that was acknowledged there."""
    longest, since = Counter[tuple[int, int]](), dict[tuple[int, int], float]()
    by_number = {cluster.number: cluster for cluster in clusters}
    for op in sorted((op for op in ops if op.region in by_number), key=lambda op: op.began):
        where = op.region, by_number[op.region].shard_at(op.stream, op.began)
        start = since.setdefault(where, op.began)
        if op.outcome == ACKED:
            longest[where] = max(longest[where], op.ended - start)
            del since[where]
    return {
        f"longest pause of writes, region {region} shard {shard} (s)": round(pause, 2)
        for (region, shard), pause in sorted(longest.items())
    }

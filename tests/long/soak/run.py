"""A soak: traffic and faults for some time, then peace, and a verdict."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
from rich.console import Console
from rich.table import Table

from tests.long.soak.evidence import keep_evidence
from tests.long.soak.faults import KINDS, LOSS, LOSSES, RECOVERY_S, Fault, schedule
from tests.long.soak.sites import Sites, running
from tests.long.soak.traffic import (
    GROUP,
    HOMES,
    JOBS,
    LOGS,
    RETRY_MS,
    RULES,
    STREAMS,
    Region,
    Regions,
    Traffic,
    odd_errors,
    text_of,
)
from tests.oracle import verdict
from tests.oracle.client_log import ACKED, UNKNOWN, Loss
from tests.support.servers import Flavour
from tests.support.waiting import eventually

QUIET_WITHIN_S: Final = 300.0
TELL_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. No anomalies is what we want; the rest shows that something was done at all."""

    anomalies: list[str]
    faults: Counter[str]
    facts: dict[str, int | float]


def soak(
    flavour: Flavour,
    folder: Path,
    *,
    seconds: float,
    seed: int,
    kinds: Sequence[str] = tuple(KINDS),
) -> Outcome:
    """`seconds` of traffic under the faults of `seed`, then quiescence and the verdict."""
    plan = schedule(seed, seconds, 3, kinds)
    print(f"soak on {flavour}: seed {seed}, {seconds:g} s, {len(plan)} faults, logs in {folder}", flush=True)
    with running(flavour, folder) as sites:
        make_group(sites)
        with Traffic(sites, seed) as traffic:
            began = time.monotonic()
            came = _suffer(sites, plan, traffic, seconds)
            traffic.stop_writing()
            stopped = time.monotonic()
            quiet = wait_for_rest(sites, traffic, lambda: _away(sites))
            took_s = time.monotonic() - stopped
        faults = [f"{each.at_s:8.3f} fault {each}, for {each.lasts_s:.3f} s" for each in plan]
        if quiet and _away(sites):  # a region that has not rejoined answers nothing
            keep_evidence(folder, sites, traffic.log, faults, began, quiet)
            return Outcome(quiet, came, {"seconds until given up": took_s})
        finals = {number: read_final(sites[number]) for number in sites}
        judged = verdict.judge(traffic.log, finals, RULES, sites.losses, sites.stepped_until)
        anomalies = [
            *quiet,
            *sites.faults_of_ours(),
            *described(traffic, judged),
        ]
        if anomalies:
            keep_evidence(folder, sites, traffic.log, faults, began, anomalies)
        restarts = sum(site.restarts for site in sites.all.values())
    facts = facts_of(traffic, finals, took_s, sites.losses)
    return Outcome(anomalies, came, facts | {"daemons that gave up and were restarted": restarts})


def described(traffic: Traffic, judged: dict[str, list[str]]) -> list[str]:
    return [
        *(f"a client failed: {error}" for error in traffic.faults),
        *(f"odd reply: {text}" for text in odd_errors(traffic.log)),
        *(f"{name}: {line}" for name, lines in judged.items() for line in lines),
    ]


def make_group(sites: Regions) -> None:
    with sites[1].client() as client:
        for name in JOBS:
            client.xgroup_create(name, GROUP, id="0", mkstream=True)
            if name.startswith("turns"):
                client.execute_command("XGROUP", "SCOPE", name, GROUP, "ONCE")
    for name, home in HOMES.items():
        with sites[home].client() as client:
            client.tevict(name, client.twrite(name, "", "the first one makes the log"))
            client.tread(name, group=GROUP, retry=RETRY_MS)
    for number in sites:
        with sites[number].client() as client:
            for name in (*JOBS, *LOGS):
                eventually(
                    lambda client=client, name=name: client.exists(name) and client.xinfo_groups(name),  # type: ignore[misc]
                    within_s=QUIET_WITHIN_S,
                    why=f"region {number} should have the group of {name}",
                )


def _suffer(sites: Sites, plan: list[Fault], traffic: Traffic, seconds: float) -> Counter[str]:
    """Let the schedule happen, in this thread: how often each kind came.

    On a slow machine a fault waits until its targets are free. When the time is over, what still waits is
    left out, but for the first of each kind.
    """
    began, told_s, waiting, came = time.monotonic(), 0.0, list(plan), Counter[str]()
    now, busy = dict[Fault, float](), dict[object, float]()
    while (at_s := time.monotonic() - began) < seconds or waiting or now:
        if at_s >= seconds:
            waiting = [each for each in waiting if not came[each.kind]]
        for fault in [each for each, until_s in now.items() if until_s <= at_s]:
            sites.heal(fault)
            del now[fault]
            healed_s = time.monotonic() - began  # it may have taken a while
            busy |= dict.fromkeys(fault.targets, healed_s + RECOVERY_S.get(fault.kind, 0.0))
        if not sites.are_whole:  # no second region loses its data while one is being restored
            busy[LOSS] = at_s + RECOVERY_S[LOSSES[0]]
        taken = {target for fault in now for target in fault.targets}
        for fault in [each for each in waiting if each.at_s <= at_s]:
            if all(target not in taken and busy.get(target, 0.0) <= at_s for target in fault.targets):
                waiting.remove(fault)
                came[fault.kind] += 1
                now[fault] = at_s + fault.lasts_s
                sites.hurt(fault)
                break  # it may have taken a while
        for site in sites.all.values():
            site.supervise()
        if at_s - told_s >= TELL_EVERY_S:
            told_s = at_s
            print(progress(at_s, seconds, traffic, now), flush=True)
        time.sleep(0.05)
    return came


def progress(at_s: float, seconds: float, traffic: Traffic, now: Iterable[object]) -> str:
    outcomes = Counter(op.outcome for op in traffic.log.ops)
    said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    given = sum(each.new for each in traffic.log.deliveries)
    return f"{at_s:5.0f}/{seconds:g} s: {said}; {given} delivered; now: {', '.join(map(str, now)) or 'peace'}"


def _away(sites: Sites) -> list[str]:
    for site in sites.all.values():
        site.supervise()
    return [f"region {number} has not rejoined" for number in sites if not sites[number].is_whole]


def wait_for_rest(sites: Regions, traffic: Traffic, away: Callable[[], list[str]]) -> list[str]:
    """Wait until all regions are there, look alike and every group has acknowledged everything."""
    last: list[str] = []

    def check() -> bool:
        last[:] = away() or _unrest(sites, traffic)
        time.sleep(0.2)
        return not last

    try:
        eventually(check, within_s=QUIET_WITHIN_S, why="the regions should come to rest")
    except AssertionError:
        return [f"no rest after {QUIET_WITHIN_S:g} s: {'; '.join(last[:5])}"]
    return []


def _unrest(sites: Regions, traffic: Traffic) -> list[str]:
    """Cheap signs that something is still on its way."""
    found, looks = list[str](), dict[str, set[object]]()
    for number in sites:
        with sites[number].client(socket_timeout=10.0) as client:
            try:
                for name in STREAMS:
                    looks.setdefault(name, set()).add(_look(client, name))
                for name in (*JOBS, *LOGS):
                    if pending := client.xpending(name, GROUP)["pending"]:
                        found.append(f"{pending} pending in {name} of region {number}")
            except (redis.ConnectionError, redis.TimeoutError) as error:
                found.append(f"region {number}: {error}")
            except redis.ResponseError as error:  # a deletion has just arrived
                if "no such key" not in str(error):
                    raise
                found.append(f"region {number}: {error}")
    found += [f"{name} looks like {sorted(map(str, seen))}" for name, seen in looks.items() if len(seen) > 1]
    return found or _undelivered(sites[1], traffic)


def _undelivered(site: Region, traffic: Traffic) -> list[str]:
    """Consumers may be slow; what they never get is reported as skipped in the end."""
    given = {(each.stream, each.id) for each in list(traffic.log.deliveries)}
    with site.client(socket_timeout=10.0) as client:
        return [
            f"{entry} of {name} was not delivered yet"
            for name in (*JOBS, *LOGS)
            for entry, _ in client.xrange(name)
            if (name, entry) not in given
        ]


def _look(client: Any, name: str) -> object:
    if not client.exists(name):
        return ()
    last = client.xrevrange(name, count=1)
    return client.xlen(name), last[0][0] if last else "", tuple(_groups(client, name))


def _groups(client: Any, name: str) -> list[str]:
    return sorted(group["name"] for group in client.xinfo_groups(name))


def read_final(site: Region) -> verdict.Final:
    with site.client(socket_timeout=30.0) as client:
        entries = {name: [(id, text_of(fields)) for id, fields in client.xrange(name)] for name in STREAMS}
        groups = {name: _groups(client, name) if client.exists(name) else [] for name in STREAMS}
    return verdict.Final(entries, groups)


def facts_of(
    traffic: Traffic, finals: dict[int, verdict.Final], took_s: float, losses: list[Loss]
) -> dict[str, int | float]:
    ops = traffic.log.ops
    done = Counter((op.kind, op.outcome) for op in ops)
    return {
        "entries acknowledged": done["add", ACKED],
        "... unknown to their writer": done["add", UNKNOWN],
        "XDEL acknowledged": done["xdel", ACKED],
        "DEL acknowledged": done["del", ACKED],
        "acknowledged where it may have been lost": verdict.excused(traffic.log, losses),
        "operations refused": sum(traffic.log.errors.values()),
        "delivered to consumers": sum(each.new for each in traffic.log.deliveries),
        "entries in the end": sum(map(len, finals[1].entries.values())),
        "seconds until quiet": round(took_s, 1),
    }


def tell(outcome: Outcome, flavour: Flavour, seed: int) -> None:
    table = Table("what", "how many", title=f"soak on {flavour}, seed {seed}")
    for kind, count in sorted(outcome.faults.items()):
        table.add_row(f"fault: {kind}", str(count))
    for name, value in outcome.facts.items():
        table.add_row(name, f"{value:g}")
    table.add_row("anomalies", str(len(outcome.anomalies)))
    Console().print(table)
    for line in outcome.anomalies[:50]:
        print(line)

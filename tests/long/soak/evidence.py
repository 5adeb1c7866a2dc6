"""What a soak leaves behind when something went wrong: who did what to streams, and what regions store."""

from collections.abc import Iterable
from pathlib import Path

from tests.long.soak.traffic import STREAMS, Regions
from tests.oracle.client_log import ClientLog
from tests.support.servers import Engine


def keep_evidence(
    folder: Path, sites: Regions, log: ClientLog, faults: Iterable[str], began: float, anomalies: list[str]
) -> None:
    """evidence.txt in the folder of the logs. began: the time from which seconds are counted."""
    named = [name for name in STREAMS if any(f"{name}:" in line or f"{name} " in line for line in anomalies)]
    lines = [*anomalies, "", *faults]
    for name in named:
        lines += ["", f"operations on {name}, by the seconds when they began and ended"]
        lines += [
            f"{op.began - began:8.3f} {op.ended - began:8.3f} region {op.region} {op.kind} {op.subject} "
            f"{op.outcome} {op.reply}"
            for op in log.ops
            if op.stream == name
        ]
        for number in sites:
            lines += ["", f"{name} in region {number}", *_stored(sites[number].engine_of(name), name)]
    (folder / "evidence.txt").write_text("\n".join(lines) + "\n")


def _stored(engine: Engine, name: str) -> list[str]:
    """Registry, strands and journals as they are."""
    found = list[str]()
    with engine.client(decode_responses=True) as client:
        for key in sorted(client.scan_iter(f"bs:*{{{name}}}*", count=1_000)):
            if client.type(key) == "hash":
                found += [f"{key} {field} {value}" for field, value in sorted(client.hgetall(key).items())]
            elif client.type(key) == "stream":
                info = client.xinfo_stream(key)
                facts = {word: info.get(word) for word in ("last-generated-id", "max-deleted-entry-id")}
                found.append(f"{key} {facts}")
                found += [f"{key} {entry} {fields}" for entry, fields in client.xrange(key)]
    return found

"""Every event that the daemons log. `emit("link.lost", peer="eu-west")` is one log line.

    2026-11-15T10:00:00Z INFO link.lost peer=eu-west why="it closed the connection"

Values are facts for an operator; secrets and entries' bodies are never among them.
"""

import json
import logging
from typing import Final

from braidstream.observability.metrics import Family

_log = logging.getLogger("braidstream")

# name -> (level, what it means)
EVENTS: Final = {
    "daemon.listening": (logging.INFO, "serving /metrics, /healthz and /readyz"),
    "daemon.ready": (logging.INFO, "every peer was reached and compared once"),
    "daemon.stopped": (logging.INFO, "stopped by a signal"),
    "link.up": (logging.INFO, "connected to a peer; comparing its state"),
    "link.lost": (logging.WARNING, "a peer cannot be reached; retrying"),
    "peer.misconfigured": (
        logging.ERROR,
        "a peer is a different region than the file says, was removed, or its bs:config is broken",
    ),
    "clock.skew": (
        logging.WARNING,
        "a peer's clock differs from this region's by more than a second. Check NTP in both regions",
    ),
    "clock.apart": (
        logging.ERROR,
        "the clocks differ by more than 60 s: IDs no longer follow the order of writes. Set the clock",
    ),
    "link.swept": (logging.DEBUG, "every stream was compared with a peer"),
    "link.failed": (logging.ERROR, "a link ended with an unexpected error; retrying"),
    "link.refused": (logging.WARNING, "a peer refused a change to a stream; retrying"),
    "link.held": (
        logging.WARNING,
        "replication waits, because this region could still lose the new entries. Bring its replica back, or "
        "set `durability` of the region",
    ),
    "link.released": (logging.INFO, "held links resume"),
    "gate.chosen": (logging.INFO, "what links wait for, chosen by the engine's replicas and persistence"),
    "link.shipped": (logging.DEBUG, "entries were sent to a peer"),
    "region.lost_tail": (
        logging.ERROR,
        "the region's engine lost acknowledged entries or deletions that a peer has; they were restored from "
        "there. Entries that no peer had are lost",
    ),
    "region.fenced": (
        logging.ERROR,
        "the region serves no client: `braid region rejoin` runs, or its server was restored from a backup "
        "that was made during one. If none runs, run it",
    ),
    "region.ids_raised": (
        logging.WARNING,
        "another process serves the region, and its IDs were ahead of the clock: new IDs start above all IDs "
        "that the peers have. `without` lists peers that could not be reached",
    ),
    "source.lost": (logging.WARNING, "the region's engine cannot be reached; retrying"),
    "source.up": (logging.INFO, "the region's engine is reached again, after `source.lost`"),
    "source.refused": (
        logging.WARNING,
        "the region's engine refuses writes. Its entries still reach the peers; acknowledgements do not, and "
        "daemons of this region do not share their work",
    ),
    "feed.refused": (
        logging.WARNING,
        "the region's engine refused CLIENT TRACKING; retrying. Until then changes wait for a sweep",
    ),
    "lease.taken": (logging.INFO, "this process now serves other shards"),
    "gateway.ready": (logging.INFO, "listening for clients"),
    "gateway.limited": (
        logging.WARNING,
        "the limit of open files allows fewer clients than --maxclients. Raise `ulimit -n`",
    ),
    "gateway.open": (
        logging.WARNING,
        "clients on the network need no password (--allow-open). Set one on the server behind the gateway",
    ),
    "gateway.stopped": (logging.INFO, "stopped by a signal, after answering all running commands"),
    "gateway.failed": (
        logging.ERROR,
        "a command caused an unexpected error; its client was disconnected. Report it as a bug",
    ),
    "consumer.ready": (logging.INFO, "a consumer joined its group and takes entries"),
    "consumer.stopped": (logging.INFO, "a consumer finished what it had started, and left its group"),
    "consumer.failed": (logging.WARNING, "a handler failed; the entry is handled again after retry_in_s"),
    "consumer.dead": (logging.ERROR, "an entry failed for the last time and goes to the dead letters"),
    "consumer.unreached": (logging.WARNING, "a consumer cannot reach its engine, or was refused; retrying"),
    "consumer.refused": (logging.WARNING, "the engine refused a part of a consumer's work; retrying"),
    "consumer.claimed": (logging.INFO, "a consumer took over entries of one that is gone"),
    "config.changed": (logging.INFO, "the list of regions changed"),
    "config.broken": (logging.WARNING, "the changed file is invalid; the old list stays in use"),
}


_counts = dict[str, int]()


def emit(event: str, **facts: object) -> None:
    level, _ = EVENTS[event]
    _counts[event] = _counts.get(event, 0) + 1
    if _log.isEnabledFor(level):
        words = (f"{name}={_shown(value)}" for name, value in facts.items())
        _log.log(level, "%s", " ".join([event, *words]))


def event_families() -> list[Family]:
    """For /metrics: how often each event came. Those that need attention are there from the start, with 0."""
    watched = {event: 0 for event, (level, _) in EVENTS.items() if level >= logging.WARNING}
    values = dict[tuple[str, ...], float]()
    for event, count in {**watched, **_counts}.items():
        values[event, logging.getLevelName(EVENTS[event][0]).lower()] = count
    return [
        Family.counter("braid_events_total", "Log events, by name and level.", values, ("event", "level"))
    ]


def _shown(value: object) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if text and all(c.isprintable() and c not in ' "=' for c in text) else json.dumps(text)

"""Every event the daemons tell. `emit("link.lost", peer="eu-west")` is one log line and one count.

    2026-11-15T10:00:00Z INFO link.lost peer=eu-west why="it closed the connection"

Values are facts for an operator; secrets and entries' bodies are never among them.
"""

import json
import logging
from collections import Counter
from typing import Final

_log = logging.getLogger("braidstream")

# name -> (level, what it means)
EVENTS: Final = {
    "daemon.ready": (logging.INFO, "connected to the own engine; links start"),
    "daemon.stopped": (logging.INFO, "asked to stop, and stopped"),
    "link.up": (logging.INFO, "a peer is reached; its state is compared now"),
    "link.lost": (logging.WARNING, "a peer cannot be reached; it is tried again"),
    "peer.misconfigured": (
        logging.ERROR,
        "a peer is not the region that the file says, was removed, or its bs:config is broken",
    ),
    "clock.skew": (
        logging.WARNING,
        "a peer's clock and ours are more than a second apart. Check NTP in both regions",
    ),
    "clock.apart": (
        logging.ERROR,
        "they are more than 60 s apart: IDs no longer tell what was written after what. Set the clock",
    ),
    "link.swept": (logging.DEBUG, "every stream was compared with a peer"),
    "link.failed": (logging.ERROR, "a link ended by an error that is no lost connection; it is tried again"),
    "link.refused": (logging.WARNING, "a peer refused a stream; it is tried again"),
    "link.held": (
        logging.WARNING,
        "nothing goes to the peers while this region could still lose it. Bring its replica back, or set "
        "`durability` of the region",
    ),
    "link.released": (logging.INFO, "links that were held go on"),
    "gate.chosen": (logging.INFO, "what links wait for, chosen by what the own engine has"),
    "link.shipped": (logging.DEBUG, "entries were brought to a peer"),
    "region.lost_tail": (
        logging.ERROR,
        "the own engine lost entries or deletions that it had acknowledged, and a peer has them; they were "
        "brought back from there. What no peer had is lost",
    ),
    "source.lost": (logging.WARNING, "the own engine cannot be reached; it is tried again"),
    "source.refused": (
        logging.WARNING,
        "the own engine refuses writes. What it holds still goes to the peers; acknowledgements do not, and "
        "daemons of this region do not share their work",
    ),
    "feed.refused": (
        logging.WARNING,
        "the own engine refused CLIENT TRACKING; it is tried again, and until then changes wait for a sweep",
    ),
    "lease.taken": (logging.INFO, "this process now serves other shards than before"),
    "gateway.ready": (logging.INFO, "listening for clients"),
    "gateway.limited": (
        logging.WARNING,
        "fewer clients than --maxclients may come: the system allows too few open files. Raise `ulimit -n`",
    ),
    "gateway.open": (
        logging.WARNING,
        "clients on the network need no password (--allow-open). Set one on the server behind the gateway",
    ),
    "gateway.stopped": (logging.INFO, "asked to stop; what was taken is answered"),
    "gateway.failed": (logging.ERROR, "a command broke the gateway; its client was cut off. Report it"),
    "config.changed": (logging.INFO, "the list of regions changed"),
    "config.broken": (logging.WARNING, "the file was changed and cannot be used; the old list stays"),
}

counts: Counter[str] = Counter()


def emit(event: str, **facts: object) -> None:
    level, _ = EVENTS[event]
    counts[event] += 1
    if _log.isEnabledFor(level):
        words = (f"{name}={_shown(value)}" for name, value in facts.items())
        _log.log(level, "%s", " ".join([event, *words]))


def _shown(value: object) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if text and all(c.isprintable() and c not in ' "=' for c in text) else json.dumps(text)

"""Every event that the daemons log. `emit("link.lost", peer="eu-west")` is one log line.

    2026-11-15T10:00:00Z WARNING link.lost peer=eu-west why="it closed the connection"

Values are facts for an operator; secrets and entries' bodies are never among them.
"""

import json
import logging
import os
import re
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from braidstream.observability.metrics import Family

_log = logging.getLogger("braidstream")
FACTS: Final = "braid_facts"  # the attribute of a log record


@dataclass(frozen=True, slots=True)
class Event:
    """docs/reference/events.md shows meaning and action: what an operator does; empty: nothing."""

    level: int
    meaning: str
    action: str = ""


EVENTS: Final = {
    "daemon.listening": Event(logging.INFO, "serving `/metrics`, `/healthz` and `/readyz`"),
    "receiver.ready": Event(logging.INFO, "listening for compressed links of peers (`--receive`)"),
    "receiver.open": Event(
        logging.WARNING,
        "anyone on the network can connect and try passwords of the server (--allow-open)",
        "Require client certificates: --tls-ca.",
    ),
    "receiver.refused": Event(
        logging.WARNING,
        "the receiver refused or closed a connection: `client` is not a daemon or has another version, "
        "failed the TLS handshake, did not log in, sent invalid bytes or none for a minute, wants a server "
        "of another region, or is one too many; or this region's engine does not answer, or requires no "
        "password. Logged once, then once a minute",
        "Fix what `why` names. If `client` is not a daemon of yours, close the port to it.",
    ),
    "daemon.ready": Event(logging.INFO, "every peer was reached and compared once"),
    "daemon.stopped": Event(logging.INFO, "stopped by a signal"),
    "link.up": Event(
        logging.INFO,
        "connected to a peer; comparing its state. After `link.lost`, `down_s` says how long it lasted; "
        "`receiver`: through which one, if the link is compressed",
    ),
    "link.lost": Event(
        logging.WARNING,
        "a peer cannot be reached; the daemon retries, at most every two seconds. Logged once, then once a "
        "minute with `times` and `down_s`",
        "Check the network between the two regions and the peer's server. No data is lost: it catches up.",
    ),
    "peer.misconfigured": Event(
        logging.ERROR,
        "a peer refuses the user or password, is not a region, is another region than the file says, was "
        "removed, shares its number with another server, or has a broken `bs:config`; or this machine "
        "lacks a file or package for the peer's `receiver`. It gets nothing",
        "Correct the file or the server that `why` names. `braid doctor` shows more.",
    ),
    "clock.skew": Event(
        logging.WARNING,
        "a peer's clock differs from this region's by more than a second. IDs still sort after entries that "
        "were read",
        "Check NTP on both servers.",
    ),
    "clock.apart": Event(
        logging.ERROR,
        "the clocks differ by more than 60 s: a new entry may sort before one that its writer had read",
        "Set the clock now.",
    ),
    "link.swept": Event(logging.DEBUG, "every stream was compared with a peer"),
    "link.failed": Event(
        logging.ERROR,
        "a link ended with an unexpected error; the daemon retries",
        "Read `why`. If it is not an error reply of the peer's server, report it as a bug.",
    ),
    "link.refused": Event(
        logging.WARNING,
        "a peer refused a change to a stream; the daemon retries",
        "Fix in the peer what `why` names: OOM (memory is full), MISCONF (disk), NOPERM (rights).",
    ),
    "link.held": Event(
        logging.WARNING,
        "replication waits, because this region could still lose the new entries: too few replicas have them",
        "Read `why`. Bring the replica back, or go on without it: `braid tune durability none`.",
    ),
    "link.released": Event(logging.INFO, "held links resume"),
    "gate.waived": Event(
        logging.WARNING,
        "links were held for `durability_timeout_s`, and go on: peers may get entries that this region could "
        "still lose",
        "Bring the replica back. The links then wait for it again.",
    ),
    "gate.restored": Event(logging.INFO, "the region has its replicas again, and links wait for them"),
    "gate.tuned": Event(
        logging.WARNING, "`braid tune durability` changed what links wait for, or gave that back to the file"
    ),
    "gate.chosen": Event(logging.INFO, "what links wait for, chosen by the server's replicas"),
    "link.shipped": Event(logging.DEBUG, "entries were sent to a peer"),
    "region.lost_tail": Event(
        logging.ERROR,
        "this region's server lost acknowledged entries or deletions that a peer has; they were restored "
        "from there. Entries that no peer had are lost",
        "Find out why they were lost: a failover, a restored backup. With `why`, they could not be restored: "
        "run `braid spark audit --repair`.",
    ),
    "peer.lost_tail": Event(
        logging.ERROR,
        "a peer's server lost acknowledged entries that this region has; it got them back from here. Entries "
        "that no region had are lost",
        "Find out why they were lost: a failover, a restored backup.",
    ),
    "stream.refilled": Event(
        logging.ERROR,
        "a server lost entries of a stream that another region has; they were restored from there: `here` of "
        "them in this region, `there` at the peer",
        "Find out why they were lost: a damaged append-only file, a restored backup, keys changed by hand.",
    ),
    "stream.hole": Event(
        logging.ERROR,
        "`region` lacks entries of a stream that another region has, and they could not be restored",
        "Read `why`. The other regions keep the entries, and the links try again with every sweep.",
    ),
    "stream.damaged": Event(
        logging.ERROR,
        "the registry of a stream cannot be read: `field` is malformed. The stream is not replicated, its "
        "groups have no metrics and are not taken over; all other streams go on. Each is logged once, and 20 "
        "of them in an hour; `more` counts the others, once a minute",
        "Run `braid doctor`, which names it and says what to type.",
    ),
    "region.fenced": Event(
        logging.ERROR,
        "the region serves no client: `braid region rejoin` runs, or its server was restored from a backup "
        "that was made during one",
        "If no rejoin runs, run `braid region rejoin`.",
    ),
    "region.lost": Event(
        logging.ERROR,
        "this region's server has no `bs:config` (FLUSHALL, an empty server), or a part of it is missing: it "
        "lost data. The daemon sends nothing. Logged once, then once a minute",
        "Stop the daemon, run `braid region rejoin`, and start it again.",
    ),
    "functions.missing": Event(
        logging.ERROR,
        "this region's server has no engine functions (FUNCTION FLUSH): clients and links fail. Logged once, "
        "then once a minute",
        "Run `braid init` for this region.",
    ),
    "functions.changed": Event(
        logging.ERROR,
        "the engine functions are not those that this daemon ships: somebody changed them, or loaded newer "
        "ones. They run with the rights of all clients and daemons",
        "If you upgrade, upgrade the daemon too. Otherwise find out who may run FUNCTION LOAD, and run "
        "`braid init --force` for this region.",
    ),
    "functions.loaded": Event(
        logging.WARNING,
        "the daemon upgraded the engine functions of its server, because its user may: `was` and `now` are "
        "versions, 0 for none",
        "Nothing, if you upgrade. To decide yourself when that happens, give the daemon's user no right to "
        "FUNCTION, and run `braid init`.",
    ),
    "region.ids_raised": Event(
        logging.WARNING,
        "another process serves the region, and its IDs were ahead of the clock: new IDs start above all IDs "
        "that the peers have. `without` lists peers that could not be reached",
        "Check the clocks. If `without` names peers, run an audit.",
    ),
    "region.offsets_unknown": Event(
        logging.WARNING,
        "another process serves the region, and the peers in `without` could not be asked how far its logs "
        "had come: offsets of entries that only they have may be given again",
        "Reach these peers again. Then run an audit of the logs that this region writes.",
    ),
    "source.lost": Event(
        logging.WARNING,
        "this region's own server cannot be reached; the daemon retries. Logged once, then once a minute",
        "Check this region's server. Links are not logged as lost meanwhile.",
    ),
    "source.up": Event(logging.INFO, "this region's own server is reached again, after `source.lost`"),
    "node.lost": Event(
        logging.WARNING,
        "a primary of a region that is a cluster cannot be reached; the daemon retries. Its streams wait, "
        "the others go on. Logged once, then once a minute",
        "Check the node. If it has a replica, the cluster promotes it, and the daemon follows.",
    ),
    "node.up": Event(
        logging.INFO, "a primary of a cluster is reached: a new one, or again. Its streams are compared"
    ),
    "node.incomplete": Event(
        logging.WARNING,
        "a primary of this region's cluster lacks the engine functions or facts of the others, and they "
        "could not be copied to it; the daemon retries",
        "Run `braid init` for the cluster, or fix what `why` names.",
    ),
    "source.refused": Event(
        logging.WARNING,
        "this region's server refuses writes. Its entries still reach the peers; acknowledgements do not, "
        "and daemons of this region do not share their work. Of a cluster also: the primary of bs:daemons "
        "is lost, so they do not share it",
        "Fix what `why` names: memory, disk, replicas, rights, or the lost primary.",
    ),
    "job.failed": Event(
        logging.ERROR,
        "a job of the daemon ended with an unexpected error. The daemon goes on, and repeats the job. Logged "
        "once, then once a minute",
        "Read `why`, and report it as a bug. Was a key of `bs:*` changed by hand?",
    ),
    "feed.refused": Event(
        logging.WARNING,
        "the region's server refused CLIENT TRACKING; the daemon retries. Until then changes wait for a "
        "sweep, up to 30 s",
        "Grant `+client|tracking` to the daemon's user.",
    ),
    "metrics.refused": Event(
        logging.WARNING,
        "the daemon's user may not read what some metrics need: `metrics` are absent, and alerts on them "
        "cannot fire. Logged once",
        "Grant it: `ACL SETUSER USER RIGHT`, with `right` of the event.",
    ),
    "lease.taken": Event(logging.INFO, "this process now serves other ranges of streams"),
    "gateway.ready": Event(logging.INFO, "listening for clients"),
    "gateway.limited": Event(
        logging.WARNING,
        "the limit of open files allows fewer clients than --maxclients, or, without it, fewer than 10,000",
        "Raise `ulimit -n` (systemd: `LimitNOFILE`), or set a lower --maxclients.",
    ),
    "gateway.open": Event(
        logging.WARNING,
        "clients on the network need no password (--allow-open)",
        "Set a password on the server behind the gateway.",
    ),
    "gateway.stopped": Event(logging.INFO, "stopped by a signal, after answering all running commands"),
    "gateway.failed": Event(
        logging.ERROR,
        "a command caused an unexpected error; its client was disconnected",
        "Report it as a bug, with the lines of `why`.",
    ),
    "gateway.engine_lost": Event(
        logging.WARNING,
        "the gateway cannot use its region's server: `why` says whether it is down, hangs, refuses the "
        "gateway's own user, or lost its region. Clients get errors. Logged once, then once a minute",
        "Check the server and the url of the gateway. `braid status` shows more.",
    ),
    "gateway.engine_up": Event(
        logging.INFO, "the gateway can use its server again, after `gateway.engine_lost`"
    ),
    "gateway.clients_refused": Event(
        logging.WARNING,
        "the gateway refuses clients, because it has as many as --maxclients allows. Logged once, then once "
        "a minute with `times`",
        "Raise --maxclients and the limit of open files, or start more gateways.",
    ),
    "gateway.login_failed": Event(
        logging.WARNING,
        "a client used a wrong user or password. After five of one address within a minute the answer is "
        "delayed, up to 3 s; after 60, logins that never succeeded are refused. Logged once for each "
        "address, then once a minute with `times`",
        "If `client` is not one of yours, block it in front of the gateway.",
    ),
    "gateway.admin": Event(
        logging.INFO,
        "a client asked for an administrative command, such as CONFIG SET or FLUSHALL: as which user, and "
        "from where. Arguments are not logged. The engine may have refused it. At most 100 a minute for each "
        "address",
    ),
    "console.changed": Event(
        logging.INFO,
        "a visitor of the console changed something: what, who (the user that a proxy names), from where",
    ),
    "gateway.client_evicted": Event(
        logging.WARNING,
        "the gateway disconnected the client that held most memory (`bytes`: commands that it sent, and "
        "replies that it did not read), because all together held more than --maxmemory-clients. Logged "
        "once, then once a minute with `times`",
        "Does `client` read its replies? If so raise --maxmemory-clients, or start more gateways.",
    ),
    "announced.lost": Event(
        logging.WARNING,
        "a gateway that --announce names does not answer; if it did before, cluster clients no longer see it",
        "Start it. If it is gone for good, restart the other gateways with another --announce.",
    ),
    "announced.up": Event(logging.INFO, "a gateway that --announce names answers again"),
    "consumer.ready": Event(logging.INFO, "a consumer joined its group and takes entries"),
    "consumer.everywhere": Event(
        logging.WARNING,
        "the group of a consumer has the scope EVERYWHERE: workers of other regions handle the same entries. "
        'Logged if there are other regions and the consumer has no scope=, or if it has scope="ONCE", which '
        "does not change a group that exists",
        'If each entry is to be handled once, type `fix`. Else make the consumer with scope="EVERYWHERE".',
    ),
    "consumer.stopped": Event(logging.INFO, "a consumer finished what it had started, and left its group"),
    "consumer.failed": Event(
        logging.WARNING,
        "a handler failed; the entry is handled again after `retry_in_s`. With the traceback: the innermost "
        "20 frames, at most 4,000 characters",
        "Read the handler's error. Nothing, if the next attempt succeeds.",
    ),
    "consumer.dead": Event(
        logging.ERROR,
        "an entry failed for the last time and goes to the dead letters, with the traceback",
        "Correct the handler, then see `braid dead --help`.",
    ),
    "consumer.unreached": Event(
        logging.WARNING,
        "a consumer cannot reach its server, or was refused; it retries",
        "Check the server, its address and the user's rights.",
    ),
    "consumer.reached": Event(logging.INFO, "the server of a consumer answers again"),
    "worker.died": Event(
        logging.ERROR,
        "a process of `braid worker` died, and is started again. Other consumers take over its entries",
        "Read what it printed before. If it was killed (`how`), look for the kernel's out-of-memory killer.",
    ),
    "worker.reloading": Event(
        logging.INFO, "a Python file changed: `braid worker --reload` starts its processes again"
    ),
    "consumer.refused": Event(
        logging.WARNING,
        "the server refused a part of a consumer's work; it retries",
        "Fix what `why` names.",
    ),
    "consumer.followed": Event(
        logging.INFO, "a consumer with a MultiRegion client goes on in another region, where its client went"
    ),
    "consumer.claimed": Event(logging.INFO, "a consumer took over entries of one that is gone"),
    "deadline.refused": Event(
        logging.WARNING,
        "the time to live of a stream is over, and the own engine refused to delete it; the daemon retries",
        "Fix what `why` names. NOPERM: give the daemon's user `+unlink`, and access to the names of adopted "
        "streams.",
    ),
    "fence.refused": Event(
        logging.WARNING,
        "a peer deleted an adopted stream, and the own engine refused to remove its fence, so writes to a "
        "plain key of the name fail with WRONGTYPE; the daemon retries",
        "Fix what `why` names. NOPERM: give the daemon's user `+unlink`, and access to the names of adopted "
        "streams.",
    ),
    "log.rescued": Event(
        logging.WARNING,
        "what this region wrote to a log after its home was moved away by force was appended at the home, "
        "with new offsets",
        "Nothing, unless someone stored the offsets that the writers got.",
    ),
    "log.rescue_refused": Event(
        logging.WARNING,
        "what this region wrote to a log after its home was moved away by force could not be appended at the "
        "home, or deleted here after that; the daemon retries",
        "Fix what `why` names. NOPERM: give the daemon's user `+xadd` and `+xdel` on its own server.",
    ),
    "retention.waits": Event(
        logging.WARNING,
        "a stream has entries that its retention policy would remove, but a group needs them, or a region "
        "cannot be asked. Logged when that begins",
        "Let the group that `why` names catch up, or destroy it. Bring the region back. `--hold` limits the "
        "wait.",
    ),
    "retention.refused": Event(
        logging.WARNING,
        "an entry of `braid.retention` cannot be read and changes nothing, or the own engine refuses to trim",
        "Set the policy again: `braid retention set`. NOPERM: give the daemon's user `+memory|usage`.",
    ),
    "later.refused": Event(
        logging.WARNING,
        "an entry waits for later in `stream`, and it cannot be read, or the own engine refuses to append it "
        "when it is due. It stays and is tried again; the others go on",
        "Read `why`. Delete the entry that `id` names with XDEL, or fix what it says: OOM, NOPERM, a key of "
        "another type.",
    ),
    "schedule.refused": Event(
        logging.WARNING,
        "an entry of a `[[schedule]]` is due, and the own engine refuses it. It is tried again every second",
        "Read `why`: OOM, NOPERM, or `stream` is a log or another type of key.",
    ),
    "trim.waits": Event(
        logging.WARNING,
        "somebody trims `stream` with ACKED, and a region cannot be asked what its groups need: nothing that "
        "it could need is removed. Logged once, then once a minute",
        "Bring that region or the link to it back. If it is gone for good: `braid region remove`.",
    ),
    "trim.unanswered": Event(
        logging.WARNING,
        "the daemon could not answer what groups of other regions need, so a trim with ACKED removed nothing",
        "Fix what `why` names. NOPERM: give the daemon's user `+xadd` on its own server.",
    ),
    "groups.taken_over": Event(
        logging.WARNING,
        "the heartbeat of a region has stopped: this region delivers for it, to groups of scope ONCE",
        "Bring the region back. Its work is given back when it is steady.",
    ),
    "groups.given_back": Event(
        logging.INFO,
        "a region is back; it delivers its strands again when nothing of them is pending",
    ),
    "admin.changed": Event(
        logging.INFO,
        "someone typed `braid region`, `braid tune` or `braid adopt`: which, who, from which address (of "
        "SSH), and what it changes. In the machine's system log (facility authpriv), not on stderr",
    ),
    "config.changed": Event(
        logging.INFO,
        "the file changed; `what` says which regions and settings. Other regions need the same file",
    ),
    "config.moved": Event(
        logging.WARNING,
        "the file has another URL or number for the daemon's own region. The daemon ends with exit code 1, "
        "so that systemd or Kubernetes starts it with the new one",
    ),
    "config.broken": Event(
        logging.WARNING,
        "the changed file is invalid or gone; the old list stays in use. The daemon would not start with it",
        "Correct the file. The daemon reads it again within two seconds.",
    ),
}


_counts = dict[str, int]()


def emit(event: str, **facts: object) -> None:
    """Log an event. A fact `traceback` is on lines of its own, except in JSON. They are indented: errors
    quote entries, whose lines must not look like events."""
    level = EVENTS[event].level
    _counts[event] = _counts.get(event, 0) + 1
    if _log.isEnabledFor(level):
        shown = {"event": event, **{name: _plain(value) for name, value in facts.items()}}
        lines = [f"    {_visible(line)}" for line in str(facts.pop("traceback", "")).splitlines()]
        words = (f"{name}={_shown(value)}" for name, value in facts.items())
        _log.log(level, "%s", "\n".join([" ".join([event, *words]), *lines]), extra={FACTS: shown})


class JsonFormatter(logging.Formatter):
    """One JSON object for each line: time (UTC), level, host, process, `facts`, event, and its own facts."""

    def __init__(self, **facts: object) -> None:
        super().__init__()
        self._facts = {"host": socket.gethostname(), "pid": os.getpid(), **facts}

    def format(self, record: logging.LogRecord) -> str:
        shown = getattr(record, FACTS, None) or {"event": "log", "text": record.getMessage()}
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": at, "level": record.levelname, **self._facts, **shown})


def event_families() -> list[Family]:
    """For /metrics: how often each event came. Those that need attention are there from the start, with 0."""
    watched = {event: 0 for event, about in EVENTS.items() if about.level >= logging.WARNING}
    values = dict[tuple[str, ...], float]()
    for event, count in {**watched, **_counts}.items():
        values[event, logging.getLevelName(EVENTS[event].level).lower()] = count
    return [
        Family.counter("braid_events_total", "Log events, by name and level.", values, ("event", "level"))
    ]


def _plain(value: object) -> object:
    """As JSON has it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value if isinstance(value, bool | int | float | None) else str(value)


def _visible(line: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def _shown(value: object) -> str:
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return text if text and all(c.isprintable() and c not in ' "=' for c in text) else json.dumps(text)


# ----------------------------------------------------------------------------------------------------
# Logs a lasting problem once, then once a minute with a count, not for each attempt.

AGAIN_S: Final = 60.0
LEAST_S: Final = 1.0
FEW: Final = 3
_NUMBERS: Final = re.compile(r"[0-9]+")  # ports, counts, seconds: the same problem


@dataclass(slots=True)
class Repeated:
    """One kind of problem. Times are of any monotonic clock.

    since_s: when it began; None if there is none now. times: how often it happened since.
    """

    since_s: float | None = None
    times: int = 0
    _logged_s: float = 0.0
    _kinds: dict[str, float] = field(default_factory=dict)  # reasons, and when each was last logged

    def log(self, event: str, now_s: float, *, why: str, **facts: object) -> None:
        """It happened. A new event or reason is logged at once, but at most once a second. Of reasons that
        take turns, only the first few of a minute are."""
        if self.since_s is None:
            self.since_s, self.times = now_s, 0
        self.times += 1
        kind = f"{event} {_NUMBERS.sub('', why)}"
        recent = {each: at for each, at in self._kinds.items() if now_s - at < AGAIN_S}
        is_new = kind not in recent and len(recent) < FEW and now_s - self._logged_s >= LEAST_S
        if is_new or not self._kinds or now_s - self._logged_s >= AGAIN_S:
            self._kinds, self._logged_s = recent | {kind: now_s}, now_s
            more = {"times": self.times, "down_s": round(now_s - self.since_s)} if self.times > 1 else {}
            emit(event, **facts, why=why, **more)

    def over(self, now_s: float) -> dict[str, object]:
        """It is over. Returns facts for the event that logs this; empty if there was no problem."""
        if self.since_s is None:
            return {}
        facts: dict[str, object] = {"times": self.times, "down_s": round(now_s - self.since_s, 1)}
        self.since_s, self.times, self._kinds = None, 0, {}
        return facts

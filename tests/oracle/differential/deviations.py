"""What differs on purpose, and the contract that is checked in its place."""

from collections.abc import Callable
from typing import Any, Final

from tests.oracle.differential.mapping import Mapping, entry_id, parsed
from tests.oracle.differential.report import Mismatch, Tally, same
from tests.oracle.differential.script import (
    CAPS,
    EXPIRES,
    MAX,
    Argv,
    Call,
    command_of,
    id_word_at,
    names_read,
    unfit_for_multi,
    upper,
)
from tests.oracle.differential.sides import Fault, Reply, Sides

DEVIATIONS: Final = {
    "strict mode": "an XADD that chooses an ID is refused",
    "minted IDs": "minted by *, they carry the writer: paired with the bare ones; sequence % 1024 is 1",
    "minting after DEL": "IDs stay above those of the deleted stream; after 18446744073709551615-x none is "
    "left, or it is no smaller, and the sequence ends",
    "EXPIRE family on a stream": "refused; the bare engine has a stream there and accepts the words",
    "DUMP of a stream": "other bytes, for the IDs are others: restored in the bare engine they are as many "
    "entries with the same fields, and as many groups",
    "XSETID back": "refused; the bare engine accepts it (it does while no entry is above the new ID)",
    "XSETID below what was deleted": "Valkey 8.0.1 looks at max-deleted-entry-id first and says so; ours "
    "refuses, or says as Redis does that entries are above; the ID is below the bare max-deleted-entry-id",
    "COPY of a stream to another database": "refused; the source is a stream",
    "lag": "ours is the number of entries after last-delivered-id, whatever was deleted or claimed read; the "
    "bare engine says nil, or what its counters give. Where XSETID set entries-added, or XCLAIM "
    "moved the group by LASTID, ours may be wrong too, but no more than the length",
    "entries-read": "counted strand by strand, and ENTRIESREAD is not passed on: nil, or no negative number",
    "idempotence does not move": "RENAME and COPY leave the known messages behind: if there are any, the "
    "sequence ends",
    "producers of a stream without IDs": "at the end of all IDs the bare engine lists a producer whose "
    "message it refuses; ours lists those that have messages",
    "groups do not move": "RENAME and COPY leave them behind: they are then destroyed in the bare engine",
    "delivery and idle times": "no further apart than twice the longest step of the sequence took",
    "several round trips inside MULTI": "RENAME, COPY, SCAN, KEYS, FLUSHDB, XSETID, XADD ms-*, XREAD of a "
    "stream twice, XGROUP, XAUTOCLAIM, XREADGROUP with COUNT or of several streams, XINFO but for STREAM "
    "without FULL, XTRIM MAXLEN of a stream with chosen IDs: the whole MULTI is refused",
    "a cap inside MULTI": "XADD with a cap on a stream with chosen IDs trims right after EXEC, so it is the "
    "last command on that stream there",
    "two errors inside MULTI": "both sides refuse the whole MULTI; which of the two errors is told differs",
    "XREAD +": "Redis 7.0 lacks it, and Valkey 8.0.1 answers nil where the last ID is no entry (as Redis "
    "7.4.0 did) or an error where it is 0-0: there the bare side is asked with the ID just before its last "
    "entry",
    "XREADGROUP +": "meaningless, as newer engines say; Redis 7.0 finds no ID in it",
    "XREAD of a stream twice": "by RESP2 only: hiredis misreads a RESP3 map with equal keys",
    "~ trimming": "a stream with chosen IDs has two strands, so other nodes may go: the exact trim is sent "
    "to both next, after which both have dropped as many in all",
    "a cap that asks the groups": "DELREF and ACKED over several strands take the oldest entries that may "
    "go; the bare engine stops at a node that is not to go as a whole, or is larger than LIMIT. What ours "
    "took further may go there too, and is then taken",
    "radix-tree-keys, -nodes": "equal while a stream has IDs of one kind and was not copied; minted keys "
    "share prefixes as the clock says, so nodes only while there is one key; else nodes are at least keys, "
    "or one in engines that keep leaves in their parents",
    "MAXSIZE": "the bytes are counted as RESP2 writes them: by RESP3 the bare engine is asked for the four "
    "bytes less that it saves, of one stream only. Our IDs can be longer: then the read is not sent",
    "idle equally long": "CLAIM takes by ID what is idle for the same time, the bare engine by the order in "
    "which it was delivered: each is idle about as long as the one in its place; if the two took different "
    "entries the sequence ends",
    "plain commands on a stream": "they pass untouched, so GET and kin see no key where the bare engine says "
    "WRONGTYPE; those that write are not sent to a stream",
    "the clock": "TTL and kin, OBJECT IDLETIME: within a few seconds",
    "order of KEYS and SCAN": "compared as sets; SCAN is followed to its end",
}

# Known bugs, each with a test of a command line that triggers it and is not sent. Empty is what we want.
KNOWN: list[tuple[str, Callable[[Argv], bool]]] = []

# With these a cap is exact, `~` or not.
ASKING: Final = (b"DELREF", b"ACKED")
CLOCK_SLACK_S: Final = 5
SCRATCH: Final = b"differential:scratch"
WRONGTYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
MISSING: Final[dict[bytes, Any]] = {b"GET": None, b"STRLEN": 0, b"HGETALL": [], b"LLEN": 0}
TICKS: Final = {b"TTL": 1, b"EXPIRETIME": 1, b"PTTL": 1000, b"PEXPIRETIME": 1000}
# How the payload of a stream begins, in the versions of engines.
STREAM_TYPES: Final = (15, 19, 21, 26, 27)
KEYS, NODES, PRODUCERS = b"radix-tree-keys", b"radix-tree-nodes", b"pids-tracked"


class SequenceEnds(Exception):
    """A documented deviation after which the two sides cannot be brought together."""


class Deviations:
    """The contracts, over what a run knows."""

    def __init__(self, sides: Sides, mapping: Mapping, tally: Tally) -> None:
        self._sides, self._mapping, self._tally = sides, mapping, tally
        self.longest_ms = 0.0

    @property
    def apart_ms(self) -> float:
        """How far apart the two sides may be in what they say about time."""
        return 2 * self.longest_ms + 2

    def note(self, name: str) -> None:
        assert name in DEVIATIONS, name
        self._tally.deviations[name] += 1

    # Replies

    def expected_error(self, theirs: Argv, argv: Argv, bare: Reply, ours: Reply) -> bool:
        """Whether two replies, at least one an error, differ as documented."""
        command = argv[0].upper()
        if command in MISSING and isinstance(bare, Fault) and bare.text == WRONGTYPE:
            self.note("plain commands on a stream")
            return (same(MISSING[command], ours) or ours == {}) and self._sides.is_stream(argv[1])
        if command == b"XSETID" and isinstance(ours, Fault) and self._below_deleted(theirs, bare):
            return "smaller than the target stream" in ours.text
        if command == b"XREADGROUP" and b"+" in argv and not self._sides.reads_plus:
            self.note("XREADGROUP +")
            told = isinstance(bare, Fault) and bare.text.startswith("Invalid stream ID")
            return told and isinstance(ours, Fault) and ours.text.startswith("The + ID is meaningless")
        return False

    def clock(self, argv: Argv, bare: Reply, ours: Reply) -> bool:
        """Whether two numbers are the same but for the time between the commands."""
        command = argv[0].upper()
        idle = command == b"OBJECT" and argv[1].upper() == b"IDLETIME"
        if not (idle or command in TICKS) or type(bare) is not int or type(ours) is not int:
            return False
        self.note("the clock")
        return min(bare, ours) >= 0 and abs(bare - ours) <= CLOCK_SLACK_S * TICKS.get(command, 1)

    def check_times(self, what: bytes, bare: Reply, ours: Reply) -> None:
        """Two moments, or two idle times; -1 is never."""
        self.note("delivery and idle times")
        apart = self.apart_ms
        if type(bare) is not int or type(ours) is not int or (bare < 0) != (ours < 0):
            raise Mismatch([what], bare, ours, "no times")
        if abs(bare - ours) > apart:
            raise Mismatch(
                [what], bare, ours, f"times are {abs(bare - ours)} ms apart; {apart:.0f} are allowed"
            )

    def listed(self, argv: Argv, bare: Reply, ours: Reply) -> bool:
        """KEYS and SCAN: the same names in any order."""
        self.note("order of KEYS and SCAN")
        if not isinstance(ours, list) or (argv[0].upper() == b"SCAN" and argv[1] != b"0"):
            return isinstance(ours, list)  # from a cursor nobody gave, any page will do
        return len(ours) == len(set(ours)) and set(bare) == set(ours)

    def same_dump(self, argv: Argv, bare: Reply, ours: Reply) -> bool:
        """DUMP of a stream: what the bytes become, in the bare engine."""
        if bare is None or ours is None or bare[0] not in STREAM_TYPES:
            return same(bare, ours)
        self.note("DUMP of a stream")
        found = list[Any]()
        for payload in (bare, ours):
            restored = self._sides.peek("RESTORE", SCRATCH, 0, payload, "REPLACE")
            if isinstance(restored, Fault):
                return payload is bare  # Redis 8.10.2 now and then refuses what it has dumped itself
            entries = self._sides.peek("XRANGE", SCRATCH, "-", "+")
            groups = 0 if self._sides.in_pipeline else len(self._sides.peek("XINFO", "GROUPS", SCRATCH))
            found.append(([fields for _, fields in entries], groups))
        self._sides.peek("DEL", SCRATCH)
        return same(found[0], found[1])

    def trees(self, name: bytes, bare: dict[bytes, Any], ours: dict[bytes, Any]) -> bool:
        """XINFO STREAM: check our counts, and take over those that need not be equal."""
        # Newer engines keep leaves in their parents.
        fewest = 1 if "XREAD MAXCOUNT" in self._sides.vocabulary else ours[KEYS]
        if type(ours[KEYS]) is not int or ours[NODES] < fewest or ours[KEYS] < bool(ours[b"length"]):
            return False
        if name in self._mapping.exhausted and ours.get(PRODUCERS) != bare.get(PRODUCERS):
            self.note("producers of a stream without IDs")
            ours[PRODUCERS] = bare[PRODUCERS]
        life = self._mapping.life(name)
        if not life.same_nodes:
            self.note("radix-tree-keys, -nodes")
            ours[KEYS], ours[NODES] = bare[KEYS], bare[NODES]
        elif "minted" in life.kinds and bare[KEYS] > 1:
            self.note("radix-tree-keys, -nodes")
            ours[NODES] = bare[NODES]
        return True

    def no_more_ids(self, argv: Argv, bare: Reply, ours: Reply) -> None:
        """XADD * where a stream of this name once reached the end of all IDs."""
        if not isinstance(bare, bytes) or argv[1] not in self._mapping.exhausted:
            return
        if isinstance(ours, Fault) and "exhausted the last possible ID" in ours.text:
            raise SequenceEnds("minting after DEL")
        if entry_id(bare)[0] == MAX:
            return
        if isinstance(ours, bytes) and argv[id_word_at(argv)] == b"*" and entry_id(ours)[0] == MAX:
            raise SequenceEnds("minting after DEL")

    # XREAD +

    def without_plus(self, argv: Argv) -> Argv:
        """The same for a bare engine that lacks it, or has it wrong."""
        words = [word.upper() for word in argv]
        at = words.index(b"STREAMS") + 1 if b"STREAMS" in words else len(argv)
        half = (len(argv) - at) // 2
        names, positions = argv[at : at + half], argv[at + half :]
        if len(names) != len(positions) or b"+" not in positions:
            return argv
        self.note("XREAD +")
        asked = [
            self._plus(name) if word == b"+" else word for name, word in zip(names, positions, strict=True)
        ]
        return [*argv[:at], *names, *asked]

    def _plus(self, name: bytes) -> bytes:
        newest = self._sides.peek("XREVRANGE", name, "+", "-", "COUNT", 1)
        if not newest or isinstance(newest, Fault):
            return b"$" if not self._sides.reads_plus or self._sides.is_stream(name) else b"+"
        ms, seq = entry_id(newest[0][0])
        if self._sides.reads_plus and (ms, seq) == self._mapping.life(name).top[0]:
            return b"+"
        return b"%d-%d" % ((ms, seq - 1) if seq else (ms - 1, MAX))

    # MAXSIZE

    def may_count(self, argv: Argv, protocol: int) -> bool:
        """Whether both sides count the same bytes."""
        names = names_read(argv)
        if b"MAXSIZE" not in map(upper, argv) or not names:
            return True
        pairs = [pair for name in names for pair in self._mapping.life(name).bare_of.items()]
        alike = all(len(ours) == len(bare) for ours, bare in pairs) and (protocol == 2 or len(names) == 1)
        if not alike:
            self.note("MAXSIZE")
        return alike

    def by_resp3(self, argv: Argv) -> Argv:
        """The same MAXSIZE for a bare engine that answers by RESP3."""
        words = list(argv)
        at = list(map(upper, words)).index(b"MAXSIZE") + 1
        if at < len(words) and words[at].isdigit() and int(words[at]) > 4:
            self.note("MAXSIZE")
            words[at] = b"%d" % (int(words[at]) - 4)
        return words

    # CLAIM

    def check_claims(self, bare: list[Any], ours: list[Any]) -> list[Any]:
        """Rows of CLAIM, [id, fields, idle, deliveries]: check how long each was idle, and take that over."""
        swapped = False
        for row, mine in zip(bare, ours, strict=False):
            if len(row) != 4 or len(mine) != 4:
                return ours
            self.check_times(b"claimed " + mine[0], row[2], mine[2])
            swapped = swapped or row[0] != mine[0]
            mine[2] = row[2]
        if not swapped:
            return ours
        if sorted(row[0] for row in bare) != sorted(row[0] for row in ours):
            raise SequenceEnds("idle equally long")
        self.note("idle equally long")
        places = dict[bytes, list[int]]()
        for place, row in enumerate(bare):
            places.setdefault(row[0], []).append(place)  # claimed, and given as new
        ours = sorted(ours, key=lambda row: places[row[0]].pop(0))
        return [[*mine[:2], row[2], mine[3]] for row, mine in zip(bare, ours, strict=True)]

    # ~ trimming

    def trims_loosely(self, argv: Argv) -> bool:
        """Whether `~` may take other entries here than in the bare engine."""
        at = _cap_at(argv)
        if at is None or argv[at + 1] != b"~" or any(word.upper() in ASKING for word in argv[2:]):
            return False
        if argv[at].upper() == b"MAXLEN":
            return argv[1] in self._mapping.has_chosen
        return not self._mapping.life(argv[1]).same_nodes

    def finish_trim(self, theirs: Argv, argv: Argv, bare: Reply, ours: Reply) -> None:
        """Send the exact trim to both; what both dropped, in both trims together, is equal."""
        at = _cap_at(argv)
        assert at is not None
        self.note("~ trimming")
        more = self._sides.ask_bare([b"XTRIM", theirs[1], theirs[at], b"=", theirs[at + 2]])
        our_more = self._sides.ask_ours([b"XTRIM", argv[1], argv[at], b"=", argv[at + 2]])
        lengths = self._sides.ask_bare([b"XLEN", theirs[1]]), self._sides.ask_ours([b"XLEN", argv[1]])
        if not same(*lengths) or type(more) is not int or type(our_more) is not int:
            raise Mismatch(argv, more, our_more, f"the exact trim after ~ left {lengths} entries")
        if argv[0].upper() == b"XTRIM" and bare + more != ours + our_more:
            raise Mismatch(argv, (bare, more), (ours, our_more), "~ and the exact trim dropped other numbers")

    def trims_further(self, argv: Argv) -> bool:
        """Whether a cap that asks the groups may take more here than in the bare engine."""
        options = argv[2 : id_word_at(argv)] if argv[0].upper() == b"XADD" else argv[2:]
        return _cap_at(argv) is not None and bool(set(map(upper, options)) & set(ASKING))

    def finish_asking(self, theirs: Argv, argv: Argv, bare: Reply, ours: Reply) -> None:
        """The bare engine stops at a node that is not to go as a whole: trim there what ours took further."""
        at = _cap_at(theirs)
        assert at is not None
        [policy] = {upper(word) for word in theirs} & set(ASKING)
        page = self._sides.ask_ours([b"XRANGE", argv[1], b"-", b"+"])
        kept = {entry for entry, _ in self._mapping.entries(argv[1], page)}
        gone = [entry for entry, _ in self._sides.peek("XRANGE", theirs[1], "-", "+") if entry not in kept]
        if not gone:
            return
        self.note("a cap that asks the groups")
        ms, seq = entry_id(gone[-1])
        more = self._sides.ask_bare([b"XTRIM", theirs[1], b"MINID", b"%d-%d" % (ms, seq + 1), policy])
        long = theirs[at].upper() == b"MAXLEN" and len(kept) < int(theirs[at + 1 + (theirs[at + 1] in b"=~")])
        many = argv[0].upper() == b"XTRIM" and ours != bare + more
        if more != len(gone) or long or many:
            raise Mismatch(argv, (bare, more), ours, f"ours took {gone} as well")

    # Refusals

    def check_refusal(self, theirs: Argv, argv: Argv, ours: Fault) -> None:
        """What we refuse the bare engine must accept: tried there on a copy."""
        command = argv[0].upper()
        if ours.refused != command.decode():
            raise Mismatch(argv, None, ours, "a refusal of something else")
        if command == b"XADD" and "in strict ID mode" in ours.text:
            return self.note("strict mode")
        if command == b"COPY" and self._sides.is_stream(argv[1]) and argv[4:5] == [b"1"]:
            return self.note("COPY of a stream to another database")
        if command not in (*EXPIRES, b"XSETID") or not self._sides.is_stream(argv[1]):
            raise Mismatch(argv, None, ours, "a refusal that is no documented deviation")
        self._sides.peek("COPY", argv[1], SCRATCH, "REPLACE")
        tried = self._sides.peek(theirs[0], SCRATCH, *theirs[2:])
        self._sides.peek("DEL", SCRATCH)
        if isinstance(tried, Fault) and not (command == b"XSETID" and self._below_deleted(theirs, tried)):
            raise Mismatch(argv, tried, ours, "refused, where the bare engine finds an error in the words")
        return self.note("XSETID back" if command == b"XSETID" else "EXPIRE family on a stream")

    def check_refusal_in_pipeline(self, argv: Argv, ours: Fault) -> None:
        """The state it met is gone: only that it is one of those we refuse."""
        command = argv[0].upper()
        refusable = (*EXPIRES, b"XSETID", b"COPY", b"XADD")
        if ours.refused != command.decode() or command not in refusable:
            raise Mismatch(argv, None, ours, "a refusal that is no documented deviation")

    def check_refused_multi(self, calls: list[Call], ours: Fault) -> None:
        unfit = {f"{command_of(call).decode()} inside MULTI" for call in calls if unfit_for_multi(call)}
        if ours.refused not in unfit:
            raise Mismatch([b"MULTI"], None, ours, "a refusal that is no documented deviation")
        self.note("several round trips inside MULTI")

    def two_errors(self, bare: Reply, ours: Reply) -> bool:
        """Whether both refuse a MULTI, each for a command that cannot be queued."""
        self.note("two errors inside MULTI")
        causes = ("wrong number of arguments", "unknown subcommand")
        return all(isinstance(each, Fault) and each.text.startswith(causes) for each in (bare, ours))

    def _below_deleted(self, theirs: Argv, bare: Reply) -> bool:
        """Whether Valkey's XSETID says what only it says, and rightly."""
        if not isinstance(bare, Fault) or not bare.text.endswith("smaller than current max_deleted_entry_id"):
            return False
        self.note("XSETID below what was deleted")
        info = self._sides.peek("XINFO", "STREAM", theirs[1])
        if isinstance(info, Fault) or self._sides.in_pipeline:
            return True  # changed since, in the same pipeline
        return parsed(theirs[2]) < entry_id(facts(info)[b"max-deleted-entry-id"])


def facts(reply: Reply) -> dict[bytes, Any]:
    """A map, by whichever protocol it came."""
    return dict(reply) if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _cap_at(argv: Argv) -> int | None:
    """Where the cap of a valid XADD or XTRIM stands."""
    last = id_word_at(argv) if argv[0].upper() == b"XADD" else len(argv)
    return next((at for at, word in enumerate(argv[:last]) if at > 1 and word.upper() in CAPS), None)

"""Replies about groups: our IDs as the bare engine's, times alike but for the time between the sides."""

from typing import Any, Final

from tests.oracle.differential.deviations import Deviations, SequenceEnds, facts
from tests.oracle.differential.mapping import Mapping
from tests.oracle.differential.report import Mismatch, same
from tests.oracle.differential.script import Argv, command_of, upper
from tests.oracle.differential.sides import Fault, Reply, Sides

IDLE: Final = (b"idle", b"inactive", b"seen-time", b"active-time")
LAG, READ = b"lag", b"entries-read"


def pages_of(reply: Reply) -> list[Any]:
    """Streams and their entries, by whichever protocol."""
    return list(reply.items()) if isinstance(reply, dict) else [(name, page) for name, page in reply]


def uses_idempotence(info: dict[bytes, Any]) -> bool:
    """Whether a stream has known messages, or settings of its own for them."""
    settings = info.get(b"idmp-duration", 100), info.get(b"idmp-maxsize", 100)
    return settings != (100, 100) or bool(info.get(b"iids-added"))


class GroupReplies:
    """Compares what group commands answer. `settled`: the bare engine has not changed since it answered."""

    def __init__(self, sides: Sides, mapping: Mapping, deviations: Deviations) -> None:
        self._sides, self._mapping, self._deviations = sides, mapping, deviations
        self.settled = True

    def agree(self, argv: Argv, bare: Reply, ours: Reply) -> bool:
        """Whether two replies, none of them an error, say the same."""
        command, name = command_of(argv), argv[1]
        if type(bare) is not type(ours):
            return False
        if bare is None or isinstance(bare, int | bytes):
            return same(bare, ours)
        if command == b"XREADGROUP":
            mine = self._mapping.reply([b"XREAD"], ours)
            if b"CLAIM" in map(upper, argv):
                mine = self._claimed(bare, mine)
            return same(bare, mine)
        if command == b"XCLAIM":
            return same(bare, self._taken(name, ours))
        if command == b"XAUTOCLAIM":
            mine = [self._id(name, ours[0]), self._taken(name, ours[1]), self._taken(name, ours[2])]
            return same(bare, mine)
        if command == b"XPENDING" and len(argv) == 3:
            return same(bare, [ours[0], self._id(name, ours[1]), self._id(name, ours[2]), *ours[3:]])
        if command == b"XPENDING":
            return self._rows(name, bare, ours, timed=2)
        if command == b"XINFO" and upper(argv[1]) == b"CONSUMERS":
            return self._each(bare, ours, self._same_map)
        if command == b"XINFO" and upper(argv[1]) == b"GROUPS":
            return self.groups(argv[2], bare, ours)
        return same(bare, ours)

    def _claimed(self, bare: Reply, ours: Reply) -> Reply:
        pages = {
            name: self._deviations.check_claims(page, mine)
            for (name, page), (_, mine) in zip(pages_of(bare), pages_of(ours), strict=False)
        }
        names = [name for name, _ in pages_of(ours)]
        if len(names) != len(pages) or len(set(names)) != len(names):
            return ours
        return pages if isinstance(ours, dict) else [[name, page] for name, page in pages.items()]

    # Parts

    def groups(self, name: bytes, bare: list[Any], ours: list[Any]) -> bool:
        """XINFO GROUPS, or the groups of XINFO STREAM FULL."""

        def same_group(theirs: dict[bytes, Any], mine: dict[bytes, Any]) -> bool:
            mine[b"last-delivered-id"] = self._id(name, mine[b"last-delivered-id"])
            if isinstance(mine[b"consumers"], list):
                rows, own_rows = theirs.pop(b"pending"), mine.pop(b"pending")
                consumers, own_consumers = theirs.pop(b"consumers"), mine.pop(b"consumers")
                if not self._rows(name, rows, own_rows, timed=2):
                    return False
                if not self._each(consumers, own_consumers, same_consumer):
                    return False
            return self._counters(name, theirs, mine) and same(theirs, mine)

        def same_consumer(theirs: dict[bytes, Any], mine: dict[bytes, Any]) -> bool:
            rows, own_rows = theirs.pop(b"pending"), mine.pop(b"pending")
            return self._rows(name, rows, own_rows, timed=1) and self._same_map(theirs, mine)

        return self._each(bare, ours, same_group)

    def _counters(self, name: bytes, theirs: dict[bytes, Any], mine: dict[bytes, Any]) -> bool:
        """Check lag and entries-read by their contracts, and take over where they may differ."""
        position, lag = theirs[b"last-delivered-id"], mine[LAG]
        if type(lag) is not int or lag < 0:
            return False
        if self.settled:
            rest = self._sides.peek("XRANGE", name, b"(" + position, "+")
            true = 0 if isinstance(rest, Fault) else len(rest)
            if lag != true and not (name in self._mapping.counted and lag <= self._sides.peek("XLEN", name)):
                return False
        if lag != theirs[LAG]:
            self._deviations.note("lag")
            mine[LAG] = theirs[LAG]
        if mine[READ] != theirs[READ]:
            self._deviations.note("entries-read")
            if mine[READ] is not None and not (type(mine[READ]) is int and mine[READ] >= 0):
                return False
            mine[READ] = theirs[READ]
        return True

    def _each(self, bare: list[Any], ours: list[Any], alike: Any) -> bool:
        """Lists of maps, by whichever protocol."""
        if type(bare) is not type(ours) or len(bare) != len(ours):
            return False
        return all(
            type(one) is type(other) and alike(facts(one), facts(other))
            for one, other in zip(bare, ours, strict=True)
        )

    def _same_map(self, theirs: dict[bytes, Any], mine: dict[bytes, Any]) -> bool:
        """A consumer: equal, but times by the clock."""
        for key in IDLE:
            if key in theirs and key in mine:
                self._deviations.check_times(b"%b of %b" % (key, theirs[b"name"]), theirs[key], mine[key])
                mine[key] = theirs[key]
        return same(theirs, mine)

    def _rows(self, name: bytes, bare: list[Any], ours: list[Any], *, timed: int) -> bool:
        """Rows of pending entries, [id, ..., time, deliveries]."""
        if len(bare) != len(ours):
            return False
        for one, other in zip(bare, ours, strict=True):
            self._deviations.check_times(b"pending " + one[0], one[timed], other[timed])
            mine = [self._id(name, other[0]), *other[1:]]
            mine[timed] = one[timed]
            if not same(one, mine):
                return False
        return True

    def _taken(self, name: bytes, page: list[Any]) -> list[Any]:
        """Entries, or IDs alone."""
        return [
            self._id(name, each) if isinstance(each, bytes) else [self._id(name, each[0]), *each[1:]]
            for each in page
        ]

    def _id(self, name: bytes, entry: bytes | None) -> bytes | None:
        return None if entry is None else self._mapping.life(name).bare_of.get(entry, entry)

    # RENAME and COPY

    def drop(self, argv: Argv, bare: Reply) -> None:
        """Groups do not come along: destroy them in the bare engine too."""
        moved = bare in (b"OK", 1) and argv[1] != argv[2] and argv[4:5] != [b"1"]
        if not moved or not self._sides.is_stream(argv[2]):
            return
        if uses_idempotence(facts(self._sides.peek("XINFO", "STREAM", argv[2]))):
            raise SequenceEnds("idempotence does not move")
        for info in self._sides.peek("XINFO", "GROUPS", argv[2]):
            self._deviations.note("groups do not move")
            if self._sides.ask_bare([b"XGROUP", b"DESTROY", argv[2], facts(info)[b"name"]]) != 1:
                raise Mismatch(argv, info, None, "the test could not destroy a group")

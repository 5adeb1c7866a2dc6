"""Random commands on groups: which group of which stream, which consumer, with which options.

Idle times are made by XCLAIM (a thousand seconds, or since 1970) and asked for with bounds far from all
of them, so that what is idle enough does not depend on how fast a run is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.oracle.differential.script import FLUSHES, MOVES, Call, Word, command_of, upper

if TYPE_CHECKING:
    from tests.oracle.differential.generator import Maker

GROUP_NAMES: Final = (b"g", b"workers", b"g", b"\xff\x00", b"", b"a b\r\n")
CONSUMERS: Final = (b"alice", b"bob", b"alice", b"", b"\xfe", b"1-1")
BOUNDS: Final = (b"0", b"0", b"0", b"0", b"0", b"500000", b"500000", b"100000000", b"-1")
POLICIES: Final = (b"KEEPREF", b"DELREF", b"ACKED", b"acked")
END_OF_MS: Final = (b"-18446744073709551615",)


class GroupWords:
    """Chooses group commands. Remembers which groups are likely to be there, so that most are met."""

    def __init__(self, make: "Maker") -> None:
        self._make = make
        self._names = [make.pick(GROUP_NAMES) for _ in range(2)]
        self._likely = set[tuple[bytes, bytes]]()

    def weights(self) -> dict[Callable[[], Call], int]:
        use: dict[Callable[[], Call], int] = {self.read: 22, self.ack: 5, self.pending: 8, self.claim: 9}
        use |= {self.claim_idle: 6, self.info: 8, self.delete: 4, self.read_within: 7, self.give_back: 5}
        return {self.manage: 9} | {self._or_create(make): weight for make, weight in use.items()}

    def _or_create(self, use: Callable[[], Call]) -> Callable[[], Call]:
        """A command on a group; while there is none, mostly one that makes one."""

        def make() -> Call:
            return use() if self._likely or self._make.chance(15) else self._create()

        return make

    def heard(self, call: Call) -> None:
        """What a command, once said, does to the groups; roughly."""
        command = command_of(call)
        if command in FLUSHES:
            self._likely.clear()
        elif command in (b"DEL", b"UNLINK", *MOVES):
            gone = call[2:3] if command == b"COPY" else call[1:]
            self._likely = {each for each in self._likely if each[0] not in gone}
        elif command == b"XGROUP" and len(call) > 3:
            name, group = call[2:4]
            there = b"MKSTREAM" in map(upper, call) or any(name == its for its, _ in self._likely)
            if isinstance(name, bytes) and isinstance(group, bytes) and name in self._make.streams:
                if upper(call[1]) == b"CREATE" and there:
                    self._likely.add((name, group))
                elif upper(call[1]) == b"DESTROY":
                    self._likely.discard((name, group))

    # Words

    def _pair(self) -> tuple[bytes, bytes]:
        """A stream and a group, of which the stream most likely has it."""
        if self._likely and self._make.chance(95):
            return self._make.pick(sorted(self._likely))
        return self._make.name(), self._make.pick(self._names)

    def _consumer(self) -> bytes:
        return self._make.pick(CONSUMERS)

    def _bound(self) -> bytes:
        return self._make.pick((b"x", b"", b"1.5")) if self._make.chance(2) else self._make.pick(BOUNDS)

    def _start(self, name: bytes) -> Word:
        """Where a group is put."""
        which = self._make.dice.below(10)
        if which < 7:
            return self._make.pick((b"0", b"0", b"$", b"0-0"))
        return self._make.position(name)

    def _ids(self, name: bytes) -> tuple[Word, ...]:
        ids = [self._make.known_id(name) for _ in range(self._make.pick((1, 1, 2, 4)))]
        if self._make.chance(8):
            ids.append(self._make.position(name))
        return tuple(ids)

    def _read_so_far(self) -> Call:
        return (b"ENTRIESREAD", self._make.count(20)) if self._make.chance(12) else ()

    # Commands

    def manage(self) -> Call:
        which = self._make.dice.below(100)
        if which < 45 or not self._likely:
            return self._create()
        name, group = self._pair()
        if which < 62:
            return (b"XGROUP", b"SETID", name, group, self._start(name), *self._read_so_far())
        if which < 68:
            return (b"XGROUP", b"DESTROY", name, group)
        if which < 82:
            return (b"XGROUP", b"CREATECONSUMER", name, group, self._consumer())
        if which < 97:
            return (b"XGROUP", b"DELCONSUMER", name, group, self._consumer())
        odd = self._make.pick((b"HELP", b"NOPE x g", b"CREATE x g", b"SETID x g 0 MKSTREAM", b"DESTROY x"))
        return (b"XGROUP", *(name if word == b"x" else word for word in odd.split()))

    def _create(self) -> Call:
        name, group = self._make.name(), self._make.pick(self._names)
        mkstream = (b"MKSTREAM",) if self._make.chance(80) else ()
        return (b"XGROUP", b"CREATE", name, group, self._start(name), *mkstream, *self._read_so_far())

    def read(self) -> Call:
        name, group = self._pair()
        names = [name]
        if self._make.chance(20):
            names += [other for other, its in sorted(self._likely) if its == group and other != name]
        if self._make.chance(2):
            names.append(self._make.name())
        positions: list[Word] = [b">"] * len(names)
        if self._make.chance(30):
            positions = [self._position(each) for each in names]
        options = list[Word]()
        if self._make.chance(55):
            options += [b"COUNT", self._make.count()]
        if self._make.chance(6):
            options += [b"BLOCK", self._make.pick((b"1", b"2", b"5", b"1", b"x", b"-1"))]
        if self._make.chance(10):
            options += [b"NOACK"]
        if self._make.chance(2):
            positions = positions[1:]
        who: Call = (b"GROUP", group, self._consumer())
        if self._make.chance(2):
            who = self._make.pick(((), (b"GROUP", group), (*who, b"NOPE")))
        return (b"XREADGROUP", *who, *options, b"STREAMS", *names, *positions)

    def _position(self, name: bytes) -> Word:
        return (
            self._make.pick((b">", b"0")) if self._make.chance(60) else self._make.position(name, END_OF_MS)
        )

    def ack(self) -> Call:
        name, group = self._pair()
        return (b"XACK", name, group, *self._ids(name))

    def delete(self) -> Call:
        """XDELEX or XACKDEL, which ask the groups."""
        name, group = self._pair()
        policy = (self._make.pick(POLICIES),) if self._make.chance(75) else ()
        ids = self._ids(name)
        number = b"%d" % len(ids) if self._make.chance(97) else self._make.pick((b"0", b"9", b"x"))
        words: Call = (*policy, b"IDS", number, *ids) if self._make.chance(98) else (*policy, *ids)
        return (b"XDELEX", name, *words) if self._make.chance(40) else (b"XACKDEL", name, group, *words)

    def read_within(self) -> Call:
        """XREADGROUP with limits on the whole reply, or with claims."""
        name, group = self._pair()
        names, options = [name], list[Word]()
        if self._make.chance(30):
            names += [other for other, its in sorted(self._likely) if its == group and other != name]
        if self._make.chance(50):
            options += [b"CLAIM", self._make.pick((b"0", b"0", b"0", b"500000", b"100000000"))]
        if not options or self._make.chance(40):
            options += self._make.limits()
        elif self._make.chance(50):
            options += [b"COUNT", self._make.pick((b"1", b"2", b"3", b"8"))]
        if self._make.chance(5):
            options += [b"BLOCK", b"1"]
        if self._make.chance(8):
            options += [b"NOACK"]
        positions: list[Word] = [b">"] * len(names)
        if self._make.chance(25):
            positions = [self._make.pick((b">", b"0", self._make.known_id(each))) for each in names]
        return (b"XREADGROUP", b"GROUP", group, self._consumer(), *options, b"STREAMS", *names, *positions)

    def give_back(self) -> Call:
        name, group = self._pair()
        mode = self._make.pick((b"SILENT", b"FAIL", b"FAIL", b"FATAL", b"silent"))
        ids, options = self._ids(name), list[Word]()
        number = b"%d" % len(ids) if self._make.chance(97) else self._make.pick((b"0", b"9", b"x"))
        if self._make.chance(15):
            options += [b"RETRYCOUNT", self._make.pick((b"0", b"1", b"7", b"-1", b"x"))]
        if self._make.chance(20):
            options += [b"FORCE"]
        if self._make.chance(2):
            mode = self._make.pick((b"NOPE", b"IDS", b""))
        if self._make.chance(2):
            options += [b"NOPE"]
        return (b"XNACK", name, group, mode, b"IDS", number, *ids, *options)

    def pending(self) -> Call:
        name, group = self._pair()
        if self._make.chance(30):
            return (b"XPENDING", name, group)
        idle = (b"IDLE", self._bound()) if self._make.chance(30) else ()
        ends = (self._make.limit_of(name, b"-"), self._make.limit_of(name, b"+"))
        if self._make.chance(50):
            ends = (b"-", b"+")
        who = (self._consumer(),) if self._make.chance(35) else ()
        return (b"XPENDING", name, group, *idle, *ends, self._make.count(12), *who)

    def claim(self) -> Call:
        name, group = self._pair()
        options = list[Word]()
        if self._make.chance(40):
            options += [b"IDLE", self._make.pick((b"0", b"1000000", b"1000000", b"1000000", b"-1", b"x"))]
        if self._make.chance(10):
            options += [b"TIME", self._make.pick((b"0", b"1000", b"99999999999999", b"-1", b"x"))]
        if self._make.chance(15):
            options += [b"RETRYCOUNT", self._make.count(9)]
        if self._make.chance(30):
            options += [b"FORCE"]
        if self._make.chance(25):
            options += [b"JUSTID"]
        if (
            self._make.chance(12) and self._make.id_mode == "liberal"
        ):  # a strand of generated IDs has no others
            options += [b"LASTID", self._make.known_id(name)]
        if self._make.chance(2):
            options += [b"NOPE"]
        return (b"XCLAIM", name, group, self._consumer(), self._bound(), *self._ids(name), *options)

    def claim_idle(self) -> Call:
        name, group = self._pair()
        start = b"0" if self._make.chance(50) else self._make.limit_of(name, b"-")
        options = list[Word]()
        if self._make.chance(60):
            options += [b"COUNT", self._make.count(5)]
        if self._make.chance(25):
            options += [b"JUSTID"]
        if self._make.chance(2):
            options += [b"NOPE"]
        return (b"XAUTOCLAIM", name, group, self._consumer(), self._bound(), start, *options)

    def info(self) -> Call:
        name, group = self._pair()
        which = self._make.dice.below(100)
        if which < 45:
            return (b"XINFO", b"GROUPS", name)
        if which < 75:
            return (b"XINFO", b"CONSUMERS", name, group)
        full = (b"COUNT", self._make.count(12)) if self._make.chance(50) else ()
        return (b"XINFO", b"STREAM", name, b"FULL", *full)

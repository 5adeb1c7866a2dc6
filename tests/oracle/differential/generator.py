"""Random scripts: which commands, on which streams, with which words."""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

from tests.oracle.differential.group_words import CONSUMERS, GROUP_NAMES, GroupWords
from tests.oracle.differential.message_words import MessageWords
from tests.oracle.differential.script import (
    LAST_ID,
    Call,
    IdMode,
    Mode,
    Ref,
    Script,
    Step,
    Word,
    forget,
    unfit_for_multi,
)

T = TypeVar("T")


class Dice(Protocol):
    def below(self, n: int) -> int:
        """0..n-1."""
        ...


STREAMS: Final = (b"orders", b"", b"}x", b"{t}a", b"a{b}c", b"\xff\x00", b"bs:x", b"[a-c]*", b"sp ace\r\n")
PLAINS: Final = (b"plain", b"{t}hash")
FIELDS: Final = (b"f", b"temperature", b"", b"\xff\x00\r\n", b"1-1", b"*", b"MAXLEN")
VALUES: Final = (b"1", b"", b"hello world", b"\x00\x01\xfe\xff", b"5-5", b"-17", b"x" * 300, "Ünï".encode())
BAD_IDS: Final = (
    *b"abc 1- -1 1-2-3 18446744073709551616-0 1-18446744073709551616 0-0 0 + - $ > (1-1 +5-1 -5-1".split(),
    *b"5-+1 1-*x *-1 ** *-* -* 0-* 1--1 \xff 01-01 1.5-0".split(),
    *(b"", b" 5-1", b"5- 1", b"1-1\0junk"),
)
BAD_INTEGERS: Final = (*b"abc -1 1.5 9223372036854775808 -9223372036854775808 01 +1".split(), b"", b" 1")
NAMES: Final = PLAINS + STREAMS + GROUP_NAMES + CONSUMERS
PATTERNS: Final = (
    *b"* * o* ?* [a-c]* \\[a-c\\]\\* *x {t}* [^o]* plain \xff* [o *{* bs:* [\\ \\ ?? [z-a]* **s".split(),
    b"",
)


def sequence(dice: Dice, length: int) -> Script:
    """A random sequence of about `length` commands."""
    id_mode: IdMode = "strict" if dice.below(4) == 0 else "liberal"
    make = Maker(dice, id_mode)
    steps, commands = list[Step](), 0
    while commands < length:
        steps.append(make.step())
        commands += len(steps[-1].calls)
    return Script(make.pick((2, 3)), make.pick((100, 100, 5)), tuple(steps), id_mode)


class Maker:
    """Chooses commands and words. Each stream gets a manner: generated IDs, chosen IDs, or both.

    In strict mode all IDs are generated, so a stream has one strand and the engine's own commands are used.
    """

    def __init__(self, dice: Dice, id_mode: IdMode) -> None:
        self.dice, self.id_mode = dice, id_mode
        self.lifetimes = 0
        self.streams = [self.pick(STREAMS) for _ in range(3)]
        self.manners = {name: self.pick(("generated", "chosen", "mixed", "mixed")) for name in STREAMS}
        if id_mode == "strict":
            self.manners = dict.fromkeys(STREAMS, "generated")
        weights = {self.xadd: 34, self.xread: 9, self.xrange: 10, self.xinfo: 7, self.xdel: 4, self.xlen: 5}
        weights |= {
            self.xtrim: 4,
            self.xsetid: 3 if id_mode == "liberal" else 0,
            self.keyspace: 6,
            self.rename: 4,
            self.expire: 3,
        }
        weights |= {self.plain: 6, self.list_keys: 2}
        self.messages = MessageWords(self)
        weights |= self.messages.weights()
        self.groups = GroupWords(self)
        weights |= self.groups.weights()
        self.table = [make for make, weight in weights.items() for _ in range(weight)]

    def pick(self, items: Sequence[T]) -> T:
        return items[self.dice.below(len(items))]

    def chance(self, percent: int) -> bool:
        return self.dice.below(100) < percent

    def step(self) -> Step:
        step = self._step()
        for call in step.calls:
            self.groups.heard(call)
        return step

    def _step(self) -> Step:
        who = int(self.chance(20))
        if not self.chance(8):
            return Step((self.call(),), who=who)
        modes: tuple[Mode, ...] = ("pipeline", "multi")
        mode = self.pick(modes)
        if self.dice.below(100) in (61, 62):  # hypothesis throws low numbers more often
            return Step(self.burst(), mode, who)
        calls = tuple(self.call() for _ in range(1 + self.dice.below(8)))
        if mode == "multi" and not self.chance(15):
            calls = tuple(call for call in calls if not unfit_for_multi(call))
        return Step(calls or (self.xlen(),), mode, who)

    def burst(self) -> tuple[Call, ...]:
        """Enough entries at once to fill nodes of the engine and pages of ours."""
        name, size = self.name(), self.pick((30, 30, 30, 30, 120, 120, 120, 600))
        if self.manners.get(name) == "generated" or (self.manners.get(name) == "mixed" and self.chance(50)):
            return ((b"XADD", name, b"*", b"f", b"v"),) * size
        return tuple((b"XADD", name, Ref(name, "next", at=1, more=at), b"f", b"v") for at in range(size))

    def call(self) -> Call:
        words = self.pick(self.table)()
        if self.chance(2):
            words = self.damaged(words)
        if self.chance(10):
            words = tuple(
                word.swapcase() if isinstance(word, bytes) and word.isalpha() and word not in NAMES else word
                for word in words
            )
        return words

    def damaged(self, words: Call) -> Call:
        """A word too few, too many or in the wrong place. No Ref: it could end up as a name or a value."""
        words = forget(words)
        at = 1 + self.dice.below(len(words))
        which = self.dice.below(3)
        if which == 0:
            return (*words[:at], *words[at + 1 :])
        if which == 1:
            return (*words[:at], self.pick((b"", b"x", b"COUNT", b"1", b"~")), *words[at:])
        return (*words[:1], *reversed(words[1:]))

    # Words

    def name(self) -> bytes:
        return self.pick(PLAINS) if self.chance(4) else self.pick(self.streams)

    def known_id(self, name: bytes, head: bytes = b"") -> Word:
        """The ID of some entry that is or was there, mostly."""
        if self.chance(12):
            return head + b"%d-%d" % (self.dice.below(8), self.dice.below(4))
        return Ref(name, at=self.dice.below(12), head=head)

    def position(self, name: bytes, tails: tuple[bytes, ...] = ()) -> Word:
        """An ID to compare with: an entry, a millisecond, any small number, now and then nonsense.

        `tails`: which ends of a millisecond divide the entries alike on both sides. A generated entry is
        its first, `ms-0`, in the bare engine but never here.
        """
        which = self.dice.below(20)
        if which < 3 and tails:
            return Ref(name, "ms", self.dice.below(12), tail=self.pick(tails))
        if which < 11:
            return self.known_id(name)
        if which < 15:
            return b"%d" % self.dice.below(9)
        if which < 17:
            return self.pick((b"0-0", LAST_ID, b"18446744073709551615", b"0-1"))
        return b"0" if self.chance(70) else self.pick(BAD_IDS)

    def limit_of(self, name: bytes, open_end: bytes) -> Word:
        which = self.dice.below(10)
        if which < 4:
            return open_end
        if which < 6:
            return self.known_id(name, head=b"(")
        if which == 6:
            return self.pick(
                (b"-", b"+", b"(", b"(-", b"(0-0", b"(" + LAST_ID, b"(5", b"(18446744073709551615")
            )
        return self.position(name, (b"", b"-0") if open_end == b"-" else (b"", b"-18446744073709551615"))

    def count(self, top: int = 8) -> bytes:
        if self.chance(8):
            return self.pick((*BAD_INTEGERS, b"0", b"-5"))
        return b"%d" % self.dice.below(top)

    def body(self) -> tuple[bytes, ...]:
        words = list[bytes]()
        for _ in range(self.pick((1, 1, 1, 2, 3))):
            words += [self.pick(FIELDS), self.pick(VALUES)]
        return tuple(words[:-1]) if self.chance(1) else tuple(words)

    def cap(self, name: bytes) -> tuple[Word, ...]:
        about = self.pick(((), (b"=",), (b"~",)))
        words: tuple[Word, ...]
        if self.chance(55):
            words = (b"MAXLEN", *about, self.count(40))
        else:
            words = (b"MINID", *about, self.position(name, (b"", b"-0")))
        if self.chance(25 if about == (b"~",) else 3):
            words = (*words, b"LIMIT", self.pick((b"0", b"1", b"5", b"100", b"-1", b"x")))
        if self.chance(2):
            words = (*words, b"MAXLEN", b"3")
        if self.chance(35):
            policy = self.pick(((b"KEEPREF",), (b"DELREF",), (b"ACKED",), (b"ACKED",), (b"acked",)))
            if policy == (b"ACKED",) and self.chance(25):
                policy = (b"ACKED", b"EXCEPT", b"1", self.pick(GROUP_NAMES))
            words = (*words, *policy) if self.chance(70) else (*policy, *words)
        return words

    def limits(self) -> list[Word]:
        """Caps on the whole reply of a read."""
        words = list[Word]()
        if self.chance(30):
            words += [b"COUNT", self.pick((b"1", b"2", b"5"))]
        if self.chance(70):
            words += [b"MAXCOUNT", self.pick((b"1", b"3", b"5", b"8"))]
        if not words or self.chance(50):
            words += [b"MAXSIZE", self.pick((b"1", b"10", b"40", b"200", b"400"))]
        return words

    # Commands

    def new_id(self, name: bytes) -> Word:
        manner, which = self.manners.get(name, "mixed"), self.dice.below(100)
        if self.id_mode == "strict":
            return b"*"
        if which < 4:
            return self.pick(BAD_IDS)
        if which < 8:
            return self.known_id(name)
        if which < 10:
            return Ref(name, "ms", tail=self.pick((b"", b"-*", b"-18446744073709551615")))
        if which == 10 and self.chance(10):
            return self.pick((LAST_ID, b"18446744073709551615-5", b"18446744073709551615-*"))
        if manner == "generated" or (manner == "mixed" and which < 55):
            return b"*"
        if which < 90:
            return Ref(name, "next", at=self.dice.below(3), more=self.dice.below(3))
        return Ref(name, "next", at=1 + self.dice.below(3), more=-1, tail=self.pick((b"", b"-*")))

    def xadd(self) -> Call:
        name = self.name()
        options = tuple[Word, ...]()
        if self.chance(8):
            options += (b"NOMKSTREAM",)
        if self.chance(8):
            options += self.cap(name)
        if self.messages.due():
            entry = b"*" if self.chance(95) else self.new_id(name)
            return (b"XADD", name, *options, *self.messages.message(), entry, *self.body())
        return (b"XADD", name, *options, self.new_id(name), *self.body())

    def xlen(self) -> Call:
        return (b"XLEN", self.name())

    def xrange(self) -> Call:
        name, back = self.name(), self.chance(50)
        ends = (self.limit_of(name, b"-"), self.limit_of(name, b"+"))
        low, high = ends
        if isinstance(low, Ref) and isinstance(high, Ref) and low.at < high.at and low.tail == high.tail:
            ends = (high, low)  # older first
        limit = (b"COUNT", self.count()) if self.chance(50) else ()
        return (b"XREVRANGE" if back else b"XRANGE", name, *(reversed(ends) if back else ends), *limit)

    def xread(self) -> Call:
        names = [self.name() for _ in range(self.pick((1, 1, 1, 2, 3)))]
        if not self.chance(3):
            names = list(dict.fromkeys(names))
        positions = [
            self.pick((b"0", b"$", b"+"))
            if self.chance(35)
            else self.position(name, (b"-18446744073709551615",))
            for name in names
        ]
        options = list[Word]()
        if self.chance(15):
            options += self.limits()
        elif self.chance(50):
            options += [b"COUNT", self.count()]
        if self.chance(4):
            options += [b"BLOCK", self.pick((b"1", b"2", b"5", b"x", b"-1"))]
        if self.chance(2):
            options += self.pick(((b"NOACK",), (b"GROUP", b"g", b"c"), (b"NOPE",)))
        if self.chance(2):
            positions = positions[1:]
        return (b"XREAD", *options, b"STREAMS", *names, *positions)

    def xdel(self) -> Call:
        name = self.name()
        ids = [self.known_id(name) for _ in range(self.pick((1, 1, 2, 4)))]
        if self.chance(10):
            ids.append(self.position(name))
        return (b"XDEL", name, *ids)

    def xtrim(self) -> Call:
        name = self.name()
        return (b"XTRIM", name, *self.cap(name))

    def xsetid(self) -> Call:
        name = self.name()
        words: list[Word] = [b"XSETID", name]
        words.append(
            Ref(name, "next", at=self.dice.below(3), more=self.dice.below(3)) if self.chance(60) else b""
        )
        if words[-1] == b"":
            words[-1] = self.pick(BAD_IDS) if self.chance(20) else self.known_id(name)
        if self.chance(30):
            words += [b"ENTRIESADDED", self.count(60)]
        if self.chance(30):
            words += [b"MAXDELETEDID", self.known_id(name)]
        return tuple(words)

    def xinfo(self) -> Call:
        name = self.name()
        if self.chance(5):
            odd = self.pick(
                (b"HELP", b"NOPE x", b"STREAM", b"", b"STREAM x FUL", b"STREAM x FULL COUNT", b"GROUPS x")
            )
            return (b"XINFO", *(name if word == b"x" else word for word in odd.split()))
        full: Call = ()
        if self.chance(40):
            full = (b"FULL", b"COUNT", self.count(12)) if self.chance(50) else (b"FULL",)
        return (b"XINFO", b"STREAM", name, *full)

    def keyspace(self) -> Call:
        which, name = self.dice.below(100), self.name()
        if which < 15:
            return (self.pick((b"DEL", b"UNLINK")), *(self.name() for _ in range(self.pick((1, 1, 2)))))
        if which < 40:
            return (b"EXISTS", *(self.name() for _ in range(self.pick((1, 1, 3)))))
        if which < 60:
            return (b"TYPE", name)
        if which < 80:
            return (self.pick((b"TTL", b"PTTL", b"EXPIRETIME", b"PEXPIRETIME", b"PERSIST")), name)
        if which < 92:
            return (b"OBJECT", self.pick((b"ENCODING", b"REFCOUNT", b"IDLETIME", b"FREQ", b"NOPE")), name)
        return (b"DUMP", self.pick(PLAINS) if self.chance(70) else name)

    def rename(self) -> Call:
        source, target = self.name(), self.name()
        if self.chance(50):
            return (self.pick((b"RENAME", b"RENAMENX")), source, target)
        tail = self.pick((b"", b"", b"REPLACE", b"DB 0", b"DB 0 REPLACE", b"NOPE", b"DB x", b"DB 1"))
        return (b"COPY", source, target, *tail.split())

    def expire(self) -> Call:
        command = self.pick((b"EXPIRE", b"PEXPIRE", b"EXPIREAT", b"PEXPIREAT"))
        value = b"4000000000" if command.endswith(b"AT") else self.lifetime_s()
        if command.startswith(b"P"):
            value += b"000"
        if self.chance(25):
            value = self.pick((b"-1", b"0", b"abc", b"9223372036854775807", b"1.5"))
        name = self.pick(PLAINS) if self.chance(30) else self.name()
        # Whether a condition lets a past time delete is not known before EXEC (docs/guides/drop-in.md).
        if value in (b"-1", b"0"):
            return (command, name, value)
        conditions = (b"", b"", b"NX", b"XX", b"GT", b"LT", b"XX LT", b"NX XX", b"NOPE")
        return (command, name, value, *self.pick(conditions).split())

    def lifetime_s(self) -> bytes:
        """One that no other command has: GT and LT of two equal ones depend on the millisecond."""
        self.lifetimes += 1
        return b"%d" % (1000 + 100 * (self.lifetimes * 7919 % 9973))

    def plain(self) -> Call:
        name = self.pick(PLAINS) if self.chance(80) else self.name()
        texts = (
            b"SET x v1",
            b"SET x v2",
            b"HSET x f v",
            b"RPUSH x a",
            b"GET x",
            b"STRLEN x",
            b"HGETALL x",
            b"LLEN x",
        )
        return tuple(name if word == b"x" else word for word in self.pick(texts).split())

    def list_keys(self) -> Call:
        which = self.dice.below(10)
        if which < 4:
            return (b"KEYS", self.pick(PATTERNS))
        if which == 9:
            return (
                b"FLUSHDB" if self.chance(80) else b"FLUSHALL",
                *self.pick(((), (b"SYNC",), (b"ASYNC",), (b"NOPE",))),
            )
        words: tuple[Word, ...] = (b"SCAN", b"0" if self.chance(93) else self.pick((b"x", b"-1", b"")))
        if self.chance(50):
            words += (b"MATCH", self.pick(PATTERNS))
        if self.chance(30):
            words += (b"COUNT", self.pick((b"1", b"5", b"100", b"0", b"x")))
        if self.chance(40):
            words += (b"TYPE", self.pick((b"stream", b"string", b"hash", b"list", b"STREAM", b"nope")))
        return words

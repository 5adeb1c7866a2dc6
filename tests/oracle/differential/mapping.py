"""Which ID of ours is which of the bare engine's, stream by stream and life by life.

XADD a *          bare 1700-0     ours 1701-1        paired
XADD a 1705-3     bare 1705-3     ours 1705-3        paired, though equal
DEL a                                                a new life: the bare engine may generate 1700-0 again
"""

import copy
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any, Final

from tests.oracle.differential.script import (
    EXPIRES,
    FLUSHES,
    LAST_ID,
    MAX,
    MESSAGES,
    MOVES,
    Argv,
    Call,
    Ref,
    Word,
    id_word_at,
)
from tests.oracle.differential.sides import Reply

FAR_MS: Final = 1000
BARE, OURS = 0, 1

Entry = tuple[int, int]


def entry_id(text: bytes) -> Entry:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def parsed(text: bytes) -> Entry:
    """An ID in a command as the engine reads it: by strtoull, so signs and blanks may lead."""
    text = text.split(b"\0")[0]
    ms, _, seq = text.partition(b"-") if b"-" in text else (text, b"", b"0")
    return int(ms) & MAX, int(seq) & MAX


@dataclass(slots=True)
class Life:
    """A stream from its creation to its deletion."""

    pairs: list[tuple[bytes, bytes]] = field(default_factory=list)  # (bare, ours), as they were added
    bare_of: dict[bytes, bytes] = field(default_factory=dict)
    top: tuple[Entry, Entry] = ((0, 0), (0, 0))
    kinds: set[str] = field(default_factory=set)  # generated, chosen, copied

    def add(self, bare: bytes, ours: bytes, kind: str) -> None:
        self.pairs.append((bare, ours))
        self.raise_to(bare, ours)
        self.kinds.add(kind)

    def raise_to(self, bare: bytes, ours: bytes) -> None:
        self.top = max(self.top[0], entry_id(bare)), max(self.top[1], entry_id(ours))
        self.bare_of[ours] = bare

    def pair(self, at: int) -> tuple[bytes, bytes]:
        return self.pairs[-1 - at % len(self.pairs)]

    def shares_ms(self, at: int) -> bool:
        """Whether another ID has the same milliseconds as this one, on either side."""
        for side in (BARE, OURS):
            ms = self.pair(at)[side].split(b"-")[0] + b"-"
            if sum(pair[side].startswith(ms) for pair in self.pairs) > 1:
                return True
        return False

    @property
    def same_nodes(self) -> bool:
        """Whether our entries lie in nodes as the bare engine's do."""
        return len(self.kinds) <= 1 and "copied" not in self.kinds


class Mapping:
    """The lives of all streams of a run. strict: our side generates every ID, also for chosen ones."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._lives = dict[bytes, Life]()
        self.has_chosen = set[bytes]()  # names with a `c` strand, in this life or one before
        self.counted = set[bytes]()  # names whose counters a user has set, or that are copies of such
        self._had_deadline = set[bytes]()  # names that have a deadline, or had one
        self.exhausted = set[bytes]()  # names whose generated strand is at the end of all IDs

    def life(self, name: bytes) -> Life:
        return self._lives.get(name, Life())

    # To each side its own words

    def resolve(self, call: Call, side: int, generating: Container[Word] = ()) -> Argv:
        """The words for one side. `generating`: streams that may get generated IDs before this command
        runs."""
        return [word if isinstance(word, bytes) else self._spell(word, side, generating) for word in call]

    def _spell(self, ref: Ref, side: int, generating: Container[Word]) -> bytes:
        life = self.life(ref.name)
        if ref.kind == "next" and ref.name not in generating:
            return _beyond(ref, life, side)
        if ref.kind == "next" or not life.pairs:
            return ref.head + b"%d-%d" % (1 + ref.at % 5, max(ref.more, 0))
        entry = life.pair(ref.at)[side]
        if ref.kind == "ms" and ref.name not in generating and not life.shares_ms(ref.at):
            entry = entry.split(b"-")[0] + ref.tail
        return ref.head + entry

    # Our IDs as the bare engine's

    def entries(self, name: bytes, page: list[Any]) -> list[Any]:
        bare_of = self.life(name).bare_of
        return [[bare_of.get(entry, entry), *rest] for entry, *rest in page]

    def reply(self, argv: Argv, ours: Reply) -> Reply:
        """A reply that holds entries."""
        command = argv[0].upper()
        if command in (b"XRANGE", b"XREVRANGE") and isinstance(ours, list):
            return self.entries(argv[1], ours)
        if command == b"XREAD" and isinstance(ours, dict):
            return {name: self.entries(name, page) for name, page in ours.items()}
        if command == b"XREAD" and isinstance(ours, list):
            return [[name, self.entries(name, page)] for name, page in ours]
        return ours

    def facts(self, name: bytes, ours: dict[bytes, Any]) -> dict[bytes, Any]:
        """The answer of XINFO STREAM."""
        bare_of, found = self.life(name).bare_of, dict(ours)
        for key in (b"last-generated-id", b"max-deleted-entry-id", b"recorded-first-entry-id"):
            found[key] = bare_of.get(found[key], found[key])
        for key in (b"first-entry", b"last-entry"):
            if found.get(key):
                found[key] = self.entries(name, [found[key]])[0]
        if b"entries" in found:
            found[b"entries"] = self.entries(name, found[b"entries"])
        return found

    # What commands did

    def added(self, call: Call, theirs: Argv, argv: Argv, bare: bytes, ours: bytes) -> bool:
        """Both sides appended an entry: pair the IDs. False if an ID is not the chosen one."""
        at, life = id_word_at(argv), self._lives.setdefault(argv[1], Life())
        generated = self._strict or argv[at] == b"*"
        if entry_id(bare) <= life.top[BARE] and any(word.upper() in MESSAGES for word in argv[2:at]):
            return life.bare_of.get(ours) == bare  # a message that is known
        if generated:
            right = entry_id(ours)[1] % 1024 == 1
        elif argv[at].endswith(b"-*"):
            right = entry_id(bare)[0] == int(theirs[at][:-2]) and entry_id(ours)[0] == int(argv[at][:-2])
        else:
            right = entry_id(bare) == parsed(theirs[at]) and entry_id(ours) == parsed(argv[at])
        # Within a millisecond that also has generated IDs, each side counts on from its own.
        counts_on = life.top[BARE] != life.top[OURS] and life.top[BARE][0] == entry_id(bare)[0]
        if isinstance(call[at], bytes) and not generated and not (counts_on and argv[at].endswith(b"-*")):
            right = right and bare == ours
        if not right or entry_id(bare) <= life.top[BARE] or entry_id(ours) <= life.top[OURS]:
            return False
        life.add(bare, ours, "generated" if generated else "chosen")
        if not generated:
            self.has_chosen.add(argv[1])
        self._note_end(argv[1], entry_id(ours))
        return True

    def note(self, theirs: Argv, argv: Argv, bare: Reply) -> None:
        """Any other command that succeeded on both sides."""
        command = argv[0].upper()
        if command == b"XSETID":
            if len(argv) > 3:
                self.counted.add(argv[1])
            ids = [b"%d-%d" % parsed(words[2]) for words in (theirs, argv)]
            self._lives.setdefault(argv[1], Life()).raise_to(*ids)
            self.has_chosen.add(argv[1])
            self._note_end(argv[1], entry_id(ids[OURS]))
        elif command == b"XCLAIM" and any(word.upper() == b"LASTID" for word in argv):
            self.counted.add(argv[1])
        elif command == b"XGROUP" and argv[1].upper() == b"CREATE":
            self._lives.setdefault(argv[2], Life())
            self.has_chosen.add(argv[2])
        elif command in (b"DEL", b"UNLINK"):
            for name in argv[1:]:
                self._lives.pop(name, None)
        elif command in EXPIRES and bare == 1:
            if int(argv[2]) <= 0:
                self._lives.pop(argv[1], None)
            else:
                self._had_deadline.add(argv[1])
        elif command in FLUSHES:
            self._lives.clear()
        elif command in MOVES and bare in (b"OK", 1) and argv[1] != argv[2] and argv[4:5] != [b"1"]:
            self._moved(argv[1], argv[2], keep=command == b"COPY")

    def keeps_ids(self, argv: Argv) -> bool:
        """Whether a command ended a stream that had a deadline, and maybe IDs ahead of the clock: ours keeps
        them."""
        command = argv[0].upper()
        ended = set(argv[1:2] if command in EXPIRES else argv[1:])
        is_end = command in (b"DEL", b"UNLINK", *MOVES) or (command in EXPIRES and argv[2] in (b"0", b"-1"))
        keeping = self._had_deadline & self.has_chosen
        return bool(keeping) if command in FLUSHES else is_end and not ended.isdisjoint(keeping)

    def _moved(self, source: bytes, target: bytes, *, keep: bool) -> None:
        life = self._lives.get(source) if keep else self._lives.pop(source, None)
        self._lives.pop(target, None)
        for names in (self.counted, self._had_deadline):
            if source in names:
                names.add(target)
        if life is not None:
            self._lives[target] = copy.deepcopy(life)
            self._lives[target].kinds.add("copied")
            self.has_chosen.add(target)
            self._note_end(target, life.top[OURS])

    def _note_end(self, name: bytes, top: Entry) -> None:
        if top[0] == MAX:
            self.exhausted.add(name)


def _beyond(ref: Ref, life: Life, side: int) -> bytes:
    """An ID above all of a stream. The sequences of generated IDs differ, so nothing is counted on from
    them."""
    (ms, seq), same = life.top[side], life.top[BARE] == life.top[OURS]
    ms += ref.at if same else FAR_MS * (1 + ref.at)
    if ms > MAX - 10**6:
        return LAST_ID
    if ref.more < 0:
        return b"%d" % ms + ref.tail
    if same and ref.at == 0:
        return b"%d-%d" % (ms, seq + 1 + ref.more) if seq < MAX - 10**4 else b"%d-0" % (ms + 1)
    return b"%d-%d" % (ms, ref.more)

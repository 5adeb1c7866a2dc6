"""What an engine loses. It is killed, and starts again from the rest."""

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model.keys import CONFIG
from braidstream.model.strand import facts
from braidstream.plan.plan import Batch
from tests.long.simulation.seat import Seat

Lost = list[str]  # in words


class Damage:
    """To one engine, by the dice. Each kind returns what is gone, in words."""

    def __init__(self, dice: Random, seat: Seat, names: Sequence[str]) -> None:
        self.dice, self.seat, self.names = dice, seat, names

    def do(self, kind: str) -> Lost:
        work: Callable[[], Lost] = KINDS[kind].__get__(self)
        return [f"{kind}: {what}" for what in work()]

    def head(self) -> Lost:
        return self._part_of_one(self._strands(), lambda count: range(self.dice.randint(1, count)))

    def middle(self) -> Lost:
        return self._part_of_one(self._strands(), self._inside)

    def tail(self) -> Lost:
        return self._part_of_one(self._strands(), lambda count: range(self.dice.randrange(count), count))

    def scattered(self) -> Lost:
        return self._part_of_one(self._strands(), self._scattered)

    def emptied(self) -> Lost:
        return self._part_of_one(self._strands(), range)

    def strand_key(self) -> Lost:
        return self._drop_one(self._strands())

    def journal_key(self) -> Lost:
        return self._drop_one(self._keys(":j:"))

    def journal_part(self) -> Lost:
        return self._part_of_one(self._keys(":j:"), self._scattered)

    def group(self) -> Lost:
        """On one strand."""
        for key in self._shuffled(self._strands()):
            groups = [facts(info)[b"name"] for info in ask(self.seat, "XINFO", "GROUPS", key)]
            if groups:
                chosen = self.dice.choice(groups)
                ask(self.seat, "XGROUP", "DESTROY", key, chosen)
                return [f"{chosen.decode()} on {key.decode()}"]
        return []

    def fields(self) -> Lost:
        return self._some_fields(
            lambda there: self.dice.sample(there, self.dice.randint(1, min(4, len(there))))
        )

    def kind_of_field(self) -> Lost:
        """Every field of one kind: all `g:`, say."""

        def choose(there: list[bytes]) -> list[bytes]:
            prefix = self.dice.choice(sorted({_prefix(field) for field in there}))
            return [field for field in there if _prefix(field) == prefix]

        return self._some_fields(choose)

    def _some_fields(self, choose: Callable[[list[bytes]], list[bytes]]) -> Lost:
        for key in self._shuffled(self._keys("meta:"))[:1]:
            gone = choose(sorted(ask(self.seat, "HKEYS", key)))
            ask(self.seat, "HDEL", key, *gone)
            return [f"{key.decode()} {field.decode()}" for field in gone]
        return []

    def registry(self) -> Lost:
        return self._drop_one(self._keys("meta:"))

    def stream(self) -> Lost:
        """All keys of a stream."""
        name = self.dice.choice(self.names)
        return [what for key in self._keys(f"{{{name}}}") for what in self._drop_one([key])]

    def any_keys(self) -> Lost:
        part = self.dice.choice((0.2, 0.5, 0.8))
        return [what for key in self._keys("") if self.dice.random() < part for what in self._drop_one([key])]

    def everywhere(self) -> Lost:
        """A part of every strand and journal, as if blocks of an AOF were dropped."""
        part, lost = self.dice.choice((0.1, 0.4, 0.8)), Lost()
        for key in [*self._strands(), *self._keys(":j:")]:
            lost += self._without(key, lambda count: [at for at in range(count) if self.dice.random() < part])
        return lost

    def _part_of_one(self, keys: list[bytes], choose: Callable[[int], Sequence[int]]) -> Lost:
        for key in self._shuffled(keys):
            if ask(self.seat, "XLEN", key):
                return self._without(key, choose)
        return []

    def _scattered(self, count: int) -> Sequence[int]:
        return self.dice.sample(range(count), self.dice.randint(1, count))

    def _inside(self, count: int) -> Sequence[int]:
        first = self.dice.randrange(1, count) if count > 1 else 0
        return range(first, self.dice.randint(first + 1, max(first + 1, count - 1)))

    def _without(self, key: bytes, choose: Callable[[int], Sequence[int]]) -> Lost:
        """The stream as it would be if some entries had never been added; its groups are kept, or not."""
        entries = ask(self.seat, "XRANGE", key, "-", "+")
        gone = {entries[at][0] for at in choose(len(entries))}
        keeps_last, keeps_groups = self.dice.random() < 0.3, self.dice.random() < 0.7
        self.seat.send(Batch([("DEL", key), *_again(self.seat, key, gone, keeps_last, keeps_groups)]))
        bodies = " ".join(_shown(fields) for entry, fields in entries if entry in gone)
        last = facts(ask(self.seat, "XINFO", "STREAM", key))[b"last-generated-id"].decode()
        return [f"{key.decode()} {bodies}; last ID {last}{'' if keeps_groups else '; its groups'}"]

    def _drop_one(self, keys: list[bytes]) -> Lost:
        if not keys:
            return []
        key = self.dice.choice(keys)
        ask(self.seat, "DEL", key)
        return [f"the key {key.decode()}"]

    def _strands(self) -> list[bytes]:
        return [*self._keys(":s:"), *self._keys(":c:"), *self._keys(":c.")]

    def _keys(self, part: str) -> list[bytes]:
        found = sorted(ask(self.seat, "KEYS", "bs:*"))
        return [key for key in found if key != CONFIG and part.encode() in key]

    def _shuffled(self, keys: list[bytes]) -> list[bytes]:
        return self.dice.sample(keys, len(keys))


KINDS: Final = {
    work.__name__: work
    for work in (
        Damage.head,
        Damage.middle,
        Damage.tail,
        Damage.scattered,
        Damage.emptied,
        Damage.strand_key,
        Damage.journal_key,
        Damage.journal_part,
        Damage.group,
        Damage.fields,
        Damage.kind_of_field,
        Damage.registry,
        Damage.stream,
        Damage.any_keys,
        Damage.everywhere,
    )
}


def restart(seat: Seat) -> None:
    """SIGKILL, and a new process with what is left. Not from a file: Redis 8.10.2 cannot load some of its own
    streams (docs/guides/servers.md), so these are written again."""
    kept = sorted(ask(seat, "KEYS", "*"))
    values = [(key, max(0, ask(seat, "PTTL", key)), ask(seat, "DUMP", key)) for key in kept]
    streams = {key: _again(seat, key) for key in kept if ask(seat, "TYPE", key) == b"stream"}
    seat.close()
    seat.engine.kill()
    seat.engine.start()
    seat.connect()
    seat.load()
    replies = seat.send(Batch([("RESTORE", *value, "REPLACE") for value in values], attempt=True))
    for key, reply in zip(kept, replies, strict=True):
        if isinstance(reply, ReplyError):
            seat.send(Batch([("DEL", key), *streams[key]]))
    seat.begin()


def ask(seat: Seat, *words: Any) -> Any:
    [reply] = seat.send(Batch([words]))
    return reply


def _again(
    seat: Seat, key: bytes, gone: Collection[bytes] = (), keeps_last: bool = True, keeps_groups: bool = True
) -> list[tuple[Any, ...]]:
    """The commands that make a stream again, without some of its entries."""
    full = facts(ask(seat, "XINFO", "STREAM", key, "FULL", "COUNT", 0))
    entries = ask(seat, "XRANGE", key, "-", "+")
    kept = [entry for entry in entries if entry[0] not in gone]
    last, deleted = full[b"last-generated-id"], full[b"max-deleted-entry-id"]
    if entries and entries[-1][0] in gone and not keeps_last:
        last = kept[-1][0] if kept else b"0-1"
    commands: list[tuple[Any, ...]] = [("XADD", key, entry, *fields) for entry, fields in kept]
    if not kept:
        commands += [("XGROUP", "CREATE", key, "bs", "0", "MKSTREAM"), ("XGROUP", "DESTROY", key, "bs")]
    added = max(len(kept), full[b"entries-added"] - len(gone))
    if last != b"0-0":
        deleted = min(deleted, last, key=_id)
        commands.append(("XSETID", key, last, "ENTRIESADDED", added, "MAXDELETEDID", deleted))
    for group in map(facts, full[b"groups"] if keeps_groups else ()):
        commands.append(("XGROUP", "CREATE", key, group[b"name"], group[b"last-delivered-id"]))
        for entry, consumer, _, count in group[b"pending"]:
            claim = ("XCLAIM", key, group[b"name"], consumer, 0, entry, "RETRYCOUNT", count)
            commands.append((*claim, "FORCE", "JUSTID"))
    return commands


def _id(text: bytes) -> tuple[int, int]:
    ms, seq = text.split(b"-")
    return int(ms), int(seq)


def _prefix(field: bytes) -> bytes:
    return field.partition(b":")[0] if b":" in field else field.rstrip(b"0123456789")


def _shown(fields: list[bytes]) -> str:
    return (
        fields[1].decode("utf-8", "replace")
        if len(fields) == 2
        else b"/".join(fields).decode("utf-8", "replace")
    )

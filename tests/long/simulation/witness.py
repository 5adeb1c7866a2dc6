"""Does what users say, in their words, and notes what they saw before and after it."""

from typing import Any, Final

from braidstream.errors import ReplyError
from braidstream.model.ids import Id, native
from tests.long.simulation.seat import Seat
from tests.oracle.history import (
    Acked,
    Added,
    Destroyed,
    Did,
    Entry,
    Generated,
    History,
    Made,
    Moved,
    Removed,
    Saw,
    Sent,
    generated_entry,
)

NAMES: Final = ("a", "b", "c")


class Witness:
    """In all regions at once.

    seen: what was last seen of each stream in each region.
    held: what was read for each group there and is not acknowledged.
    accepted: the entries of messages.
    bounded: clocks do not step, and are within the bound of each other.
    names: all streams.
    """

    def __init__(self, seats: dict[int, Seat], history: History) -> None:
        self.seats, self.history = seats, history
        self.seen: dict[tuple[int, str], dict[Entry, bytes]] = {}
        self.held: dict[tuple[int, str, str], set[Id]] = {}
        self.accepted: set[tuple[str, Entry]] = set()
        self.bounded = False
        self.names: tuple[str, ...] = NAMES

    def forget(self, region: int) -> None:
        """The region lost what happened there last. What the history still has is all that was."""
        for name in self.names:
            _, self.seen[region, name] = self.seats[region].look(name)
        for where in [where for where in self.held if where[0] == region]:
            del self.held[where]
        self.accepted = {(event.name, event.entry) for event in self.history.of(Sent)}

    def look(self, region: int, name: str) -> bool:
        """Note what a reader sees; whether the stream exists."""
        exists, self.seen[region, name] = self.seats[region].look(name)
        self.history.add(Saw(region, name, frozenset(self.seen[region, name])))
        return exists

    def do(self, region: int, *words: Any) -> Any:
        """A user's command. A refusal is an answer too."""
        verb, name = words[0], words[1] if len(words) > 1 else ""
        if verb == "XGROUP":
            return self._group(region, words)
        if verb == "XREADGROUP":
            return self._read_group(region, words)
        if verb == "XACK":
            return self._acknowledge(region, words)
        if verb in ("XSETID", "XCFGSET", "PEXPIREAT", "PERSIST"):
            return self._say(region, words)
        if verb == "XADD" and len(words) == 5 and words[2] == "*":
            return self._mint(region, words)
        if verb == "XADD" and len(words) == 5 and str(words[2]).isdigit():
            return self._append(region, words)
        touched = self.names if verb == "FLUSHDB" else words[1:3] if verb in ("RENAME", "COPY") else (name,)
        reply, existed = self._change(region, touched, words)
        if not isinstance(reply, ReplyError):
            self._note_deletions(region, words, reply, existed)
        return reply

    def _say(self, region: int, words: tuple[Any, ...]) -> Any:
        shown = " ".join(str(word) for word in words)
        try:
            reply = self.seats[region].do(*words)
        except ReplyError as error:
            self.history.add(Did(region, shown, error.text[:40]))
            return error
        self.history.add(Did(region, shown, _brief(reply)))
        return reply

    def _append(self, region: int, words: tuple[Any, ...]) -> Any:
        """XADD with milliseconds alone. If the engine generates the ID, the reply has it."""
        if self.seats[region].region.id_mode == "liberal":
            return self._change(region, (words[1],), words)[0]
        reply = self._say(region, words)
        if isinstance(reply, bytes):
            self._added(region, words[1], generated_entry(native(reply)))
        return reply

    def _mint(self, region: int, words: tuple[Any, ...]) -> Any:
        """XADD with `*`, by a user who has read the stream."""
        self.look(region, words[1])
        seen = frozenset(self.seen[region, words[1]])
        reply = self._say(region, words)
        if isinstance(reply, bytes):
            entry = generated_entry(native(reply))
            self._added(region, words[1], entry)
            if self.bounded:
                self.history.add(Generated(region, words[1], entry, seen))
        return reply

    def _added(self, region: int, name: str, entry: Entry) -> None:
        self.history.add(Added(region, name, frozenset([entry])))
        self.seen.setdefault((region, name), {})[entry] = b""

    def send(self, region: int, name: str, messages: list[str], *trim: Any) -> None:
        """A producer's messages. An ID that was never heard before is a new entry."""
        if trim:
            [message] = messages
            producer, _, rest = message.partition(" * ")
            words = ("XADD", name, *producer.split(), *trim, "*", *rest.split())
            replies = [self._change(region, (name,), words)[0]]
        else:
            replies = self._send_all(region, name, messages)
        era = self.seats[region].era(name)
        for message, reply in zip(messages, replies, strict=True):
            if isinstance(reply, bytes):
                entry = generated_entry(native(reply))
                if (name, entry) not in self.accepted and not trim:
                    self._added(region, name, entry)
                self.accepted.add((name, entry))
                self.history.add(Sent(region, name, message, era, entry))

    def _send_all(self, region: int, name: str, messages: list[str]) -> list[Any]:
        shown = f"XADD {name} " + ", ".join(messages)
        try:
            replies = self.seats[region].send_messages(name, messages)
        except ReplyError as error:
            self.history.add(Did(region, shown, error.text[:40]))
            return [error] * len(messages)
        self.history.add(Did(region, shown, b", ".join(replies).decode()))
        return list(replies)

    def carry_out(self, region: int, name: str) -> None:
        """What a daemon does at the deadline of a stream."""
        existed, before = self.look(region, name), self.seen[region, name].keys()
        done = self.seats[region].carry_out(name)
        if not done:
            return
        self.history.add(Did(region, f"(the deadline of {name} is carried out)", str(done)))
        exists, after = self.seats[region].look(name)
        self.seen[region, name] = after
        if gone := frozenset(before - after.keys()):
            self.history.add(Removed(region, name, gone))
        self.history.add(Saw(region, name, frozenset(after)))
        if existed and not exists:
            self._destroyed(region, name, deadline=self.seats[region].deadline(name))

    def _change(
        self, region: int, names: tuple[str, ...], words: tuple[Any, ...]
    ) -> tuple[Any, dict[str, bool]]:
        """A command that may add and remove: the reply, and which streams existed before."""
        existed = {name: self.look(region, name) for name in names}
        before = {name: self.seen[region, name].keys() for name in names}
        reply = self._say(region, words)
        for name in names:
            _, after = self.seats[region].look(name)
            self.seen[region, name] = after
            if new := frozenset(after.keys() - before[name]):
                self.history.add(Added(region, name, new))
            if gone := frozenset(before[name] - after.keys()):
                self.history.add(Removed(region, name, gone))
            self.history.add(Saw(region, name, frozenset(after)))
        return reply, existed

    def _note_deletions(
        self, region: int, words: tuple[Any, ...], reply: Any, existed: dict[str, bool]
    ) -> None:
        """Whole streams that are gone, or were before something else took their name."""
        verb = words[0]
        if verb == "COPY":
            existed = {words[2]: bool(reply) and existed[words[2]]}
        if verb in ("DEL", "RENAME", "COPY", "FLUSHDB"):
            for name in existed:
                if existed[name]:
                    self._destroyed(region, name)
        if verb == "XACKDEL":
            tried = list(words[words.index("IDS") + 2 :])
            acked = [word for word, answer in zip(tried, reply, strict=True) if answer != -1]
            self._acked(region, (words[1], words[2]), tried, acked)

    def _destroyed(self, region: int, name: str, group: str | None = None, deadline: str = "") -> None:
        self.history.add(Destroyed(region, name, group, deadline))
        for where in list(self.held):
            if where[:2] == (region, name) and group in (None, where[2]):
                del self.held[where]

    def _group(self, region: int, words: tuple[Any, ...]) -> Any:
        _, verb, name, group, *rest = words
        self.look(region, name)
        reply = self._say(region, words)
        if verb == "DESTROY" and reply == 1:
            self._destroyed(region, name, group)
        if verb in ("CREATE", "SETID") and reply == b"OK":
            start = rest[0]
            passed = frozenset(self.seen[region, name]) if start == "$" else frozenset[Entry]()
            upto = native(start.encode()) if "-" in start else (0, 0)
            kind = Made if verb == "CREATE" else Moved
            self.history.add(kind(region, name, group, upto, passed))
        return reply

    def _read_group(self, region: int, words: tuple[Any, ...]) -> Any:
        reply = self._say(region, words)
        if isinstance(reply, list):
            ids = {native(entry) for _, page in reply for entry, _ in page}
            self.held.setdefault((region, words[-2], words[2]), set()).update(ids)
        return reply

    def _acknowledge(self, region: int, words: tuple[Any, ...]) -> int:
        """One by one, so that each says whether it was pending."""
        verb, name, group, *listed = words
        acked = [word for word in listed if self._say(region, (verb, name, group, word)) in (1, 2, 3)]
        self._acked(region, (name, group), listed, acked)
        return len(acked)

    def _acked(self, region: int, where: tuple[str, str], tried: list[str], acked: list[str]) -> None:
        name, group = where
        self.held.setdefault((region, name, group), set()).difference_update(_ids(tried))
        if acked:
            self.history.add(Acked(region, name, group, frozenset(_ids(acked))))


def _ids(words: list[str]) -> set[Id]:
    return {native(word.encode()) for word in words}


def _brief(reply: Any) -> str:
    if isinstance(reply, list) and reply and isinstance(reply[0], list):
        return "[" + ", ".join(entry.decode() for _, page in reply for entry, _ in page) + "]"
    return reply.decode() if isinstance(reply, bytes) else str(reply)

"""An idempotent client: it gives every XADD with `*` a message ID, so that it can resend the XADD if the
reply is lost.

A stream remembers the last messages of each producer, 100 by default (XCFGSET). Many threads and tasks may
append at once, and a resend must still find its message. So each request uses a *lane*: a producer ID that no
other request uses at that time.

    web-1/0   <- request of one thread       a lane is freed after the reply, so there are as many
    web-1/1   <- pipeline of another         lanes as there were concurrent requests
"""

import os
import secrets
from itertools import count
from typing import Any
from weakref import WeakSet

from braidstream.commands.arguments import parse_add
from braidstream.errors import ReplyError


class Producer:
    """Numbers the messages of one client. Two clients that run at once must not share a name."""

    def __init__(self, name: str | bytes | None) -> None:
        chosen = name.encode() if isinstance(name, str) else name
        if chosen is not None and not chosen:
            raise ValueError("a producer's name cannot be empty. Leave it out to get a random one.")
        self._chosen = chosen
        self._start(chosen or secrets.token_hex(8).encode())
        _PRODUCERS.add(self)

    def _start(self, name: bytes) -> None:
        self.name = name
        # Messages of an earlier run with this name are never taken for ours.
        self._run, self._numbers = secrets.token_bytes(6), count()
        self._free, self._lanes = list[bytes](), count()

    def after_fork(self) -> None:
        """In a forked process: become another producer, because the parent continues as this one."""
        another = secrets.token_hex(8).encode()
        self._start(b"%b-%b" % (self._chosen, another) if self._chosen else another)

    def take_lane(self) -> bytes:
        """The start of a producer ID, for exclusive use until `give_back`.

        Thread-safe: list.pop and count are atomic.
        """
        try:
            return self._free.pop()
        except IndexError:
            return b"%b/%d" % (self.name, next(self._lanes))

    def give_back(self, lane: bytes) -> None:
        self._free.append(lane)

    def marked(self, client: Any, args: tuple[Any, ...], lane: bytes) -> tuple[Any, ...]:
        """The command as a message; unchanged if the user chose an entry ID or a message ID."""
        if args[0] != "XADD" or len(args) < 5:
            return args
        if args[2] != "*":
            encode = client.get_encoder().encode
            try:
                spec = parse_add([bytes(encode(word)) for word in args])
            except ReplyError:
                return args
            if spec.id is not None or spec.message is not None:
                return args
        iid = self._run + next(self._numbers).to_bytes(6, "big")
        return (*args[:2], b"IDMP", lane, iid, *args[2:])


_PRODUCERS = WeakSet[Producer]()


def _after_fork() -> None:
    for producer in _PRODUCERS:
        producer.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)

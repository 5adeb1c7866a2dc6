"""An idempotent client: every XADD with `*` is a message of its own, known to the stream, so that it may be
sent again when its reply is lost.

A stream knows the last messages of each producer, 100 unless XCFGSET says otherwise. So that a message is
still known when it is sent again, however many threads and tasks append at once, each request takes a
*lane*: a producer ID that no other request uses at that time.

    web-1/0   <- request of one thread       lanes are given back with the reply, so there are
    web-1/1   <- pipeline of another         as many as there were requests at once
"""

import os
import secrets
from itertools import count
from typing import Any
from weakref import WeakSet

from braidstream.commands.arguments import parse_add
from braidstream.errors import ReplyError


class Producer:
    """Names the messages of one client. Two clients that run at once must not share a name."""

    def __init__(self, name: str | bytes | None) -> None:
        given = name.encode() if isinstance(name, str) else name
        if given is not None and not given:
            raise ValueError("a producer's name cannot be empty. Leave it out to get one by chance.")
        self._given = given
        self._start(given or secrets.token_hex(8).encode())
        _PRODUCERS.add(self)

    def _start(self, name: bytes) -> None:
        self.name = name
        # What another run under this name has sent is never taken for ours.
        self._run, self._numbers = secrets.token_bytes(6), count()
        self._free, self._lanes = list[bytes](), count()

    def after_fork(self) -> None:
        """In a forked process: become another producer, because the parent goes on as this one."""
        another = secrets.token_hex(8).encode()
        self._start(b"%b-%b" % (self._given, another) if self._given else another)

    def take_lane(self) -> bytes:
        """A producer ID that nobody else uses until it is given back. list.pop and count are atomic."""
        try:
            return self._free.pop()
        except IndexError:
            return b"%b/%d" % (self.name, next(self._lanes))

    def give_back(self, lane: bytes) -> None:
        self._free.append(lane)

    def marked(self, client: Any, args: tuple[Any, ...], lane: bytes) -> tuple[Any, ...]:
        """The same command as a message; as it is if it chooses its ID, or says which message it is."""
        if args[0] != "XADD" or len(args) < 5:
            return args
        if args[2] != "*":
            encode = client.connection_pool.get_encoder().encode
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

"""The socket of a connection, used as bytes: a reply of thousands of entries becomes columns without becoming
Python objects first. For bulk work (bulk.py)."""

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

import redis

from braidstream.model.command import Command
from braidstream.net.compat import socket_of
from braidstream.net.sender import connect

CHUNK: Final = 1 << 20


class Wire:
    """A connection of redis-py, which opens and authenticates it."""

    is_cluster: ClassVar[bool] = False

    def __init__(self, conn: Any) -> None:
        self.conn = conn
        self._buffer = bytearray(CHUNK)

    def send(self, *commands: Command) -> bytes:
        """Send commands. Returns the mark that ends their replies, for `receive`."""
        return self.send_on(self.conn, commands)

    def receive(self, mark: bytes) -> bytearray:
        """All bytes before the mark. The mark is random, so no entry contains it."""
        return self.receive_on(self.conn, mark)

    def ask(self, commands: Sequence[Command]) -> list[bytearray]:
        """Run commands in one round trip. Returns the reply to each, as bytes."""
        ends = self.send_marked(self.conn, commands)
        return self.receive_marked(self.conn, ends)

    def call(self, *commands: Command) -> list[Any]:
        """Run commands in one round trip. Errors are returned as values."""
        connect(self.conn, may=False)  # it may WATCH keys
        self.conn.send_packed_command(self.conn.pack_commands(commands))
        replies = list[Any]()
        for _ in commands:
            try:
                replies.append(self.conn.read_response(disable_decoding=True))
            except redis.ResponseError as error:
                replies.append(error)
        return replies

    def exchange(self, before: Iterable[Command], packed: bytes, after: Iterable[Command]) -> bytearray:
        """Send commands, then packed commands, then more commands. Returns all replies as bytes."""
        pack = self.conn.pack_commands
        mark = self._send_packed(self.conn, (*pack([*before]), packed, *pack([*after])))
        return self.receive_on(self.conn, mark)

    def send_on(self, conn: Any, commands: Sequence[Command]) -> bytes:
        return self._send_packed(conn, conn.pack_commands(commands))

    def _send_packed(self, conn: Any, parts: Iterable[bytes]) -> bytes:
        mark = secrets.token_hex(16).encode()
        socket_of(conn).sendall(b"".join((*parts, *conn.pack_command("ECHO", mark))))
        return b"$32\r\n%s\r\n" % mark

    def send_marked(self, conn: Any, commands: Sequence[Command]) -> list[bytes]:
        """Send commands. Returns the mark that ends the reply to each."""
        nonce, packed = secrets.token_hex(12).encode(), list[bytes]()
        marks = [b"%b%08d" % (nonce, at) for at in range(len(commands))]
        for command, mark in zip(commands, marks, strict=True):
            packed += conn.pack_command(*command)
            packed += conn.pack_command("ECHO", mark)
        socket_of(conn).sendall(b"".join(packed))
        return [b"$32\r\n%b\r\n" % mark for mark in marks]

    def receive_marked(self, conn: Any, ends: Sequence[bytes]) -> list[bytearray]:
        """The reply before each mark."""
        whole, at = self.receive_on(conn, ends[-1]), 0
        replies = list[bytearray]()
        for end in ends[:-1]:
            stop = whole.index(end, at)
            replies.append(whole[at:stop])
            at = stop + len(end)
        return [*replies, whole[at:] if at else whole]

    def receive_on(self, conn: Any, mark: bytes) -> bytearray:
        buffer, filled = self._buffer, 0
        recv_into = socket_of(conn).recv_into
        while True:
            if filled == len(buffer):
                buffer.extend(bytes(len(buffer)))
            got = recv_into(memoryview(buffer)[filled:])
            if not got:
                raise redis.ConnectionError("the server closed the connection while it was read")
            filled += got
            if filled >= len(mark) and buffer.endswith(mark, 0, filled):
                break
        self._buffer = bytearray(CHUNK)
        del buffer[filled - len(mark) :]
        return buffer

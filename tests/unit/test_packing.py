"""Commands are packed without redis-py, byte for byte as it would."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from braidstream.engine.redis_py import packed

Connect = Callable[..., Any]
COMMANDS = [
    ("XADD", "name", "*", "ä", b"\xff\r\n", 7, -1.5, 10**30),
    ("XADD", "name", "*", "f", bytearray(b"x"), memoryview(b"y")),
    ("CLIENT SETNAME", "one word is two"),
    ("  GET ", "k"),
    (b"GET", "k"),
    ("JSON.GET", "k"),
    ("GET", ""),
]


@pytest.mark.parametrize("connect", [redis.Connection, redis.asyncio.Connection], ids=["sync", "asyncio"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_commands_are_packed_as_redis_py_packs_them(connect: Connect, encoding: str) -> None:
    conn = connect(encoding=encoding)
    for command in COMMANDS:
        assert b"".join(packed(conn, [command])) == b"".join(conn.pack_command(*command))
    assert b"".join(packed(conn, COMMANDS)) == b"".join(conn.pack_commands(COMMANDS))


@pytest.mark.parametrize("connect", [redis.Connection, redis.asyncio.Connection], ids=["sync", "asyncio"])
@pytest.mark.parametrize("word", [True, None, object(), "\ud800"], ids=["bool", "none", "object", "half"])
def test_words_that_redis_py_refuses_are_refused_alike(connect: Connect, word: Any) -> None:
    conn = connect()
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        conn.pack_command("SET", "k", word)
    with pytest.raises(theirs.type) as ours:
        packed(conn, [("SET", "k", word)])
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("connect", [redis.Connection, redis.asyncio.Connection], ids=["sync", "asyncio"])
def test_characters_that_are_to_be_replaced_are(connect: Connect) -> None:
    conn = connect(encoding_errors="replace")
    try:
        theirs = b"".join(conn.pack_command("SET", "k", "\ud800"))
    except UnicodeEncodeError:  # with hiredis redis-py replaces nothing
        with pytest.raises(UnicodeEncodeError):
            packed(conn, [("SET", "k", "\ud800")])
    else:
        assert b"".join(packed(conn, [("SET", "k", "\ud800")])) == theirs


class Shouting:
    """A packer of the user's own."""

    def pack(self, *words: Any) -> list[bytes]:
        return [b" ".join(str(word).upper().encode() for word in words) + b"\r\n"]


def test_a_packer_that_the_user_chose_is_used() -> None:
    conn = redis.Connection(command_packer=Shouting())
    assert packed(conn, [("GET", "k"), ("GET", "l")]) == [b"GET K\r\nGET L\r\n"]

"""A real redis-cli at a gateway: commands are typed, what it prints is read back.

With BRAID_SHOW=1 everything typed and printed is shown to whoever watches (`make demo`).
"""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from itertools import count
from typing import Any

import redis

import braidstream
from braidstream.engine.resp import split_words
from tests.support.gateways import Served
from tests.support.servers import Engine
from tests.support.world import World

SHOWN = bool(os.environ.get("BRAID_SHOW"))
_ITEM = re.compile(r" *\d+\) ")
_FENCES = count(1)


class Typist:
    """Looks like a client that decodes replies, as far as the scenarios need one; `client` does the rest."""

    def __init__(self, where: Engine | int, client: "braidstream.Redis", name: str = "") -> None:
        """where: an engine, which gets a gateway; or the port of a gateway."""
        self.client, self.name = client, name
        self.response_callbacks: dict[str, Any] = {}
        self._gateway = None if isinstance(where, int) else Served(where.url).__enter__()
        port = self._gateway.port if self._gateway else where
        words = ["redis-cli", "--no-raw", "-p", str(port)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def execute_command(self, *words: Any) -> Any:
        line = shlex.join(str(word) for word in " ".join(map(str, words[:1])).split())
        line = " ".join([line, *(_quoted(str(word)) for word in words[1:])])
        printed = self.type(line)
        if SHOWN:
            show(f"{self.name}> {line}\n{printed}")
        return read(printed)

    def type(self, line: str) -> str:
        """A line; what is printed for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        fence = f"fence-{next(_FENCES)}"
        self._process.stdin.write(f"{line}\nECHO {fence}\n")
        self._process.stdin.flush()
        printed = list[str]()
        for row in self._process.stdout:
            if row == f'"{fence}"\n':
                # It adds how long a slow command took.
                return re.sub(r"\n\(\d+\.\d\ds\)\Z", "", "\n".join(printed))
            printed.append(row.rstrip("\n"))
        raise AssertionError(f"redis-cli ended after {line!r}: {printed}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()
        if self._gateway:
            self._gateway.stop()
        self.client.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


_NAMED = re.compile(r"<(\w+)>")


def play(typist: Typist, session: str) -> None:
    """Type a session, and compare what is printed. See tests/gateway/test_typed_examples.py."""
    known = dict[str, str]()
    for part in textwrap.dedent(session).strip().split("\n> "):
        line, _, wanted = part.removeprefix("> ").partition("\n")
        line = _NAMED.sub(lambda found: known[found[1]], line)
        printed = typist.type(line)
        if SHOWN:
            show(f"{typist.name}> {line}\n{printed}")
        _agree(line, wanted.rstrip(), printed, known)


def _agree(line: str, wanted: str, printed: str, known: dict[str, str]) -> None:
    names = list[str]()
    form = ""
    for at, piece in enumerate(_NAMED.split(wanted)):
        if at % 2 == 0:
            form += re.escape(piece)
        elif piece in known:
            form += re.escape(known[piece])
        elif piece in names:
            form += f"(?P={piece})"
        else:
            names.append(piece)
            form += rf"(?P<{piece}>\d+-\d+)"
    found = re.fullmatch(form, printed)
    assert found, f"{line}\nprints\n{printed}\nand not\n{wanted}\nwhere {known}"
    known.update(found.groupdict())


class TypedWorld(World):
    """Regions that are spoken to by redis-cli, each at its own gateway."""

    def __init__(self, engines: Any, id_mode: str = "strict") -> None:
        super().__init__(engines, id_mode)
        for number, client in list(self.clients.items()):
            typist = Typist(self.engines[number - 1], client, f"region {number}")
            self.clients[number] = typist  # type: ignore[assignment]

    def sync(self, among: Any = None, rounds: int = 20) -> None:
        if SHOWN:
            show(f"-- sync {', '.join(map(str, among or self))} --\n")
        super().sync(among, rounds)


def show(text: str) -> None:
    print(text, file=sys.__stdout__, flush=True)


def _quoted(word: str) -> str:
    return (
        word
        if re.fullmatch(r"[^\s\"'\\]+", word)
        else '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'
    )


def read(printed: str) -> Any:
    """The reply that redis-cli printed; an error is raised as redis-py would."""
    if printed.startswith("(error) "):
        raise redis.ResponseError(printed.removeprefix("(error) "))
    rows = printed.split("\n")
    value, left = _value(rows, 0, 0)
    assert left == len(rows), f"cannot read what redis-cli printed:\n{printed}"
    return value


def _value(rows: list[str], at: int, column: int) -> tuple[Any, int]:
    """The value that starts at a row and column, and the row after it."""
    text = rows[at][column:]
    if not _ITEM.match(text):
        return _leaf(text), at + 1
    values = list[Any]()
    while at < len(rows) and not rows[at][:column].strip(" )0123456789") and _ITEM.match(rows[at][column:]):
        if values and rows[at][:column].strip():
            break
        found = _ITEM.match(rows[at][column:])
        assert found is not None
        value, at = _value(rows, at, column + found.end())
        values.append(value)
    return values, at


def _leaf(text: str) -> Any:
    if text in ("(nil)", "(empty array)"):
        return None if text == "(nil)" else []
    if text.startswith("(integer) "):
        return int(text.removeprefix("(integer) "))
    if text.startswith('"'):
        [word] = split_words(text.encode()) or [b""]
        return word.decode()
    return text

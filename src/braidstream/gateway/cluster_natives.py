"""Native commands before a cluster: each goes to the node of its keys, and replies come back byte for byte.

    SET a 1, MGET a b, GET c        slot of a: SET a 1, MGET a        node 1
                                    slot of b: MGET b                 node 2
                                    slot of c: GET c                  node 1

Commands of one slot keep their order. While a slot moves, a command with several keys may be refused when the
next one is not. So the commands after one that writes several keys wait for its reply.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from braidstream.errors import BraidError
from braidstream.gateway.client_state import Client
from braidstream.model.command import Command
from braidstream.net.resp import Words, elements, error_line
from braidstream.net.routes import slot_of

# Their answers for several slots can be joined.
_JOINED: Final = frozenset((b"MGET", b"MSET"))

Join = Callable[[list[bytes]], bytes]


@dataclass(frozen=True, slots=True)
class Native:
    """A command of the client as it is sent. keys: of each part. join: the reply, from those to its parts."""

    parts: Sequence[Command]
    keys: Sequence[Sequence[Any]]
    join: Join
    only_reads: bool

    @property
    def may_be_overtaken(self) -> bool:
        return not self.only_reads and any(len(some) > 1 for some in self.keys)


async def run_natives(client: Client, run: list[Words]) -> list[bytes]:
    """Run native commands; the raw reply to each."""
    together, answers = list[Native](), list[bytes]()
    for words in run:
        try:
            together.append(await _native(client, words))
        except BraidError as error:  # no node says which keys it has
            answers += await _send(client, together)
            answers.append(error_line(error))
            together = []
            continue
        if together[-1].may_be_overtaken:
            answers += await _send(client, together)
            together = []
    return answers + await _send(client, together)


async def _native(client: Client, words: Words) -> Native:
    assert client.hub.nodes is not None
    table = client.hub.nodes.keys
    keys = await table.keys_of(words, client.database.lane.send)
    reads = table.only_reads(words)
    is_whole = words[0].upper() != b"MSET" or len(words) % 2 == 1
    if words[0].upper() in _JOINED and is_whole and len(set(map(slot_of, keys))) > 1:
        return _by_slot(words, reads)
    return Native([tuple(words)], [keys], _first, reads)


async def _send(client: Client, items: list[Native]) -> list[bytes]:
    if not items:
        return []
    commands = [part for item in items for part in item.parts]
    keys = {id(part): some for item in items for part, some in zip(item.parts, item.keys, strict=True)}
    assert client.nodes is not None
    try:
        replies = await client.nodes.run_native(
            commands, lambda command: keys[id(command)], reads=all(item.only_reads for item in items)
        )
    except BraidError as error:  # unknown which of them ran: all get the error
        return [error_line(error)] * len(items)
    answers = list[bytes]()
    for item in items:
        answers.append(item.join(replies[: len(item.parts)]))
        replies = replies[len(item.parts) :]
    return answers


def _first(replies: list[bytes]) -> bytes:
    return replies[0]


def _by_slot(words: Words, reads: bool) -> Native:
    """MGET or MSET as one for each slot."""
    stride = 2 if words[0].upper() == b"MSET" else 1
    at_slot = dict[int, list[int]]()
    for at in range(1, len(words), stride):
        at_slot.setdefault(slot_of(words[at]), []).append(at)
    parts = list[Command]()
    for some in at_slot.values():
        parts.append((words[0], *(word for at in some for word in words[at : at + stride])))
    keys = [part[1::stride] for part in parts]
    places = [at - 1 for some in at_slot.values() for at in some]
    return Native(parts, keys, _refused_or_first if stride == 2 else partial(_values, places), reads)


def _refused_or_first(replies: list[bytes]) -> bytes:
    return next((each for each in replies if each[:1] == b"-"), replies[0])


def _values(places: list[int], replies: list[bytes]) -> bytes:
    """The values of MGET in the order of its keys."""
    refused = next((each for each in replies if each[:1] == b"-"), None)
    if refused is not None:
        return refused
    values = [value for reply in replies for value in elements(reply)]
    return b"*%d\r\n" % len(values) + b"".join(value for _, value in sorted(zip(places, values, strict=True)))

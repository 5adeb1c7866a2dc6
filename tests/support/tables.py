"""Conflict tables that run: columns are regions, rows are times, `Sync` is a row.

    play(world, '''
        time | region 1                             | region 2
        t1   | XADD x 110 f v                       | XADD x 115 f v
        t2   | Sync                                 | Sync
        t3   | XRANGE x - + -> [110-1, 115-2]       | XRANGE x - + -> [110-1, 115-2]
    ''')

What stands after `->` is what the region answers: IDs of entries, names of groups or consumers, or a
number. An ID that the engine generated is not known before: the first time it is printed it is bound to
what is answered there, with the same region at its end; from then on it must be the same.
"""

import re
import shlex
from typing import Any

from tests.support.world import World

_FIELDS = {"GROUPS": "name", "CONSUMERS": "name"}


def play(world: World, table: str) -> None:
    rows = [line.strip() for line in table.strip().splitlines() if line.strip()]
    seen: dict[str, str] = {}
    for row in rows[1:]:
        when, *cells = (cell.strip() for cell in row.split("|"))
        meeting = [number for number, cell in enumerate(cells, start=1) if cell == "Sync"]
        if meeting:
            assert len(meeting) > 1, f"{when}: a sync needs two regions"
            world.sync(meeting)
            continue
        for number, cell in enumerate(cells, start=1):
            if cell:
                command, arrow, wanted = (part.strip() for part in cell.partition("->"))
                answer = _answer(world, number, command)
                if arrow:
                    _compare(f"{when}, region {number}: {command}", wanted, answer, seen)


def _answer(world: World, number: int, command: str) -> Any:
    with world.engines[number - 1].client():
        words = shlex.split(command)
        # The reply as the engine shapes it, without redis-py's own forms.
        client = world[number]
        callbacks, client.response_callbacks = client.response_callbacks, {}
        try:
            reply = client.execute_command(*words)
        finally:
            client.response_callbacks = callbacks
    if words[0].upper() in ("XREAD", "XREADGROUP"):
        streams = reply.items() if isinstance(reply, dict) else reply or []
        return [entry[0] for _, entries in streams for entry in entries]
    if words[0].upper() == "XINFO":
        field = _FIELDS[words[1].upper()]
        return [
            fact[field] if isinstance(fact, dict) else fact[fact.index(field) + 1] for fact in reply or []
        ]
    if isinstance(reply, list):
        return [entry[0] for entry in reply]
    return reply


def _compare(where: str, wanted: str, answer: Any, seen: dict[str, str]) -> None:
    if not wanted.startswith("["):
        assert str(answer) == wanted, f"{where}: want {wanted}, seen {answer}"
        return
    listed = [word.strip() for word in wanted.strip("[]").split(",") if word.strip()]
    assert len(answer) == len(listed), f"{where}: want {listed}, seen {answer}"
    mapped = []
    for word, found in zip(listed, answer, strict=True):
        if re.fullmatch(r"\d{13}-\d+", word):
            if word not in seen:
                region = int(word.rpartition("-")[2])
                assert int(found.rpartition("-")[2]) % 1024 == region, f"{where}: {found} for {word}"
            mapped.append(seen.setdefault(word, found))
        else:
            mapped.append(word)
    assert answer == mapped, f"{where}: want {mapped}, seen {answer}"

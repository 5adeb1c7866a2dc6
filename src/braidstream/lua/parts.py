"""The library's Lua files, in an order in which they can be loaded.

Each file begins with a comment, then says which namespaces (tables) it fills and which of others it uses.
The tables exist before the first file, so functions of two files may call each other. What a file uses
outside its functions must be loaded before it.
"""

import re
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib.resources.abc import Traversable
from typing import Final

_FILLS: Final = re.compile(r"^-- fills: (.*)$", re.M)
_USES: Final = re.compile(r"^-- uses: (.*(?:\n-- .*)*)$", re.M)
_PROSE: Final = re.compile(r"--\[\[.*?\]\]|--[^\n]*|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.S)
_FUNCTION: Final = re.compile(r"^( *)(?:local )?function (?:[^\n]* end$|.*?\n\1end$)", re.S | re.M)


@dataclass(frozen=True, slots=True)
class Part:
    """A file. code: its text without comments and strings."""

    name: str
    text: str
    code: str
    fills: tuple[str, ...]
    uses: tuple[str, ...]

    @staticmethod
    def parse(name: str, text: str) -> "Part":
        fills, uses = _FILLS.search(text), _USES.search(text)
        return Part(
            name=name,
            text=text,
            code=_PROSE.sub("''", text),
            fills=tuple(fills[1].split(", ")) if fills else (),
            uses=tuple(re.findall(r"\w+", uses[1])) if uses else (),
        )


def ordered(parts: list[Part]) -> list[Part]:
    """What a file uses while it is loaded comes before it. ValueError if a file does not say what it uses."""
    tables = namespaces(parts)
    for part in parts:
        _check(part, tables)
    makers = {table: [part.name for part in parts if table in part.fills] for table in tables}
    graph = {
        part.name: sorted(
            maker for table in _found(_FUNCTION.sub("", part.code), tables) for maker in makers[table]
        )
        for part in parts
    }
    order = TopologicalSorter(
        {name: [each for each in first if each != name] for name, first in graph.items()}
    )
    by_name = {part.name: part for part in parts}
    return [by_name[name] for name in order.static_order()]


def read_parts(folder: Traversable) -> list[Part]:
    files = sorted(
        (each for each in folder.iterdir() if each.name.endswith(".lua")), key=lambda each: each.name
    )
    return [Part.parse(each.name, each.read_text(encoding="utf-8")) for each in files]


def namespaces(parts: list[Part]) -> list[str]:
    return sorted({table for part in parts for table in part.fills})


def _check(part: Part, tables: list[str]) -> None:
    used = _found(part.code, tables) - {*part.fills}
    for table in sorted(used - {*part.uses}):
        raise ValueError(f"{part.name} uses {table}, which is not in its line `-- uses:`")
    for table in sorted({*part.uses} - used):
        raise ValueError(f"{part.name} says that it uses {table}, and does not")
    for table in re.findall(rf"(?<![.:\w])({'|'.join(tables)})\b(?!\.)", part.code):
        raise ValueError(f"{part.name} has a variable {table}, which is the name of a namespace")
    for table in part.fills:
        if not re.search(rf"^ *(?:function )?{table}\.\w+", part.code, re.M):
            raise ValueError(f"{part.name} says that it fills {table}, and does not")


def _found(code: str, tables: list[str]) -> set[str]:
    return set(re.findall(rf"(?<![.:\w])(?:{'|'.join(tables)})(?=\.)", code))

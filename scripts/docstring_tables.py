"""For the site: what a docstring says of each parameter becomes a table.

    client: where the streams are.             Args:
    backoff, max_backoff: seconds until        -->      client: where the streams are.
    the second attempt.                                 backoff: seconds until the second attempt.
                                                        max_backoff: seconds until the second attempt.

An extension of griffe, which reads the source for mkdocstrings (mkdocs.yml).
"""

import re
from collections.abc import Iterable
from typing import Any

import griffe

_ITEM = re.compile(r"^(\w+(?:, \w+)*): (.*)$")


def with_table(text: str, names: Iterable[str], title: str) -> str:
    """The docstring in Google's style, which mkdocstrings shows as a table. names: what it may explain."""
    known, lines, found = {*names}, list[str](), False
    items = list[tuple[list[str], list[str]]]()
    for line in [*text.splitlines(), ""]:
        item = _ITEM.match(line)
        if item and known.issuperset(item[1].split(", ")):
            items.append((item[1].split(", "), [item[2]]))
            found = True
        elif items and line.strip():
            items[-1][1].append(line.strip())
        else:
            lines += _section(items, title)
            items = []
            lines.append(line)
    return "\n".join(lines).strip() if found else text


def _section(items: list[tuple[list[str], list[str]]], title: str) -> list[str]:
    rows = [f"    {name}: {' '.join(words)}" for names, words in items for name in names]
    return ["", f"{title}:", *rows, ""] if rows else []


class DocstringTables(griffe.Extension):
    """Functions explain their parameters, classes those of their constructor or their attributes."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring is not None:
            names = [each.name for each in func.parameters]
            func.docstring.value = with_table(func.docstring.value, names, "Args")

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is None:
            return
        parameters = [each.name for each in cls.parameters]
        text = with_table(cls.docstring.value, parameters, "Args")
        if text == cls.docstring.value:
            text = with_table(text, cls.members, "Attributes")
        cls.docstring.value = text

"""`make check`: what the linters do not see of the shape of src/braidstream.

- No import cycle, also not under TYPE_CHECKING or inside a function.
- Commands do not know how they are carried: only plan/view.py names the members of `Carriage`.
- A file holds one idea: at most 800 lines.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SRC = Path(__file__).parent.parent / "src"
PACKAGE = SRC / "braidstream"
MOST_LINES = 800
# How a command is carried. Commands ask what it allows.
CARRY = "braidstream.plan.view"


def main() -> int:
    paths = {_name(path): path for path in PACKAGE.rglob("*.py")}
    problems = [*_cycles(paths), *_long(paths), *_carried(paths)]
    for problem in problems:
        print(f"shape: {problem}")
    return 1 if problems else 0


def _name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _cycles(paths: dict[str, Path]) -> Iterator[str]:
    graph = {name: set(_imports(path, paths)) - {name} for name, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "import cycle: " + " -> ".join(reversed(error.args[1]))


def _imports(path: Path, paths: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a module imports. A package counts only where a name of its own is taken."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in paths)
        elif isinstance(node, ast.ImportFrom) and node.module in paths:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in paths else node.module


def _long(paths: dict[str, Path]) -> Iterator[str]:
    for name, path in paths.items():
        lines = path.read_text().count("\n")
        if lines > MOST_LINES:
            yield f"{name} has {lines} lines, at most {MOST_LINES}: which second idea in it deserves a file?"


def _carried(paths: dict[str, Path]) -> Iterator[str]:
    for name, path in paths.items():
        if not name.startswith(("braidstream.commands", "braidstream.plan")) or name == CARRY:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Carriage":
                yield f"{name}, line {node.lineno}, names Carriage.{node.attr}: ask what it allows"


if __name__ == "__main__":
    sys.exit(main())

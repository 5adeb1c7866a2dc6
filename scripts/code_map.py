"""Write the tree in docs/design/map.md from the first lines of the modules: `make docs-map`.

`make check` fails if the page is not what this would write.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "braidstream"
PAGE = ROOT / "docs" / "design" / "map.md"
TREE = re.compile(r"(?<=<!-- tree -->\n).*?(?=<!-- /tree -->)", re.DOTALL)
LAYERS = re.compile(r"(?<=<!-- layers -->\n).*?(?=<!-- /layers -->)", re.DOTALL)


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    layers = tools["importlinter"]["contracts"][0]["layers"]
    for part, lines in ((TREE, ["src/braidstream/", *_tree(PACKAGE, 1)]), (LAYERS, layers)):
        body = "\n".join(["```text", *lines, "```"])
        text = part.sub(lambda _, body=body: f"{body}\n", text)
    return text


def _tree(folder: Path, depth: int) -> Iterator[str]:
    """Files before folders, each by name."""
    for path in sorted(folder.iterdir(), key=lambda each: (each.is_dir(), each.name)):
        if path.is_dir():
            if (path / "__init__.py").exists():
                yield _line(f"{path.name}/", _about(path / "__init__.py"), depth)
                yield from _tree(path, depth + 1)
        elif path.suffix in (".py", ".lua") and path.name != "__init__.py":
            yield _line(path.name, _about(path), depth)


def _line(name: str, about: str, depth: int) -> str:
    return f"{'  ' * depth}{name:<{26 - 2 * depth}} {about}"


def _about(path: Path) -> str:
    """The first sentence that a file says of itself."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".lua":
        text = "\n".join(map(str.strip, text.removeprefix("--[[").split("]]")[0].strip().splitlines()))
    else:
        text = ast.get_docstring(ast.parse(text)) or ""
    return re.split(r"(?<=\.)\s", text.split("\n\n")[0].replace("\n", " "))[0].removesuffix(".")


def main() -> int:
    wanted = page()
    if "--check" not in sys.argv:
        PAGE.write_text(wanted, encoding="utf-8")
    elif wanted != PAGE.read_text(encoding="utf-8"):
        print("docs/design/map.md is stale. Type: make docs-map")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The notes of a release, if everything says the same version: python -m scripts.release v0.1.0

Run by the release workflow with the name of the tag. It fails unless pyproject.toml has that version and
CHANGELOG.md has a dated section for it, newest first. It prints that section.
"""

import re
import sys
import tomllib
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_HEAD = re.compile(r"^## (?P<version>\S+)(?: \((?P<when>[^)]+)\))?$", re.MULTILINE)


def version() -> str:
    """The version that pyproject.toml gives the packages."""
    return str(tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"])


def notes(tag: str, changelog: str) -> str:
    """The changelog's section for a tag. ValueError says what does not fit."""
    wanted = version()
    if tag != f"v{wanted}":
        raise ValueError(
            f"The tag is {tag}, but pyproject.toml says {wanted}: tag v{wanted}, or change the file."
        )
    heads = [*_HEAD.finditer(changelog)]
    if not heads or heads[0]["version"] != wanted:
        seen = heads[0][0] if heads else "nothing"
        raise ValueError(f"CHANGELOG.md begins with '{seen}', not with '## {wanted} (date)'.")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", heads[0]["when"] or ""):
        raise ValueError(f"CHANGELOG.md: '{heads[0][0]}' has no date. Write '## {wanted} (YYYY-MM-DD)'.")
    end = heads[1].start() if len(heads) > 1 else len(changelog)
    return changelog[heads[0].end() : end].strip() + "\n"


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python -m scripts.release TAG", file=sys.stderr)
        return 2
    try:
        print(notes(sys.argv[1], (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")), end="")
    except ValueError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

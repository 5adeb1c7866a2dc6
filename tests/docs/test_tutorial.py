"""README, tutorials and guides, typed as printed, one page after the other, on one machine."""

import re
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from tests.support.reader import ROOT, Reader, blocks
from tests.support.servers import NEWEST, UP_ABOVE, Flavour, free_port

TYPED = [
    "README.md",
    *(f"docs/tutorial{name}.md" for name in ("", "-worker", "-regions", "-logs")),
]
GUIDES = [
    f"docs/guides/{name}.md"
    for name in (
        "drop-in",
        "groups",
        "worker",
        "logs",
        "idempotence",
        "topics",
        "gateway",
        "when-a-region-dies",
        "move",
    )
]
PAGES = sorted(path.relative_to(ROOT) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


# Each list is typed on a machine of its own. That of the guides has the server of the README.
MACHINES = {
    "tutorials": [*TYPED, "docs/index.md"],
    "guides": GUIDES[:-2],
    "moves": GUIDES[-2:],
}
FIRST_SERVER = 3  # blocks of the README


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
@pytest.mark.parametrize("machine", MACHINES)
def test_readme_tutorials_and_guides_run_as_printed_one_after_the_other(
    flavour: Flavour, machine: str, tmp_path: Path
) -> None:
    first = free_port(*UP_ABOVE)
    up = {7001: first, 7002: first + 1, 7101: first + 100, 7102: first + 101}
    alone = {port: free_port() for port in (6379, 6380, 6390, 6391, 6392, 6393, 9291)}
    reader = Reader(tmp_path, flavour, alone | up)
    try:
        if machine == "guides":
            reader.types("README.md", FIRST_SERVER)
        for page in MACHINES[machine]:
            reader.types(page)
    finally:
        for port in (6379, 6380):
            with redis.Redis(port=reader.ports[port]) as operator, suppress(redis.ConnectionError):
                operator.shutdown(nosave=True)


@pytest.mark.parametrize("page", TYPED)
def test_a_page_for_beginners_shows_what_comes(page: str) -> None:
    shown = [text for kind, text in blocks(page) if kind == "text" or "# -> " in text]
    assert len(shown) >= 2


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_nothing_is_installed_from_where_it_is_not(page: Path) -> None:
    """Until there is a release, `pip install braidstream` finds nothing."""
    lines = re.findall(r"pip install [^`\n]*", (ROOT / page).read_text(encoding="utf-8"))
    assert [line for line in lines if not line.startswith("pip install -e ")] == []

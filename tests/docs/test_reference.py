"""The docs are complete: generated pages are current, links lead somewhere, promises name their tests."""

import re
from inspect import ismodule
from pathlib import Path

import pytest
import redis

import braidstream
from scripts import code_map
from scripts.reference import FOLDER, PAGES

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md")) + [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "GOVERNANCE.md",
    ROOT / "MAINTAINERS.md",
]
FOR_USERS = [page for page in DOCS if page.name == "README.md" or page.name.startswith("tutorial")]
FOR_USERS += [page for page in DOCS if page.parent.name in ("guides", "reference")]
SOURCE = ROOT / "src" / "braidstream"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs-reference"


def test_the_python_page_has_every_public_name_of_ours() -> None:
    page = (FOLDER / "python.md").read_text(encoding="utf-8")
    ours = {
        name for name in {*braidstream.__all__} - {*redis.__all__} if not ismodule(getattr(braidstream, name))
    }
    ours |= {name for name in redis.__all__ if getattr(braidstream, name) is not getattr(redis, name)}
    ours -= {"__version__", "VERSION", "int_or_str"}
    assert len(ours) > 10
    assert [
        name for name in sorted(ours) if f"braidstream.{name}" not in page and f"`{name}`" not in page
    ] == []


def test_the_metrics_page_has_every_metric() -> None:
    page = (FOLDER / "metrics.md").read_text(encoding="utf-8")
    made = r'\bFamily\.(?:counter|gauge)\(\s*"(braid_\w+)"'
    names = {name for path in SOURCE.rglob("*.py") for name in re.findall(made, path.read_text("utf-8"))}
    assert len(names) > 10
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_map_shows_the_code_as_it_is() -> None:
    assert code_map.page() == code_map.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["guarantees.md", "requirements.md", "threat-model.md"])
def test_every_promise_names_tests_that_exist(page: str) -> None:
    text = (ROOT / "docs" / "design" / page).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\|(?! promise \|| number \||---)", line)]
    assert len(rows) >= 10
    for row in rows:
        tests = re.findall(r"`((?:tests|bench)/[\w/]+\.py)(?:::(\w+))?`", row)
        assert tests, f"no test for: {row}"
        for path, name in tests:
            assert (ROOT / path).exists(), path
            assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


def test_every_requirement_that_is_cited_exists() -> None:
    page = (ROOT / "docs" / "design" / "requirements.md").read_text(encoding="utf-8")
    known = re.findall(r"^\| ([A-Z]{2}-\d+) \|", page, re.MULTILINE)
    assert len(known) == len({*known})
    files = [path for folder in ("src", "tests", "docs") for path in (ROOT / folder).rglob("*.*")]
    for path in files:
        if path.suffix in (".py", ".lua", ".md") and "node_modules" not in path.parts:
            cited = re.findall(r"\b(?:AA|IP|ST|GR|LG)-\d+\b", path.read_text(encoding="utf-8"))
            assert {*cited} <= {*known}, path


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_for_users_has_plain_words_and_no_file_of_ours(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("scripts/reference.py", "")
    assert re.findall(r"(?i)\b(?:told|tells|nobody|whoever|borne|mints?|minted)\b", text) == []
    assert re.findall(r"\btests/\w+|\btest_\w+|(?<!/)\b\w+\.lua\b|\bbraidstream/\w+\.py\b", text) == []

"""The site is also there as Markdown, and `llms.txt` lists it. Built from three pages, by the same hooks."""

from pathlib import Path

import griffe
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "index.md": "# Home\n\nRead [the **guide**](guides/one.md) first. Then more.\n",
    "guides/one.md": "# One\n\n```\nbraid --version\n```\n\nIt says [what changed](../../CHANGELOG.md).\n",
    "decisions/0001-first.md": "# 0001: First\n\nWe chose this:\n",
}


def test_every_page_is_there_as_markdown_and_llms_txt_lists_the_navigation(tmp_path: Path) -> None:
    for name, text in PAGES.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(text)
    told = {
        "site_name": "braidstream",
        "site_description": "Streams",
        "site_url": "https://example.org/",
        "use_directory_urls": False,
        "hooks": [str(ROOT / "scripts" / "site_hooks.py")],
        "nav": [{"Start": ["index.md"]}, {"Design": ["guides/one.md"]}],
    }
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(told))
    build(load_config(str(tmp_path / "mkdocs.yml")))
    site = tmp_path / "site"
    assert (site / "llms.txt").read_text() == (
        "# braidstream\n\n> Streams\n"
        "\n## Start\n\n- [Home](https://example.org/index.md): Read the guide first.\n"
        "\n## Design\n\n- [One](https://example.org/guides/one.md): It says what changed.\n"
        "- [0001: First](https://example.org/decisions/0001-first.md): We chose this\n"
    )
    assert "[what changed](../repository/CHANGELOG.md)" in (site / "guides/one.md").read_text()
    assert (site / "repository/CHANGELOG.md").read_text().startswith("# Changelog\n")
    for path in [site / "llms.txt", *site.rglob("*.md")]:
        assert path.with_suffix(".html").exists() or path.name == "llms.txt"


def test_the_site_shows_the_arguments_of_the_client() -> None:
    path = ROOT / "src/braidstream/clients/sync.py"
    shown = griffe.visit("sync", filepath=path, code=path.read_text())["Redis"].parameters
    ours = ["idempotent", "producer", "config"]
    assert [each.name for each in shown] == ["self", "host", "port", "db", "password", *ours, "options"]

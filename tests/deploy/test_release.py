"""What a release needs is there and says the same: version, changelog, checks of pre-commit and of make."""

import re
from pathlib import Path

import pytest
import yaml

from scripts.release import notes, version

ROOT = Path(__file__).resolve().parents[2]
NOW = version()


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    changelog = (
        f"# Changelog\n\n## {NOW} (2026-12-01)\n\n### Added\n\n- this\n\n## 0.0.9 (2026-01-01)\n\n- that\n"
    )
    assert notes(f"v{NOW}", changelog) == "### Added\n\n- this\n"


@pytest.mark.parametrize(
    ("tag", "head", "why"),
    [
        ("v9.9.9", f"## {NOW} (2026-12-01)", "pyproject.toml says"),
        (NOW, f"## {NOW} (2026-12-01)", "pyproject.toml says"),
        (f"v{NOW}", f"## {NOW} (not released yet)", "has no date"),
        (f"v{NOW}", f"## {NOW}", "has no date"),
        (f"v{NOW}", "## Unreleased", "begins with '## Unreleased'"),
        (f"v{NOW}", "", "begins with 'nothing'"),
    ],
)
def test_a_release_that_does_not_fit_is_refused(tag: str, head: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        notes(tag, f"# Changelog\n\n{head}\n\n- this\n")


def test_the_changelog_begins_with_this_version_or_the_next() -> None:
    head = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert head is not None
    assert head[1] in (NOW, "Unreleased")


def test_pre_commit_runs_the_commands_of_make_check() -> None:
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().replace("$(PYTHON)", ".venv/bin/python") for line in recipe[1].splitlines()]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == commands

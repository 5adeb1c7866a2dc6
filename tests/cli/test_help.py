"""--help: reads well in narrow and wide terminals, and costs little."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from braidstream.cli.frame import paste_lines
from braidstream.cli.main import VERBS, app
from tests.support.cli import BRAID

# Modules of Python itself that Typer imports vary with its version; ours and heavy ones do not.
HEAVY = {"asyncio", "hiredis", "pydantic", "pyspark", "redis", "rich", "ssl"}


def pages(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """The help of a command, and of those inside."""
    ctx = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield ctx.command_path, command.get_help(ctx)
    for each, child in getattr(command, "commands", {}).items():
        yield from pages(child, each, ctx)


def helped(*path: str, columns: int) -> str:
    done = subprocess.run(
        [*BRAID, *path, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": str(columns)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_terminal_and_has_no_python_types(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    longest = 0
    for path, text in pages(typer.main.get_command(app), "braid"):
        lines = text.splitlines()
        assert max(map(len, lines)) <= columns, path
        for word in ("<", "list[", "bool", "x>=", "None"):
            assert word not in text, (path, word)
        assert not any(line.endswith("...") for line in lines[1:]), path
        longest = max(longest, *map(len, lines))
    assert longest > columns - 10  # the width is used


def test_the_first_page_lists_every_verb_in_one_line() -> None:
    lines = helped(columns=80).splitlines()
    shown = lines[lines.index("Commands:") + 1 :]
    assert [line.split()[0] for line in shown] == [*VERBS]


def test_help_imports_no_verb_and_nothing_heavy() -> None:
    code = (
        "import sys\nfrom braidstream.cli.main import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "Commands:" in done.stdout
    modules = set(done.stderr.split())
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()
    ours = {name for name in modules if name.startswith("braidstream.")}
    assert ours == {f"braidstream.cli{name}" for name in ("", ".frame", ".main")}


def test_an_example_can_be_pasted_at_any_width() -> None:
    example = """braid x --where "fields['tag'] = 'eu'" --url redis://localhost:6379 --all"""
    assert paste_lines(example, 40) == [
        """braid x --where "fields['tag'] = 'eu'" \\""",
        "  --url redis://localhost:6379 --all",
    ]
    assert paste_lines(example, 200) == [example]
    said = subprocess.run(
        ["sh", "-c", "\n".join(paste_lines(example, 30)).replace("braid", "printf '%s|'", 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "x|--where|fields['tag'] = 'eu'|--url|redis://localhost:6379|--all|"


def test_help_shows_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = "redis://user:s3cr3t@host:1"
    (tmp_path / "url").write_text(url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRAID_URL", url)
    monkeypatch.setenv("BRAID_CONSOLE_PASSWORD", "s3cr3t")
    root = typer.main.get_command(app)
    for path, _ in pages(root, "braid"):
        words = path.split()[1:]
        for more in ([], ["--url-file", str(tmp_path / "url")]):
            told = CliRunner().invoke(app, [*words, *more, "--help"], env={"COLUMNS": "120"})
            assert "s3cr3t" not in told.output, path

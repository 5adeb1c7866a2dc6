"""The tutorial runs as it is printed, and so do the first lines of the README."""

import re
from pathlib import Path

import braidstream
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.up import braid_up

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_tutorial_runs_as_printed(engine: Engine) -> None:
    become(engine)
    code = "\n".join(blocks("docs/tutorial.md"))
    assert code.count("assert") >= 10
    exec(compile(code, "docs/tutorial.md", "exec"), {"URL": engine.url})


def test_the_tutorial_of_two_regions_runs_as_printed(flavour: Flavour) -> None:
    code = "\n".join(blocks("docs/tutorial-regions.md"))
    assert code.count("assert") >= 5
    with braid_up(2, flavour) as up:
        exec(compile(code, "docs/tutorial-regions.md", "exec"), {"ONE": up.urls[1], "TWO": up.urls[2]})


def test_the_readme_shows_what_one_gets(engine: Engine) -> None:
    become(engine)
    [code] = blocks("README.md")
    lines = code.replace("braidstream.Redis(decode_responses=True)", "client").replace(
        "block=5000", "block=1"
    )
    with braidstream.Redis.from_url(engine.url, decode_responses=True) as client:
        exec(compile(lines, "README.md", "exec"), {"client": client})
        assert [fields["text"] for _, fields in client.xrange("messages")] == ["hello", "goodbye"]

"""The commands of the guide on retention, typed one after the other."""

import re
import shlex
from pathlib import Path

import braidstream
from tests.support.cli import braid
from tests.support.gateways import Line, Served
from tests.support.regions import become
from tests.support.servers import Engine

GUIDE = Path(__file__).parents[2] / "docs/guides/retention.md"
BLOCKS = re.findall(r"^```console\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
URL = "redis://localhost:6379"


def commands(block: str) -> list[tuple[str, str]]:
    """What is typed, and what is printed."""
    found = [part.partition("\n") for part in block.split("$ ")[1:]]
    return [(typed, printed) for typed, _, printed in found]


def plain(text: str, url: str) -> str:
    """Without times, the server's own address, and blanks at the ends of lines."""
    text = text.replace(url, URL).replace(f"{URL}/0", URL)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TIME", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def test_the_guide_shows_what_its_commands_print(engine: Engine) -> None:
    become(engine)
    for typed, printed in commands(BLOCKS[0]):
        [program, *words] = shlex.split(typed.replace(URL, engine.url))
        assert program == "braid"
        done = braid(*words)
        assert done.returncode == 0, done.stderr
        assert plain(done.stdout, engine.url.removesuffix("/0")) == plain(printed, engine.url), typed


def test_policies_can_be_typed_at_a_gateway(engine: Engine, region: braidstream.Redis) -> None:
    with Served(engine.url) as served, Line(served.port) as line:
        for typed, _ in commands(BLOCKS[1]):
            [program, _, _, *words] = shlex.split(typed)
            assert program == "redis-cli"
            assert line.say(*words).startswith(b"$")
    assert len(region.xrange("braid.retention")) == 2
    assert '"policies": []' in braid("retention", "list", "--url", engine.url, "--json").stdout

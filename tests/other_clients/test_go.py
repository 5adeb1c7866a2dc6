"""go-redis, unchanged, with two gateways. It needs `go` and its module proxy, which not every machine has."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateways import Served
from tests.support.multi_region import Lab
from tests.support.reader import ROOT
from tests.support.servers import NEWEST, Flavour
from tests.support.waiting import eventually

HERE = Path(__file__).parent / "go"
IMPORTS = ("context", "errors", "regexp", "sync/atomic", "time", "github.com/redis/go-redis/v9")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """What the guide shows, built."""
    if shutil.which("go") is None:
        pytest.skip("go is not here")
    page = (ROOT / "docs/guides/when-a-region-dies.md").read_text(encoding="utf-8")
    shown = page[page.index("```go\n") + len("```go\n") :].split("```")[0]
    imports = "\n".join(f'import "{name}"' for name in IMPORTS)
    folder = tmp_path / "program"
    shutil.copytree(HERE, folder)
    (folder / "failover.go").write_text(f"package main\n\n{imports}\n\n{shown}")
    if subprocess.run(["go", "mod", "download"], cwd=folder, check=False, capture_output=True).returncode:
        pytest.skip("the modules of Go cannot be downloaded here")
    subprocess.run(["go", "build", "-o", "failover", "."], cwd=folder, check=True)
    return folder / "failover"


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_a_program_in_go_with_two_gateways_adds_each_message_once(
    program: Path, flavour: Flavour, tmp_path: Path
) -> None:
    with Lab(tmp_path, flavour) as lab, Served(lab.one.url) as us, Served(lab.two.url) as eu:
        running = subprocess.Popen([program, us.url, eu.url], stdout=subprocess.PIPE)
        eventually(lambda: lab.plain[0].xlen("orders") > 20, within_s=30, why="some orders should be there")
        lab.one.kill()
        assert running.communicate(timeout=60) == (b"fine\n", None)
        lab.bring_back()
        [entries] = lab.settle("orders")
    assert sorted(int(fields["n"]) for _, fields in entries) == list(range(1, 101))

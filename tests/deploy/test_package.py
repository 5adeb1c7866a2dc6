"""The packages that a release publishes: built from the tree, installed where nothing else is, used once."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from braidstream.lua import VERSION
from tests.support.servers import NEWEST, Engine

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WITHIN_S = 300
ROUND_TRIP = """
import sys, braidstream
with braidstream.from_url(sys.argv[1], decode_responses=True) as client:
    entry = client.xadd("orders", {"order": "1"})
    assert client.xrange("orders") == [(entry, {"order": "1"})], client.xrange("orders")
print(braidstream.__version__, braidstream.__file__)
"""


def run(*words: str | Path) -> str:
    """Outside of the tree, so that nothing is imported from it."""
    pins = {name: str(ROOT / "constraints.txt") for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")}
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | pins
    done = subprocess.run(
        [*map(str, words)], cwd="/", env=env, capture_output=True, text=True, timeout=WITHIN_S
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it, by the setuptools of this environment.

    From a copy: setuptools writes into the tree that it builds, and so may a second worker.
    """
    folder, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tree")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, tree)
    for name in ("src", "deploy", "docs", "examples"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, tree)
    return folder


def test_the_wheel_has_every_file_of_the_source_and_no_other(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = {path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file()}
    made = {path for path in source if {"__pycache__", "braidstream.egg-info"} & {*path.parts}}
    assert names == {path.as_posix() for path in source - made}
    assert "braidstream/py.typed" in names
    assert any(name.endswith(".lua") for name in names)


def test_the_sdist_has_what_an_operator_needs(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("deploy", "docs", "examples"):
        files = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert {name for name in files - names if "__pycache__" not in name} == set()
    assert {"deploy/grafana/braidstream.json", "docs/guides/runbook.md", "CHANGELOG.md"} <= names


def test_links_on_the_page_of_the_package_lead_into_the_repository(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(f"braidstream-{PROJECT['version']}/PKG-INFO")
        assert member is not None
        about = member.read().decode()
    links = re.findall(r"\]\(([^)]+)\)", about)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_the_wheel_works_in_a_clean_environment_and_its_command_with_an_extra(
    built: Path, tmp_path: Path, engine: Engine
) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "clean")
    python, braid = tmp_path / "clean" / "bin" / "python", tmp_path / "clean" / "bin" / "braid"
    [wheel] = built.glob("*.whl")
    install = ROOT / "scripts" / "packages.sh"
    run("bash", install, python, "-c", ROOT / "constraints.txt", "--no-compile", wheel)
    client = run(python, "-c", "import braidstream, sys; braidstream.Consumer; print(*sys.modules)")
    assert {"pydantic", "typer", "rich"}.isdisjoint(client.split())
    refused = subprocess.run([braid, "--version"], capture_output=True, text=True, check=False)
    assert (refused.returncode, "pip install 'braidstream[cli]'" in refused.stderr) == (1, True)
    run("bash", install, python, "-c", ROOT / "constraints.txt", "--no-compile", f"{wheel}[cli]")
    assert run(braid, "--version") == f"braidstream {PROJECT['version']} (engine functions {VERSION})\n"
    assert "is region 1 (us-east)" in run(
        braid, "init", "--url", engine.url, "--region", "1", "--name", "us-east"
    )
    version, place = run(python, "-c", ROUND_TRIP, engine.url).split()
    assert version == PROJECT["version"]
    assert Path(place).is_relative_to(tmp_path)

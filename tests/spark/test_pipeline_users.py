"""Pipelines over TLS, as a user who may do no more than the guide says."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import braidstream
from braidstream.cli.main import app
from tests.support.servers import Engine
from tests.support.world import World

GUIDE = Path(__file__).parents[2] / "docs/guides/lake.md"
READ, TRIM, COMPACT = ({*block.split()} for block in re.findall(r"^(\+[^`]*?)\n```", GUIDE.read_text(), re.M))
# What redis-py and the test itself call.
OURS = {"auth", "hello", "client|setinfo", "acl|log", "config|resetstat", "info", "select"}
OURS |= {"expire", "scan", "xrevrange"}  # to answer as a daemon
SECRET = "a-secret-of-the-lake"


@pytest.mark.parametrize("job", ["archive", "compact"])
def test_over_tls_the_guides_rights_are_enough_and_none_is_too_many(
    spark: SparkSession, job: str, tmp_path: Path
) -> None:
    lake, rights = str(tmp_path / "lake"), READ | (TRIM if job == "archive" else COMPACT)
    with Engine("redis-7.0", tls=True) as engine, Engine("redis-7.0") as two, regions(engine, two) as client:
        entries = [client.xadd("users", {"user": n % 3, "n": n}) for n in range(9)]
        client.xgroup_create("users", "bills", "0")
        client.xreadgroup("bills", "anna", {"users": ">"})
        client.xack("users", "bills", *entries[:8])
        if job == "compact":
            told("archive", engine.url, lake)
        with engine.client() as admin:
            user = ["lake", "on", f">{SECRET}", "~bs:*", "%R~*", *sorted(rights)]
            admin.execute_command("ACL", "SETUSER", *user)
            admin.config_resetstat()
            url = engine.url.replace("//", f"//lake:{SECRET}@", 1)
            words = ["--trim"] if job == "archive" else ["--key", "user"]
            done = told(job, url, lake, *words, "--keep", "0s")
            used = {name.removeprefix("cmdstat_") for name in admin.info("commandstats")}
            assert admin.acl_log() == [] or {each["object"] for each in admin.acl_log()} <= OURS
    assert done["trimmed" if job == "archive" else "deleted"] == (8 if job == "archive" else 6)
    assert {f"+{name}" for name in used - OURS} == rights


@contextmanager
def regions(*engines: Engine) -> Iterator[braidstream.Redis]:
    """The client of the first of several regions, which answer each other."""
    world = World(engines)
    try:
        with world.answering():
            yield world[1]
    finally:
        world.close()


def told(job: str, url: str, lake: str, *words: str) -> dict[str, Any]:
    said = CliRunner().invoke(
        app, ["spark", job, "--json", "--url", url, "--lake", lake, "--streams", "users", *words]
    )
    assert said.exit_code == 0, said.output
    assert SECRET not in said.output
    return dict(json.loads(said.stdout))

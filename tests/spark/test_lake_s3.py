"""A lake in an object store: moto's S3 server, in one thread."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import fs
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.errors import LakeError
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.jobs.compaction import probe
from braidstream.spark.lake.log import LEFT_S, Lake, Store
from braidstream.spark.lake.typed_columns import Typing
from braidstream.spark.options import Servers
from tests.support.lakes import add, archived
from tests.support.s3_server import age, make_bucket, s3_server
from tests.support.servers import Engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with s3_server() as env:
        yield env


@pytest.fixture
def bucket(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    name = f"lake-{uuid.uuid4().hex}"
    make_bucket(s3, name)
    return f"s3://{name}"


ARCHIVER = """
    import json, sys
    from braidstream.spark.options import Servers
    from braidstream.spark.jobs.archive import Archive, Archiver
    url, lake = sys.argv[1:]
    archiver = Archiver(None, Archive(lake, Servers((url,), {}), (b"orders",), max_entries=20, keep_s=0))
    entries = 0
    while (done := archiver.round()).left or done.entries:
        entries += done.entries
    print(json.dumps(entries))
"""


@pytest.mark.nightly("In CI: on a disk, and one archive on S3")
def test_two_archives_at_once_write_each_entry_once(bucket: str, engine: Engine) -> None:
    lake = f"{bucket}/deep/lake"
    with engine.client() as client:
        entries = add(client, *range(80))
        words = [
            sys.executable,
            "-c",
            "\n".join(line[4:] for line in ARCHIVER.splitlines()),
            engine.url,
            lake,
        ]
        jobs = [subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
        assert sum(json.loads(job.communicate(timeout=240)[0]) for job in jobs) == 80
        assert archived(lake) == list(range(80))
        client.xdel("orders", entries[50])
        archiver = Archiver(
            None, Archive(lake, Servers((engine.url,), {}), (b"orders",), trim=True, keep_s=0)
        )
        done = archiver.round()
        archiver.close()
        assert (done.deleted, done.trimmed, client.xlen("orders")) == (1, 79, 0)
    assert archived(lake) == [n for n in range(80) if n != 50]
    home = Lake(lake)
    assert home.vacuum(grace_s=0) > 0
    store = Store(lake)
    found = store.fs.get_file_info(fs.FileSelector(store.path("orders"), recursive=True))
    files = {each.path.removeprefix(f"{store.base}/") for each in found if "day=" in each.path}
    left = {path for path in files - set(home.load().files) if path.endswith(".parquet")}
    assert len(left) <= 20, "only files of rounds that lost a race are left, for a day"
    assert archived(lake) == [n for n in range(80) if n != 50]


def test_a_typed_table_gets_new_columns(bucket: str, engine: Engine) -> None:
    schema = Typing.parse("n long, *")
    archiver = Archiver(None, Archive(bucket, Servers((engine.url,), {}), (b"orders",), schema=schema))
    with engine.client() as client:
        for n in range(4):
            client.xadd("orders", {"n": n, f"f{n % 2}": n})
            assert archiver.round().entries == 1
    archiver.close()
    options = Store(bucket).options
    rows = DeltaTable(f"{bucket}/orders", storage_options=options).to_pyarrow_table().to_pylist()
    seen = sorted((row["n"], row["f0"], row["f1"], row["_rescued"]) for row in rows)
    assert seen == [(n, *((str(n), None) if n % 2 == 0 else (None, str(n))), None) for n in range(4)]
    told = CliRunner().invoke(app, ["spark", "ddl", "--table", f"{bucket}/orders", "--for", "trino"])
    assert f"table_location => '{bucket}/orders'" in told.stdout
    told = CliRunner().invoke(app, ["spark", "ddl", "--table", f"{bucket}/orders", "--for", "spark"])
    assert f"LOCATION '{bucket.replace('s3:', 's3a:')}/orders'" in told.stdout, (
        "the name that hadoop-aws knows"
    )


def test_a_store_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    with s3_server("--ignore-conditions") as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        bucket = f"lake-{uuid.uuid4().hex}"
        make_bucket(env, bucket)
        what: Any = Archive(f"s3://{bucket}/lake", Servers((engine.url,), {}), (b"orders",))
        with pytest.raises(LakeError, match="not safe for a lake.* use another store"):
            Archiver(None, what)


def test_a_safe_store_passes_the_probe_and_keeps_nothing_of_it(bucket: str) -> None:
    store = Store(f"{bucket}/lake")
    probe(store)
    assert not [each.path for each in store.list() if "_braid" not in each.path]


def test_a_vacuum_deletes_what_a_killed_probe_has_left_a_day_later(
    bucket: str, s3: dict[str, str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(bucket)
    with engine.client() as client:
        add(client, 0)
    archiver = Archiver(None, Archive(bucket, Servers((engine.url,), {}), (b"orders",)))
    archiver.round()
    archiver.close()
    with monkeypatch.context() as here:
        here.setattr(Store, "delete_folder", lambda *_: None)  # killed before it cleans up
        probe(store)
    Lake(bucket).vacuum()
    assert len(store.list("_braid")) == 1, "a job may still run it"
    age(s3, 0, 2 * LEFT_S)
    Lake(bucket).vacuum()
    assert store.list("_braid") == []
    assert archived(bucket) == [0]

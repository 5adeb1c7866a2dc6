"""replay: history once more, in order, exactly once, whatever is killed."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.errors import SinkError
from braidstream.spark import tasks
from braidstream.spark.jobs import replay as jobs_replay
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.jobs.replay import (
    Facts,
    Replay,
    Window,
    in_slices,
    parts_of,
    pause_s,
    replay,
    windows,
)
from braidstream.spark.options import Servers
from tests.support.regions import become, client_of
from tests.support.servers import Engine

HOUR = 3_600_000


def test_windows_are_the_same_in_every_run() -> None:
    assert list(windows(5, 25, 10)) == [(0, 5, 10), (1, 10, 20), (2, 20, 25)]
    assert list(windows(12, 25, 10)) == [(1, 12, 20), (2, 20, 25)]


def test_the_pace_is_a_rate_or_a_speed_up() -> None:
    slow = Replay({}, "", "", "", 0, 10_000, rate=100)
    assert pause_s(slow, began_s=50, now_s=51, done=300, from_ms=0) == 2
    fast = Replay({}, "", "", "", 1_000, 10_000, speed=2)
    assert pause_s(fast, began_s=50, now_s=51, done=300, from_ms=7_000) == 2
    assert pause_s(fast, began_s=50, now_s=60, done=300, from_ms=7_000) == 0


@pytest.mark.parametrize("at_once", [1, 500])
def test_of_two_entries_with_one_id_none_is_dropped_in_silence(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Two regions may have chosen one ID, and two streams may have the same one."""
    become(engine, id_mode="liberal")
    monkeypatch.setattr(jobs_replay, "AT_ONCE", at_once)
    entries = [(entry, [("n", b"%d" % n)]) for n, entry in enumerate(["5-1", "5-2", "5-2", "5-3"])]
    for _ in range(2):  # Spark runs a failed task again
        with pytest.raises(SinkError, match="two entries have the ID 5-2.*--keep-ids"):
            jobs_replay.append(engine.url, "kept", iter(entries))


def test_a_target_that_was_emptied_is_refused_if_ids_are_kept(engine: Engine) -> None:
    """It accepts no ID up to its last one. Spark is not needed: that ID is not in the time of the replay."""
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        client.xadd("kept", {"n": 1}, id=f"{2 * HOUR}-1")
        client.xtrim("kept", maxlen=0, approximate=False)
    what = Replay({}, engine.url, "kept", "job", 0, HOUR, keep_ids=True)
    with pytest.raises(SinkError, match=f"is empty, and its last ID is {2 * HOUR}-1, which is not part"):
        replay(cast(SparkSession, None), what)


def batch_of(names: list[str], region: int | None, value: bytes) -> pa.RecordBatch:
    """Entries with one field, as the source returns them."""
    fields = pa.array([[("n", value)] for _ in names], pa.map_(pa.string(), pa.binary()))
    regions = pa.array([region] * len(names), pa.int32())
    return pa.RecordBatch.from_arrays([pa.array(names), regions, fields], ["id", "region", "fields"])


def test_a_window_is_read_in_slices_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two strands, and very many entries in one millisecond."""
    monkeypatch.setattr(jobs_replay, "MOST_ROWS", 100)
    monkeypatch.setattr(jobs_replay, "_WANTED_ROWS", 50)
    times = [*range(0, 1_000, 7), *[500] * 250, 2**63 + 5, 4_000]
    one, two = ([(ms, seq) for seq, ms in enumerate(times) if seq % 2 == odd] for odd in (0, 1))
    reads = list[int]()

    def read(low: int, high: int) -> Iterator[pa.RecordBatch]:
        reads.append(0)
        for region, strand in ((1, one), (2, two)):
            found = [f"{ms}-{seq}" for ms, seq in strand if low <= ms < high]
            for start in range(0, len(found), 10):
                names = found[start : start + 10]
                reads[-1] += len(names)
                yield batch_of(names, region, b"1")

    slices = [table["id"].to_pylist() for table in in_slices(read, 0, 2**64)]
    keys = sorted((ms, seq) for seq, ms in enumerate(times))
    assert [entry for each in slices for entry in each] == [f"{ms}-{seq}" for ms, seq in keys]
    assert [len(each) for each in slices if len(each) > 100] == [250]
    assert len(reads) < 200


def test_large_entries_are_not_read_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows, many bytes: the next slice is as wide as fits."""
    monkeypatch.setattr(jobs_replay, "MOST_BYTES", 256_000)
    monkeypatch.setattr(jobs_replay, "_WANTED_BYTES", 128_000)
    reads = list[int]()

    def read(low: int, high: int) -> Iterator[pa.RecordBatch]:
        for start in range(low, high, 10):
            names = [f"{ms}-0" for ms in range(start, min(high, start + 10))]
            reads.append(len(names))
            yield batch_of(names, None, bytes(1_000))

    found = [entry for table in in_slices(read, 0, 10_000) for entry in table["id"].to_pylist()]
    assert found == [f"{ms}-0" for ms in range(10_000)]
    assert sum(reads) < 1.5 * len(found)


def _stages(engine: Engine) -> list[bytes]:
    """Our own client hides these keys."""
    with engine.client() as client:
        found: list[bytes] = client.keys("bs:stage:*")
    return found


def test_a_target_whose_name_is_no_text(engine: Engine) -> None:
    """It is named as everywhere: base64:..."""
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        client.xadd("orders", {"n": 1}, id="5-1")
        what = Replay({"streams": "orders", "url": engine.url}, engine.url, "base64:/w==", "job", 0, HOUR)
        assert replay(cast(SparkSession, None), what) == 1
        assert [fields for _, fields in client.xrange(b"\xff")] == [{b"n": b"1"}]
    assert not _stages(engine)


def test_ctrl_c_while_a_window_is_staged_leaves_no_stage(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(engine, id_mode="liberal")
    real, begun, waited = Window.replay, list[int](), Event()

    def on_signal(number: int, frame: object) -> None:
        waited.set()
        raise KeyboardInterrupt

    def interrupted(window: Window, pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.append(window.number)
        yield from real(window, pieces)
        if window.number == 0:
            os.kill(os.getpid(), signal.SIGINT)
            assert waited.wait(10)

    with client_of(engine) as client:
        for n in range(3):
            client.xadd("orders", {"n": n}, id=f"{n * HOUR}-1")
        what = Replay({"streams": "orders", "url": engine.url}, engine.url, "again", "job", 0, 3 * HOUR)
        monkeypatch.setattr(Window, "replay", interrupted)
        before = signal.signal(signal.SIGINT, on_signal)
        try:
            with pytest.raises(KeyboardInterrupt):
                replay(cast(SparkSession, None), what)
        finally:
            signal.signal(signal.SIGINT, before)
        assert begun == [0]
        assert not _stages(engine)
        monkeypatch.undo()
        assert replay(cast(SparkSession, None), what) == 3
        assert [fields[b"n"] for _, fields in client.xrange("again")] == [b"0", b"1", b"2"]


class Killed(Exception):
    """The run ended where the test wanted it to."""


@pytest.mark.parametrize("where", ["fields['tag'] = 'odd'", ""])
def test_a_replay_of_lake_and_stream_is_in_order_and_exactly_once(
    spark: SparkSession, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    lake = str(tmp_path / "lake")
    become(engine, id_mode="liberal")
    with client_of(engine, decode_responses=True) as client:
        for n in range(12):
            client.xadd("orders", {"n": n, "tag": "odd" if n % 2 else "even"}, id=f"{n * HOUR // 4}-{n + 1}")
        archiver = Archiver(None, Archive(lake, Servers((engine.url,), {}), (b"orders",), max_entries=7))
        archiver.round()
        archiver.close()
        source = {"streams": "orders", "url": engine.url, "lake": lake}
        what = Replay(source, engine.url, "again", "job", 0, 3 * HOUR, where=where)
        real, written = Window.publish, list[int]()

        def die(window: Window, facts: Facts) -> int:
            real(window, facts)
            written.append(window.number)
            if len(written) == 2:
                raise Killed("after a window was written, before the next")
            return 0

        with monkeypatch.context() as here:
            here.setattr(Window, "publish", die)
            with pytest.raises(Killed):
                replay(spark, what)
        assert not _stages(engine), "the third window was staged, and not needed"
        wanted = [str(n) for n in range(12) if n % 2 or not where]
        assert replay(spark, what) == len(wanted)
        assert [fields["n"] for _, fields in client.xrange("again")] == wanted
        if where:
            return

        words = ["spark", "replay", "--lake", lake, "--url", engine.url, "--streams", "orders", "--json"]
        words += ["--since", "0", "--until", str(3 * HOUR), "--to-url", engine.url, "--to", "kept"]
        for _ in range(2):
            told = CliRunner().invoke(app, [*words, "--job", "kept", "--keep-ids", "--window", "3h"])
            assert told.exit_code == 0, told.output
            assert json.loads(told.stdout)["entries"] == 12
        assert client.xrange("kept") == client.xrange("orders")
        foreign = Replay(source, engine.url, "again", "other", 0, 3 * HOUR, keep_ids=True)
        with pytest.raises(SinkError, match="is not part of this replay"):
            replay(spark, foreign)


def test_a_window_is_read_by_a_task_for_each_core_and_is_in_order(
    spark: SparkSession, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(engine)
    monkeypatch.setattr(tasks, "slots", lambda _: 4)
    with client_of(engine) as client, client.pipeline(transaction=False) as pipe:
        for n in range(3_000):
            pipe.xadd("orders", {"n": n})
        first, last = (
            int(each.split(b"-")[0]) for each in (pipe.execute()[0], client.xrevrange("orders")[0][0])
        )
        source = {"streams": "orders", "url": engine.url}
        for where in ("", "true"):
            what = Replay(source, engine.url, f"again{where}", "job" + where, first, last + 1, where=where)
            assert replay(spark, what) == 3_000
            found = [int(fields[b"n"]) for _, fields in client.xrange(what.target)]
            assert found == list(range(3_000))


def test_a_window_is_divided_into_parts_without_gaps() -> None:
    assert parts_of(0, 10, 3) == [(0, 4), (4, 8), (8, 10)]
    assert parts_of(5, 7, 4) == [(5, 6), (6, 7)]
    assert parts_of(5, 6, 1) == [(5, 6)]


def test_names_that_are_no_text_are_replayed_as_they_are(spark: SparkSession, engine: Engine) -> None:
    become(engine, id_mode="liberal")
    names = (b"\xff", rb"\xff", b"base64:/w==", "\u00e9".encode())
    with client_of(engine) as client:
        client.xadd("orders", {name: b"%d" % n for n, name in enumerate(names)}, id="5-1")
        [(_, fields)] = client.xrange("orders")
        source = {"streams": "orders", "url": engine.url}
        for target, keep_ids in (("again", False), ("kept", True)):
            what = Replay(source, engine.url, target, "job", 0, HOUR, keep_ids=keep_ids)
            assert replay(spark, what) == 1
            assert [found for _, found in client.xrange(target)] == [fields]

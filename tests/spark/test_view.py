"""One view over lake and stream: each entry once, while it is archived, trimmed, merged and deleted."""

import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from braidstream.errors import LakeError, MalformedError, NotReplicatedError
from braidstream.model.strand import Strand
from braidstream.operations.adoption import adopt
from braidstream.spark import view
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.lake.files import Needs
from braidstream.spark.lake.log import Lake
from braidstream.spark.lake.typed_columns import Typing
from braidstream.spark.options import Servers
from braidstream.spark.source.rows import META
from pyspark_braidstream import DefaultSource
from tests.support.lakes import Run, add, archived
from tests.support.microbatch import rows_at_once, rows_of
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine
from tests.support.thinning import NIGHTLY
from tests.support.world import World

FAR = Strand(b"orders", "s", 2)

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 6)),
        st.tuples(st.just("arrive"), st.integers(1, 6)),
        st.tuples(st.just("archive"), st.integers(1, 8)),
        st.tuples(st.just("archive and trim"), st.integers(1, 8)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("open a view"), st.just(0)),
        st.tuples(st.just("read on"), st.integers(1, 3)),
    ),
    min_size=4,
    max_size=24,
)


class Story:
    """One stream, one lake, and views that are read page by page between whatever else happens."""

    def __init__(self, engine: Engine, lake: str) -> None:
        self.engine, self.lake = engine, lake
        self.client = client_of(engine, decode_responses=True)
        self.there, self.deleted = list[str](), set[str]()
        self.far = 0
        self.views = list[tuple[set[str], list[str], Iterator[Any]]]()

    def do(self, what: str, how: int) -> None:
        if what == "add":
            self.there += [self.client.xadd("orders", {"n": n}) for n in range(how)]
        elif what == "arrive":
            self._arrive(how)
        elif what.startswith("archive"):
            servers = Servers((self.engine.url,), {})
            archiver = Archiver(
                None,
                Archive(self.lake, servers, (b"orders",), max_entries=how, trim="trim" in what, keep_s=0),
            )
            archiver.round()
            archiver.close()
        elif what == "delete" and how < len(self.there):
            self.deleted.add(self.there[how])
            self.client.xdel("orders", self.there[how])
        elif what == "open a view":
            seen = list[str]()
            self.views.append((set(self.there), seen, self._read(seen)))
        elif what == "read on" and self.views:
            for _ in range(how):
                next(self.views[-1][2], None)

    def _arrive(self, count: int) -> None:
        """Entries of another region, some of them with IDs from long ago."""
        natives = [(1000 + self.far + n, 0) for n in range(count)]
        after = (1000 + self.far - 1, 0) if self.far else (0, 0)
        self.client.run_plan(apply(FAR, [(each, (b"n", b"0")) for each in natives], after))
        self.far += count
        self.there += [f"{ms}-2" for ms, _ in natives]

    def _read(self, seen: list[str]) -> Iterator[None]:
        options = {"url": self.engine.url, "lake": self.lake, "streams": "orders", "failOnMissing": "false"}
        reader: Any = DefaultSource(options).reader(META)  # type: ignore[arg-type]
        partitions = reader.partitions()
        worker = pickle.loads(pickle.dumps(reader))

        def go_on() -> Iterator[None]:
            for part in partitions:
                for batch in worker.read(part):
                    seen.extend(row["id"] for row in rows_of([batch]))
                    yield

        return go_on()

    def check(self) -> None:
        for expected, seen, rest in self.views:
            for _ in rest:
                pass
            assert len(seen) == len(set(seen)), "duplicated"
            assert expected - self.deleted <= set(seen), "lost"
            assert set(seen) <= expected, "never there"


@settings(max_examples=60 if NIGHTLY else 20)
@given(actions=ACTIONS)
def test_each_entry_is_there_once_whatever_happens_meanwhile(
    actions: list[tuple[str, int]], engine: Engine
) -> None:
    engine.flush()
    become(engine)
    rows, view.PAGE_ROWS = view.PAGE_ROWS, 2
    try:
        with tempfile.TemporaryDirectory() as folder:
            story = Story(engine, folder + "/lake")
            for what, how in [*actions, ("open a view", 0)]:
                note(f"{what} {how}")
                story.do(what, how)
            story.check()
            story.client.close()
    finally:
        view.PAGE_ROWS = rows


def test_a_trim_in_the_middle_of_a_page_is_made_good_from_the_lake(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "PAGE_ROWS", 2)
    become(engine)
    story = Story(engine, str(tmp_path / "lake"))
    for what, how in [("add", 3), ("archive", 9), ("add", 9), ("open a view", 0), ("read on", 2)]:
        story.do(what, how)
    story.do("archive and trim", 100)
    assert story.client.xlen("orders") == 0
    story.check()
    assert len(story.views[0][1]) == 12
    story.client.close()


def test_options_cut_lake_and_stream_alike(engine: Engine, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    become(engine, id_mode="liberal")
    with client_of(engine, decode_responses=True) as client:
        for day in range(1, 5):
            client.xadd("orders", {"n": day}, id=f"{day * 86_400_000}-1")
        servers = Servers((engine.url,), {})
        archiver = Archiver(None, Archive(lake, servers, (b"orders",), max_entries=3))
        archiver.round()
        archiver.close()

    def days(**options: Any) -> list[int]:
        wanted = {"url": engine.url, "lake": lake, "streamPattern": "or*", **options}
        return sorted(int(row["fields"]["n"]) for row in rows_at_once(wanted))

    assert days() == [1, 2, 3, 4]
    assert days(startingTimestamp="1970-01-03") == [2, 3, 4]
    assert days(endingTimestamp=str(3 * 86_400_000 + 1)) == [1, 2, 3]
    assert days(startingOffsets='{"orders": "172800000-1"}') == [3, 4]
    assert days(regions="2") == []
    assert len(list(Path(lake).rglob("day=1970-01-0*"))) == 3


COLUMNS = Typing.parse(
    "n long, amount double, big decimal(20,2), note string, raw binary, at timestamp, id_ long"
)
ODD: list[dict[bytes, bytes]] = [
    {b"n": b"1", b"amount": b"1.5", b"big": b"1.25", b"note": b"a", b"raw": b"\xff", b"at": b"2026-11-01"},
    {b"n": b"twelve", b"amount": b"1e400", b"big": b"x", b"note": b"\xff", b"at": b"soon", b"id": b"7"},
    {b"n": b" 3 ", b"amount": b"inf", b"tag": b"b"},
    {b"other": b"1"},
]


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_typed_columns_are_read_in_place_of_fields_and_say_the_same(
    engine: Engine, tmp_path: Path, mode: str
) -> None:
    become(engine)
    servers, typed, plain = Servers((engine.url,), {}), str(tmp_path / "typed"), str(tmp_path / "plain")
    with client_of(engine) as client:
        for turn, entries in enumerate(([ODD[0]], ODD, [ODD[0]] * 9)):  # the first ones before the columns
            for each in entries:
                client.xadd("orders", each)  # type: ignore[arg-type]
            client.execute_command("XADD", "orders", "*", "n", "5", "n", "6", "note", "twice")
            for lake in (typed, plain):
                columns = COLUMNS if turn and lake == typed else None
                archiver = Archiver(None, Archive(lake, servers, (b"orders",), schema=columns))
                archiver.round()
                archiver.close()
    texts = [(name, pa.string()) for name in ("tag", "_id", "_corrupt_record")]
    asked = [
        *list(COLUMNS.columns)[:-1],
        ("id", pa.int64()),
        *texts,
        ("_fields", pa.map_(pa.string(), pa.binary())),
    ]
    wanted = from_arrow_schema(pa.schema(asked))
    found = list[Any]()
    for lake in (typed, plain):
        try:
            found.append(rows_at_once({"lake": lake, "streams": "orders", "mode": mode}, wanted))
        except MalformedError as error:
            found.append(str(error))
    assert found[0] == found[1]
    assert isinstance(found[0], str) == (mode == "FAILFAST")


def test_fields_are_not_read_if_typed_columns_are_enough(engine: Engine, tmp_path: Path) -> None:
    become(engine)
    lake = str(tmp_path / "lake")
    with client_of(engine) as client:
        client.xadd("orders", {"n": "1", "amount": "2"})
        schema = Typing.parse("n long, amount long")
        for amount in ({}, {"amount": "3"}):
            client.xadd("orders", {"n": "2", **amount})
            archiver = Archiver(None, Archive(lake, Servers((engine.url,), {}), (b"orders",), schema=schema))
            archiver.round()
            archiver.close()
    columns = list[set[str]]()
    for path in sorted(Path(lake).rglob("*.parquet")):
        for wanted in (Needs((), {"n": pa.int64()}), Needs((), {"n": pa.int64(), "amount": pa.int64()})):
            with pa.parquet.ParquetFile(path) as file:
                columns.append(set(wanted.of(file, 0)) - {"place", "position"})
    one, two, rest = {"n"}, {"n", "amount"}, {"n", "fields"}
    assert columns in ([one, rest, one, two], [one, two, one, rest])
    asked = from_arrow_schema(pa.schema([("amount", pa.int64())]))
    rows = rows_at_once({"lake": lake, "streams": "orders"}, asked)
    assert sorted(row["amount"] or 0 for row in rows) == [0, 2, 3]


def test_a_deleted_stream_is_gone_from_the_view_before_the_lake_knows(engine: Engine, tmp_path: Path) -> None:
    become(engine, id_mode="liberal")
    story = Story(engine, str(tmp_path / "lake"))
    story.client.xadd("orders", {"n": "chosen"}, id="5-5")
    story.do("add", 3)
    story.do("archive", 9)
    story.client.delete("orders")
    options = {"url": engine.url, "lake": story.lake, "streams": "orders"}
    assert rows_at_once(options) == []
    born_again = (
        story.client.xadd("orders", {"n": "chosen"}, id="5-5"),
        story.client.xadd("orders", {"n": "new"}),
    )
    assert sorted(row["id"] for row in rows_at_once(options)) == sorted(born_again)
    story.do("archive", 9)
    assert sorted(row["id"] for row in rows_at_once(options)) == sorted(born_again)
    assert sorted(row["id"] for row in rows_at_once({**options, "url": ""})) == sorted(born_again)
    story.client.close()


def test_a_stream_that_was_adopted_since_it_was_archived_is_refused(
    archive: Run, lake: str, engine: Engine
) -> None:
    """The lake has its entries as those of a native stream, the region as those of a strand."""
    with engine.client() as plain:
        add(plain, 0, 1)
    archive()
    become(engine)
    with client_of(engine) as client:
        assert client.run_plan(adopt(b"orders")).problem == ""
    with pytest.raises(LakeError, match="was adopted since then.* Archive it to another lake"):
        archived(lake, url=engine.url)
    assert archived(lake) == [0, 1]


ARCHIVER = """
    import sys
    from braidstream.spark.options import Servers
    from braidstream.spark.jobs.archive import Archive, Archiver
    url, lake = sys.argv[1:]
    how = {"streams": (b"orders",), "max_entries": 50, "trim": True, "keep_s": 0}
    archiver = Archiver(None, Archive(lake, Servers((url,), {}), **how))
    print("ready", flush=True)
    while True:
        archiver.round()
"""


def test_an_archive_that_is_killed_and_started_again_loses_and_doubles_nothing(
    engine: Engine, tmp_path: Path
) -> None:
    lake, dice, added = str(tmp_path / "lake"), Random(8), 0
    become(engine)
    with client_of(engine) as client:
        for _ in range(4):
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(ARCHIVER), engine.url, lake], stdout=subprocess.PIPE
            )
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                upto = Lake(lake).load().version + dice.randrange(2, 8)
                while Lake(lake).load().version < upto:
                    client.xadd("orders", {"n": added})
                    added += 1
            finally:
                process.send_signal(signal.SIGKILL)
                process.communicate()
            rows = rows_at_once({"url": engine.url, "lake": lake, "streams": "orders"})
            assert sorted(int(row["fields"]["n"]) for row in rows) == list(range(added))
        assert client.xlen("orders") < added, "nothing was trimmed: the archive never came that far"


def test_a_view_is_not_read_from_a_server_that_has_less_than_was_planned(
    archive: Run, lake: str, engine: Engine
) -> None:
    """The server was lost after planning, and the next one is a region that is behind."""
    with Engine() as two:
        world = World([engine, two])
        try:
            add(world[1], 0, 1)
            world.sync()
            archive()
            add(world[1], 2)
            options = {"lake": lake, "streams": "orders", "replicationWait": "0.1s"}
            planned = DefaultSource({**options, "url": engine.url}).reader(META).partitions()  # type: ignore[arg-type]
            behind: Any = DefaultSource({**options, "url": two.url}).reader(META)  # type: ignore[arg-type]
            with pytest.raises(NotReplicatedError):
                [list(behind.read(part)) for part in planned]
        finally:
            world.close()

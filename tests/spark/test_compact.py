"""compact: of each key the last entry stays, as a plain model says, whatever is killed, wherever it runs."""

import json
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from braidstream.cli.main import app
from braidstream.model import keys
from braidstream.spark.jobs import compaction, removal
from braidstream.spark.jobs import compaction as module
from braidstream.spark.jobs.archive import Archive, Archiver
from braidstream.spark.jobs.compaction import Compact, Compactor, Round
from braidstream.spark.lake import rewrite
from braidstream.spark.lake.log import Lake
from braidstream.spark.options import Servers
from braidstream.spark.source.rows import position
from braidstream.spark.source.survey import Surveyor
from tests.support.microbatch import rows_at_once
from tests.support.servers import Engine
from tests.support.world import World

SCHEMA = (
    "stream string, path string, at struct<position: binary, region: int, place: string>, "
    "key string, tombstone boolean, free boolean"
)


def judged(copies: list[dict[str, Any]], settled: int) -> dict[tuple[int, str], str]:
    """The model: what becomes of each copy of one stream, by its ID and file."""
    told = dict[tuple[int, str], str]()
    for key in {copy["key"] for copy in copies} - {None}:
        mine = [copy for copy in copies if copy["key"] == key]
        last = max(copy["id"] for copy in mine)
        stays = [copy for copy in mine if copy["id"] < last and not copy["free"]]
        for copy in mine:
            if copy["id"] < last:
                told[copy["id"], copy["path"]] = "superseded" if copy["free"] else "held"
            elif copy["tombstone"] and copy["id"] < settled:
                told[copy["id"], copy["path"]] = "tombstone" if copy["free"] and not stays else "held"
    return told


def some_copies(dice: Random) -> list[dict[str, Any]]:
    copies = []
    for number in range(dice.randrange(12)):
        key = dice.choice([None, "a", "b", ""])
        entry = {"id": number, "key": key, "tombstone": dice.random() < 0.3, "free": dice.random() < 0.7}
        where = dice.choice([[""], ["file"], ["", "file"]])
        copies += [{**entry, "path": path} for path in where]
    return copies


def test_verdicts_are_those_of_a_plain_model(spark: SparkSession) -> None:
    """Two hundred small streams, each with its own story, in one frame."""
    dice = Random(11)
    stories = {f"s{n}": some_copies(dice) for n in range(200)}
    rows = [
        (
            name,
            copy["path"],
            (position((copy["id"], 0)), 1, "s1"),
            copy["key"],
            copy["tombstone"],
            copy["free"],
        )
        for name, copies in stories.items()
        for copy in copies
    ]
    found = compaction.verdicts(spark.createDataFrame(rows, SCHEMA), position((6, 0))).collect()
    told = {(row.stream, int.from_bytes(row.position[:8]), row.path): row.verdict for row in found}
    assert told == {
        (name, *where): verdict
        for name, copies in stories.items()
        for where, verdict in judged(copies, settled=6).items()
    }


class Story:
    """Entries of three regions, their IDs' milliseconds counted from 1; what should be left of them."""

    def __init__(self, spark: SparkSession, world: World, lake: str | None = None) -> None:
        self.spark, self.world, self.lake = spark, world, lake
        self.dice, self.ms = Random(3), 0
        self.entries = dict[int, dict[str, str]]()

    def add(self, count: int) -> None:
        """A key that comes again, a key that never does, a tombstone, no key at all."""
        for _ in range(count):
            self.ms += 1
            key = self.dice.choice([*"abcdefgh", f"only-{self.ms}", None])
            fields = {"n": str(self.ms)} if key is None or self.dice.random() < 0.7 else {}
            fields |= {} if key is None else {"key": key}
            self.world[self.dice.randrange(3) + 1].xadd("users", fields, id=str(self.ms))
            self.entries[self.ms] = fields
        self.world.sync()

    def compactor(self, region: int, **how: Any) -> Compactor:
        """As of ten seconds after 1970: all is settled."""
        url = self.world.engines[region - 1].url
        how = {"streams": (b"users",), "key": "key", "keep_s": 0, "grace_s": 0, "lake": self.lake, **how}
        return Compactor(self.spark, Compact(servers=Servers((url,), {}), **how))

    def compact(self, region: int, **how: Any) -> Round:
        made = self.compactor(region, **how)
        try:
            return made.round(now_s=10)
        finally:
            made.close()

    def archive(self, region: int, **how: Any) -> Any:
        url = self.world.engines[region - 1].url
        archiver = Archiver(None, Archive(str(self.lake), Servers((url,), {}), (b"users",), keep_s=0, **how))
        try:
            return archiver.round()
        finally:
            archiver.close()

    def wanted(self, free_ms: int = 10**6) -> list[int]:
        """The model: what is left if everything up to a time is free."""
        copies = [
            {
                "id": ms,
                "path": "",
                "key": fields.get("key"),
                "tombstone": fields.keys() == {"key"},
                "free": ms <= free_ms,
            }
            for ms, fields in self.entries.items()
        ]
        gone = {ms for (ms, _), verdict in judged(copies, 10**6).items() if verdict != "held"}
        return sorted(self.entries.keys() - gone)

    def current(self, entries: Iterable[int]) -> dict[str, str]:
        """The keys' values, for a reader of these entries."""
        told = {fields.get("key"): fields.get("n") for ms in sorted(entries) for fields in [self.entries[ms]]}
        return {key: value for key, value in told.items() if key and value}

    def live(self, region: int) -> list[int]:
        return [int(entry.split("-")[0]) for entry, _ in self.world[region].xrange("users")]

    def view(self, region: int) -> list[int]:
        options = {"url": self.world.engines[region - 1].url, "lake": self.lake, "streams": "users"}
        return sorted(int(row["id"].split("-")[0]) for row in rows_at_once(options))


def test_in_three_regions_the_last_of_each_key_stays_and_what_groups_need(
    spark: SparkSession, world: World
) -> None:
    story = Story(spark, world)
    story.add(60)
    world[1].xgroup_create("users", "bills", "0")
    given = world[1].xreadgroup("bills", "anna", {"users": ">"})
    world[1].xack("users", "bills", *(entry for entry, _ in given[0][1]))
    story.add(60)
    world[1].xreadgroup("bills", "anna", {"users": ">"}, count=30)  # not acknowledged
    world.sync()
    one, other = story.compactor(2), story.compactor(3)
    raced = list[Round]()

    def race(phase: str, done: int, total: int | None) -> None:
        if phase.startswith("deleting") and not raced:
            raced.append(Round())
            raced.append(other.round(now_s=10))  # the other one decides and deletes before we do

    one.show = race
    assert one.round(now_s=10).held > 0
    assert raced[1].deleted > 0
    world.sync()
    assert [story.live(region) for region in world] == [story.wanted(60)] * 3
    for entry, _ in world[1].xrange("users"):
        world[1].xack("users", "bills", entry)
    while given := world[1].xreadgroup("bills", "anna", {"users": ">"}):
        world[1].xack("users", "bills", *(entry for entry, _ in given[0][1]))
    assert story.compact(1).held == 0
    world.sync()
    assert [story.live(region) for region in world] == [story.wanted()] * 3
    assert story.compact(2) == Round(entries=len(story.wanted()))


class Killed(Exception):
    """The round ended where the test wanted it to."""


run_plan = Surveyor.run


def die_after_a_deletion(surveyor: Surveyor, make: Any, key: bytes | None = None) -> Any:
    answer = run_plan(surveyor, make, key)
    if getattr(make, "func", None) is removal._drop:
        raise Killed("after a deletion")
    return answer


def die(*_: Any, **__: Any) -> Any:
    raise Killed("before it was done")


replace_in_table = rewrite._replace_in_table


def die_compacting(lake: Lake, streams: Any, made: Any, what: str) -> Any:
    if what == "compact":
        raise Killed("before the commit")
    return replace_in_table(lake, streams, made, what)


KILLS = [
    (Surveyor, "run", die_after_a_deletion),  # some entries are deleted
    (module, "drop", die),  # all that is superseded is gone from the stream, nothing from the lake
    (rewrite, "_replace_in_table", die_compacting),  # files are written, no commit names them
    (module, "tidy", die),  # the lake is done, tombstones are in the stream
]


def test_a_lake_and_its_stream_are_compacted_wherever_a_round_is_killed(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(spark, world, str(tmp_path / "lake"))
    story.add(80)
    story.archive(1, trim=True, max_entries=50)
    world.sync()
    assert 0 < len(story.live(2)) < 80, "some entries should be in the lake alone"
    story.archive(1)
    story.add(10)  # not archived: not touched
    there, truth = set(story.live(1)), story.current(story.entries)
    for seen_in, (where, name, deadly) in zip(cycle(world), KILLS, strict=False):
        with monkeypatch.context() as here:
            here.setattr(where, name, deadly)
            with pytest.raises(Killed):
                story.compact(2)
        world.sync()
        assert story.current(story.view(seen_in)) == truth, f"after a kill at {name}"
    assert story.compact(3).dropped == 0
    world.sync()
    kept = story.wanted(80)
    assert [story.view(region) for region in world] == [kept] * 3
    assert story.live(1) == [ms for ms in kept if ms in there]
    assert (story.archive(1).deleted, story.archive(3).deleted) == (0, 0)
    assert story.view(2) == kept
    assert story.compact(2).left == 0
    world.sync()
    assert story.view(1) == story.wanted()


def test_what_another_one_rewrites_meanwhile_is_left_for_the_next_round(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(spark, world, str(tmp_path / "lake"))
    for _ in range(2):
        story.add(20)
        story.archive(1)

    def late(lake: Lake, streams: Any, made: Any, what: str) -> Any:
        """An archive merges the files that we have just rewritten."""
        if what == "compact":
            state = lake.load()
            rewrite.rewrite(None, lake, state, rewrite.small_files(state, at_least=2), "merge")
        return replace_in_table(lake, streams, made, what)

    with monkeypatch.context() as here:
        here.setattr(rewrite, "_replace_in_table", late)
        done = story.compact(3)
    assert (done.dropped, done.tombstones) == (0, 0)
    assert done.left > 0
    assert story.current(story.view(2)) == story.current(story.entries)
    done = story.compact(3)
    assert (done.left, done.held) == (0, 0)
    world.sync()
    assert story.view(2) == story.live(2) == story.wanted()


def test_deletions_wait_while_a_peer_does_not_read_the_journal(
    spark: SparkSession, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(spark, world)
    story.add(60)
    journal = keys.journal(b"users", 1)
    with monkeypatch.context() as here, world.engines[0].client() as client:
        here.setattr(removal, "JOURNAL_ROOM", 1)
        here.setattr(removal, "PATIENCE_S", 0.2)
        done = story.compact(1)
        assert done.deleted > 0
        assert done.left > 0
        assert client.xlen(journal) == 1
        assert story.current(story.live(1)) == story.current(story.entries)
    assert story.compact(1).left == 0
    world.sync()
    assert [story.live(region) for region in world] == [story.wanted()] * 3


def told_by(*words: str) -> dict[str, Any]:
    told = CliRunner().invoke(app, ["spark", "compact", "--json", *words])
    assert told.exit_code == 0, told.output
    return dict(json.loads(told.stdout))


def test_braid_spark_compact_takes_expressions_and_plain_streams(
    spark: SparkSession, engine: Engine, tmp_path: Path
) -> None:
    lake, url = str(tmp_path / "lake"), engine.url
    with engine.client(decode_responses=True) as client:
        for n in range(12):
            client.xadd("plain", {"user": n % 3, "state": "gone" if n % 3 == 2 else n})
        client.xgroup_create("plain", "bills", "0")
        client.xreadgroup("bills", "anna", {"plain": ">"}, count=4)
        archiver = Archiver(spark, Archive(lake, Servers((url,), {}), (b"plain",)))
        archiver.round()
        archiver.close()
        words = ["--streams", "plain", "--keep", "0s", "--grace", "0s", "--lake", lake]
        words += ["--key-expr", "CAST(fields['user'] AS STRING)", "--tombstone", "fields['state'] = 'gone'"]
        assert told_by(*words, "--url", url)["held"] == 20  # nothing is acknowledged, in two copies each
        alone = told_by(*words)  # the lake alone: groups do not read it
        assert (alone["dropped"], alone["tombstones"], alone["deleted"]) == (10, 1, 0)
        given = client.xreadgroup("bills", "anna", {"plain": ">"}, count=8)
        client.xack("plain", "bills", *(entry for entry, _ in client.xrange("plain")))
        assert len(given[0][1]) == 8
        before = told_by(*words, "--url", url, "--dry-run")
        assert (before["deleted"], before["dropped"]) == (10, 0)
        assert told_by(*words, "--url", url)["deleted"] == 10
        assert [fields["state"] for _, fields in client.xrange("plain")] == ["9", "10"]
    options = {"url": url, "lake": lake, "streams": "plain"}
    assert [bytes(row["fields"]["state"]) for row in rows_at_once(options)] == [b"9", b"10"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--key", "a"], "give a lake, a server, or both"),
        (["--lake", "nowhere", "--key", "a"], "nowhere is not a lake"),
        (
            ["--url", "redis://127.0.0.1:1", "--key", "a", "--key-expr", "b"],
            "either a field or an expression",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_spark_starts(words: list[str], why: str) -> None:
    told = CliRunner().invoke(app, ["spark", "compact", "--streams", "s", *words])
    assert told.exit_code == 2
    assert why in " ".join(told.output.split())

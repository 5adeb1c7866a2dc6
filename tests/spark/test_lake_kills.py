"""Exactly once in a lake, whichever process is killed: archives, compaction and vacuum at once, by SIGKILL.

    producers write, delete  ->  stream  ->  two archives, one with Spark, which trim and merge  ->  lake
                                             a compaction, a vacuum                              ->

A victim is a driver, its JVM or one of its Python workers, at random; it is started again. In the end each
entry that was acknowledged and not deleted is in the table once, and no file is left that no commit needs.
A few kills here; `make kill-lake` does 100, half of them on S3.
"""

import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake import DeltaTable
from pyarrow import fs

from braidstream.errors import LakeError
from braidstream.spark.lake import log
from braidstream.spark.lake.log import LEFT_S, Lake
from tests.support import s3_server
from tests.support.delta_readers import by_duckdb
from tests.support.lake_crew import Crew, crew_of
from tests.support.lake_jobs import KEEP_S, Task
from tests.support.microbatch import rows_at_once
from tests.support.regions import become, client_of, position
from tests.support.servers import Engine

KILLS = int(os.environ.get("BRAID_KILLS", "0"))
# Each with one JVM: two cores start no more of them in an hour.
COMPACTED: Final = ("archive", "archive", "compact", "vacuum")
ARCHIVED: Final = ("archive", "archive-spark", "vacuum")
RUNNING_S: Final = 90.0  # no job needs longer from a file to its commit
RATE_S: Final = 0.2
CHECK_EVERY: Final = 5
PRODUCERS: Final = 2
# So many older ones has an entry that is deleted. The lake keeps the oldest ones: see docs/guides/lake.md.
OLDER: Final = 20
SPECIAL: Final = ("_last_checkpoint",)


@dataclass
class Producer(threading.Thread):
    """Writes entries, and deletes some. A third of them have a key, which compaction keeps the last of."""

    engine: Engine
    number: int
    ids: dict[int, tuple[int, int]] = field(default_factory=dict)  # those that are acknowledged
    keys: dict[int, str] = field(default_factory=dict)
    tombstones: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    doubted: set[int] = field(default_factory=set)  # a deletion was begun
    either: set[int] = field(default_factory=set)  # deleted while among the oldest: the lake may have it
    failed: str = ""

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failed = repr(error)

    def _run(self) -> None:
        dice, n = random.Random(self.number), self.number
        with client_of(self.engine, decode_responses=True) as client:
            while not self.stopped.wait(RATE_S):
                for _ in range(dice.choice([1, 1, 1, 10])):
                    self._add(client, n, dice)
                    n += PRODUCERS
                if dice.random() < 0.2:
                    self._delete(client, dice)

    def _add(self, client: Any, n: int, dice: random.Random) -> None:
        fields: dict[str, Any] = {"n": n, f"f{n % 5 if n < 2000 else n % 9}": "x" * dice.randrange(40)}
        if dice.random() < 0.3:
            self.keys[n] = fields["k"] = f"{self.number}-{dice.randrange(30)}"
            if dice.random() < 0.1:
                fields["gone"] = 1
                self.tombstones.add(n)
        self.ids[n] = position(client.xadd("orders", fields))

    def _delete(self, client: Any, dice: random.Random) -> None:
        recent = [n for n in list(self.ids)[-400:] if n not in self.keys and n not in self.doubted]
        for n in dice.sample(recent, min(len(recent), dice.choice([1, 1, 5]))):
            self.doubted.add(n)
            ms, seq = self.ids[n]
            with client.pipeline() as pipe:
                pipe.xrange("orders", max=f"{ms}-{seq}", count=OLDER + 1)
                pipe.xdel("orders", f"{ms}-{seq}")
                older, is_deleted = pipe.execute()
            if is_deleted:  # else it is trimmed, and the lake keeps it
                (self.deleted if len(older) > OLDER else self.either).add(n)


@dataclass
class Leg:
    """Some kills on one lake."""

    crew: Crew
    engine: Engine
    lake: str
    table: str
    options: dict[str, str]
    env: dict[str, str]
    producers: list[Producer]

    def numbers(self, rows: list[dict[str, Any]]) -> Counter[int]:
        found = (dict(row["fields"]) if isinstance(row["fields"], dict) else _pairs(row) for row in rows)
        return Counter(int(each["n"]) for each in found)

    def in_table(self) -> Counter[int]:
        """What delta-rs reads."""
        table = DeltaTable(self.table, storage_options=self.options)
        return self.numbers(table.to_pyarrow_table(columns=["fields"]).to_pylist())

    def in_view(self) -> Counter[int]:
        return self.numbers(rows_at_once({"url": self.engine.url, "lake": self.lake, "streams": "orders"}))

    def wait_for_table(self) -> None:
        """Until an archive has made the lake, other jobs end because there is none."""
        while not Lake(self.lake).load().files:
            self.crew.pause(0.5)
        self.crew.more_rounds(1)
        self.crew.ends.clear()

    def check_now(self, where: str) -> None:
        """While the jobs run: nothing is twice, and what must be there is there."""
        must = self._must()
        view = _again(self.in_view)
        must -= {n for each in self.producers for n in list(each.doubted)}
        twice = {n: count for n, count in view.items() if count > 1}
        lost = must - set(view)
        assert not twice, f"twice in the view after {where}: {twice}"
        assert not lost, f"lost after {where}: {sorted(lost)[:20]} of {len(lost)}"
        twice = {n: count for n, count in _again(self.in_table).items() if count > 1}
        assert not twice, f"twice in the table after {where}: {twice}"
        assert not [each.failed for each in self.producers if each.failed]

    def _must(self) -> set[int]:
        """Acknowledged, without a key, not deleted."""
        return {n for each in self.producers for n in list(each.ids) if n not in each.keys}

    def wanted(self) -> Counter[int]:
        """In the end: what was not deleted, and the last entry of each key."""
        found = set[int]()
        for each in self.producers:
            found |= {n for n in each.ids if n not in each.keys and n not in each.deleted | each.either}
            if not any(job.task.kind == "compact" for job in self.crew.jobs):
                found |= each.keys.keys()
                continue
            last = {each.keys[n]: n for n in sorted(each.keys, key=each.ids.__getitem__)}
            found |= set(last.values()) - each.tombstones
        return Counter(found)

    def settle(self) -> None:
        """The producers stop, and the jobs complete what there is to do."""
        for each in self.producers:
            each.stopped.set()
            each.join()
        self.crew.pause(KEEP_S)
        deadline, wanted = time.monotonic() + 900, self.wanted()
        while True:
            self.crew.more_rounds(1)
            found = self._certain(_again(self.in_table))
            if found == wanted:
                return
            assert time.monotonic() < deadline, _difference("the table", found, wanted)

    def _certain(self, found: Counter[int]) -> Counter[int]:
        """Without those that may be there or not; with them if they are there twice."""
        either = set[int]().union(*(each.either for each in self.producers))
        return Counter({n: count for n, count in found.items() if count > 1 or n not in either})

    def check_end(self) -> int:
        """Nothing runs any more. Returns how many orphans there were."""
        wanted = self.wanted()
        assert not self.crew.hung, self.crew.hung
        # A vacuum at once, as `forget` does it, may delete a file that another job has begun to read.
        raced = ("was deleted", "is missing. If another job has rewritten it")
        assert all(any(text in why for text in raced) for why in self.crew.ends), self.crew.report()
        seen = {"delta-rs": self.in_table(), "view": self.in_view()}
        seen["lake"] = self.numbers(rows_at_once({"lake": self.lake, "streams": "orders"}))
        if not self.env:
            seen["duckdb"] = Counter(int(dict(fields)["n"]) for _, _, fields in by_duckdb(self.table))
        for reader, found in seen.items():
            assert self._certain(found) == wanted, _difference(reader, self._certain(found), wanted)
        return self.check_orphans()

    def check_orphans(self) -> int:
        """Two days later a vacuum has deleted what no commit needs, and nothing else."""
        before = self.orphans()
        self.age(0)
        with pytest.MonkeyPatch.context() as here:
            now_s = time.time() + 2 * LEFT_S
            here.setattr(log.time, "time", lambda: now_s)
            Lake(self.lake).vacuum(grace_s=0)
        assert self.orphans() == [], f"of {len(before)}"
        assert self._certain(self.in_table()) == self.wanted()
        return len(before)

    def orphans(self) -> list[str]:
        home = Lake(self.lake)
        state, store = home.load(), home.store
        needed = {*state.files}
        for folder, number in state.documents.items():
            if number is not None:
                needed.add(log._document(folder, number))
        found = store.fs.get_file_info(fs.FileSelector(store.base, recursive=True))
        paths = {each.path.removeprefix(f"{store.base}/") for each in found if each.type == fs.FileType.File}
        return sorted(path for path in paths - needed if not _is_log(path))

    def age(self, older_s: float) -> None:
        """Files that are older than that become two days older: of a job that was killed long ago. Not the
        commits: delta-rs deletes old ones, and a commit may just read them."""
        if self.env:
            s3_server.age(self.env, older_s, 2 * LEFT_S)
            return
        for path in Path(self.lake).rglob("day=*/*"):
            try:
                written = path.stat().st_mtime
                if path.is_file() and time.time() - LEFT_S < written < time.time() - older_s:
                    os.utime(path, (written - 2 * LEFT_S,) * 2)
            except FileNotFoundError:  # a job has deleted it
                continue


def _pairs(row: dict[str, Any]) -> dict[str, bytes]:
    return {pair["name"]: pair["value"] for pair in row["fields"]}


def _is_log(path: str) -> bool:
    """Whether a file is of Delta's log: a commit, a checkpoint."""
    *_, folder, name = ("", *path.split("/"))
    return folder == "_delta_log" and (
        name in SPECIAL or name[:20].isdigit() and "tmp" not in name and "#" not in name
    )


def _again(read: Any) -> Counter[int]:
    """Read, once more if a vacuum has deleted files that the read had begun with."""
    for _ in range(20):
        try:
            return Counter(read())
        except (LakeError, OSError) as error:
            last = error
        except Exception as error:
            if "not found" not in str(error).lower():
                raise
            last = error
    raise last


def _difference(reader: str, found: Counter[int], wanted: Counter[int]) -> str:
    lost, more = sorted((wanted - found).elements()), sorted((found - wanted).elements())
    return f"{reader}: {len(lost)} lost {lost[:10]}, {len(more)} too many {more[:10]}"


@contextmanager
def leg_of(
    folder: Path, dice: random.Random, jobs: tuple[str, ...], *, is_remote: bool, has_table: bool
) -> Iterator[Leg]:
    """has_table: of the stream, with typed columns; else one of all streams."""
    folder.mkdir()
    with ExitStack() as stack:
        env, lake = dict[str, str](), str(folder / "lake")
        if is_remote:
            env, bucket = stack.enter_context(s3_server.s3_server()), f"lakes-{uuid.uuid4().hex}"
            lake = f"s3://{bucket}/lake"
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name, value in env.items():
                patch.setenv(name, value)
            s3_server.make_bucket(env, bucket)
        engine = stack.enter_context(Engine("redis-8.10"))
        become(engine)
        producers = [Producer(engine, number) for number in range(PRODUCERS)]
        for each in producers:
            each.start()
            stack.callback(each.stopped.set)
        with client_of(engine) as client:
            while not client.exists("orders"):
                time.sleep(0.01)
        tasks = [Task(kind, engine.url, lake, has_table) for kind in jobs]
        crew = crew_of(tasks, env, folder, dice)
        crew.start()
        stack.callback(crew.stop)
        table = f"{lake}/orders" if has_table else lake
        yield Leg(crew, engine, lake, table, Lake(lake).store.options, env, producers)


def run(leg: Leg, kills: int, title: str) -> None:
    began = time.monotonic()
    leg.wait_for_table()
    for number in range(1, kills + 1):
        where = leg.crew.kill()
        print(f"{title}: kill {number} of {kills}, {where}, {time.monotonic() - began:.0f} s", flush=True)
        leg.age(RUNNING_S)
        if number % CHECK_EVERY == 0:
            leg.check_now(where)
    leg.settle()
    leg.crew.stop()
    orphans = leg.check_end()
    sent = sum(len(each.ids) for each in leg.producers)
    deleted = sum(len(each.deleted) for each in leg.producers)
    kept, version = len(leg.wanted()), Lake(leg.lake).load().version
    print(f"{title}: {sent} entries sent, {deleted} deleted, {kept} kept, {version} commits")
    print(f"{title}: {orphans} orphans before the last vacuum, 0 after it; 0 lost, 0 twice")
    print(leg.crew.report(), flush=True)


def seeded() -> tuple[int, random.Random]:
    seed = int(os.environ.get("BRAID_SEED") or random.SystemRandom().randrange(10**6))
    print(f"seed {seed}", flush=True)
    return seed, random.Random(seed)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("jobs", "is_remote"),
    [
        pytest.param(("archive", "compact", "vacuum"), False, id="local"),
        pytest.param(
            ("archive", "archive", "vacuum"),
            True,
            marks=pytest.mark.nightly("In CI: the local one, and test_lake_s3.py"),
            id="s3",
        ),
    ],
)
def test_each_entry_is_in_the_table_once_after_a_few_kills(
    tmp_path: Path, jobs: tuple[str, ...], is_remote: bool
) -> None:
    _, dice = seeded()
    with leg_of(tmp_path / "leg", dice, jobs, is_remote=is_remote, has_table=True) as leg:
        run(leg, 2, "short")


@pytest.mark.skipif(not KILLS, reason="make kill-lake does this: 100 kills")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("jobs", "is_remote", "has_table"),
    [
        (COMPACTED, False, True),
        (ARCHIVED, False, False),
        (ARCHIVED, True, True),
        (COMPACTED, True, False),
    ],
    ids=["local-compacted", "local-archived", "s3-archived", "s3-compacted"],
)
def test_each_entry_is_in_the_table_once_after_many_kills(
    tmp_path: Path, jobs: tuple[str, ...], is_remote: bool, has_table: bool
) -> None:
    """A quarter of the kills each."""
    seed, dice = seeded()
    place = f"{'S3' if is_remote else 'local'}, {'own table' if has_table else 'one table'}"
    with leg_of(tmp_path / "leg", dice, jobs, is_remote=is_remote, has_table=has_table) as leg:
        run(leg, KILLS // 4, f"seed {seed}, {place}")

"""Rewrites files of a lake, as Spark jobs: merges small ones, drops entries.

Dropped entries are gone from disk when the replaced files are deleted, by default a day later (log.py).
"""

from bisect import bisect, bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from braidstream.plan.retries import TRIES
from braidstream.spark import tasks
from braidstream.spark.lake.files import FACTS, FILE_BYTES, FILE_ROWS, facts_batch, facts_of, merged
from braidstream.spark.lake.log import Change, Conflict, File, Lake, State
from braidstream.spark.source.rows import position, split

SMALL: Final = 8  # the least number of small files of a stream and day to merge

Drop = tuple[str, str, bytes]  # a file's path, a place, concatenated positions


@dataclass(frozen=True, slots=True)
class Task:
    """Files of one stream and day to merge. drops: by place, concatenated positions."""

    stream: str
    paths: tuple[str, ...]
    drops: Mapping[str, bytes] = field(default_factory=dict)


def small_files(state: State, *, at_least: int = SMALL) -> list[Task]:
    """Which files to merge: of each stream and day the small ones, as many as make a whole one.

    Of a stream's last day only files of similar size are merged: more of them come all the time, and an entry
    would be rewritten whenever there are eight.
    """
    last_days = dict[str, str]()
    for file in state.files.values():
        last_days[file.stream] = max(file.day, last_days.get(file.stream, ""))
    groups = dict[tuple[str, str, int], list[File]]()
    for file in state.files.values():
        if file.rows < FILE_ROWS // 4 and file.bytes < FILE_BYTES // 4:
            size = (file.rows.bit_length() + 2) // 3 if file.day == last_days[file.stream] else 0
            groups.setdefault((file.stream, file.day, size), []).append(file)
    found = list[Task]()
    for (stream, *_), files in sorted(groups.items()):
        part, rows, size = list[File](), 0, 0
        ordered: list[File | None] = [*sorted(files, key=lambda one: one.first), None]
        for each in ordered:
            full = rows >= FILE_ROWS or size >= FILE_BYTES
            if each is None or full:
                if len(part) >= (2 if full else at_least):
                    found.append(Task(stream, tuple(one.path for one in part)))
                part, rows, size = [], 0, 0
            if each is not None:
                part.append(each)
                rows, size = rows + each.rows, size + each.bytes
    return found


def holding(state: State, stream: str, place: str, positions: Sequence[bytes]) -> Iterator[Drop]:
    """Which files may hold entries of a strand. They are given in order."""
    for each in state.files.values():
        if each.stream == stream and each.places[0] <= place <= each.places[1]:
            low, high = bisect_left(positions, position(each.first)), bisect(positions, position(each.last))
            if low < high:
                yield each.path, place, b"".join(positions[low:high])


def without(state: State, drops: Iterable[Drop]) -> list[Task]:
    """Tasks that rewrite files without these entries."""
    found = dict[str, dict[str, bytearray]]()
    for path, place, positions in drops:
        found.setdefault(path, {}).setdefault(place, bytearray()).extend(positions)
    return [
        Task(state.files[path].stream, (path,), {place: bytes(each) for place, each in places.items()})
        for path, places in found.items()
    ]


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a rewrite did. undone: streams that are unchanged, because another job has rewritten a file."""

    entries: int = 0
    files: int = 0
    undone: frozenset[str] = frozenset()


def rewrite(
    spark: tasks.Session, lake: Lake, state: State, listed: Sequence[Task], what: str, *, local: int = 0
) -> Dropped:
    """Rewrite files of a state as tasks say, and commit. Safe to kill and repeat. local: as in tasks.run."""
    streams = {path: task.stream for task in listed for path in task.paths}
    try:
        with lake.reading(state):
            weights = [sum(state.files[path].rows for path in task.paths) for task in listed]
            rows = tasks.run(spark, listed, partial(_merge, lake.root), FACTS, weights, local=local)
    except Conflict:
        return Dropped(undone=frozenset(streams.values()))
    return _replace(lake, streams, [facts_of(row) for row in rows], what)


def tidy(spark: tasks.Session, lake: Lake, *, local: int = 0) -> int:
    """Merge small files, and delete files that no commit needs. Returns how many files were merged."""
    state = lake.load()
    done = rewrite(spark, lake, state, small_files(state), "merge", local=local)
    lake.tend()
    return done.files


def drop(lake: Lake, frame: DataFrame, what: str = "compact") -> Dropped:
    """Drop the entries of a frame (stream, path, place, position) from their files.

    The entries never pass through the driver. Safe to kill and repeat.
    """
    streams = {row.path: row.stream for row in frame.select("path", "stream").distinct().collect()}
    if not streams:
        return Dropped()
    root = lake.root

    def work(table: pa.Table) -> pa.Table:
        [path], [stream] = (table[name].unique().to_pylist() for name in ("path", "stream"))
        drops = {
            place: table.filter(pc.equal(table["place"], place))["position"].to_pylist()
            for place in table["place"].unique().to_pylist()
        }
        return pa.Table.from_batches([facts_batch(merged(root, stream, [path], drops))])

    made = [facts_of(row.asDict()) for row in frame.groupBy("path").applyInArrow(work, FACTS).collect()]
    return _replace(lake, streams, made, what)


def _replace(lake: Lake, streams: Mapping[str, str], made: Sequence[File], what: str) -> Dropped:
    """Commit files in place of others (paths, each with its stream). A commit has all changes of a stream or
    none, so readers see a stream before or after."""
    done = Dropped()
    for table in sorted({lake.table_of(stream) for stream in streams.values()}):
        here = {path: stream for path, stream in streams.items() if lake.table_of(stream) == table}
        one = _replace_in_table(lake, here, made, what)
        done = Dropped(done.entries + one.entries, done.files + one.files, done.undone | one.undone)
    return done


def _replace_in_table(lake: Lake, streams: Mapping[str, str], made: Sequence[File], what: str) -> Dropped:
    ours = [file for file in made if file.stream in set(streams.values())]
    for _ in range(TRIES):
        state = lake.load()
        undone = frozenset(stream for path, stream in streams.items() if path not in state.files)
        taken = [path for path, stream in streams.items() if stream not in undone]
        added = [file for file in ours if file.stream not in undone]
        entries = sum(state.files[path].rows for path in taken) - sum(each.rows for each in added)
        try:
            if taken:
                state = lake.commit(state, Change(what, add=tuple(added), remove=tuple(taken)))
        except Conflict:
            continue
        _discard(lake, state, ours)
        return Dropped(entries, len(taken), undone)
    _discard(lake, lake.load(), ours)
    return Dropped(undone=frozenset(streams.values()))


def _discard(lake: Lake, state: State, files: Sequence[File]) -> None:
    """Delete files that were not committed: they may have entries that have been forgotten since."""
    lake.store.delete({each.path for each in files} - set(state.files))


def _merge(root: str, listed: Iterator[Task]) -> Iterator[pa.RecordBatch]:
    for each in listed:
        drops = {place: split(found) for place, found in each.drops.items()}
        yield facts_batch(merged(root, each.stream, each.paths, drops))

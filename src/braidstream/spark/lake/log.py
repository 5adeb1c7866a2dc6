"""The log of a lake: numbered commits. A file counts only if a commit names it.

    LAKE/log/00000000000000000001.json            added files, removed files, how far streams are archived
    LAKE/log/00000000000000000020.state.json      the sum of all commits so far, so that few must be read
    LAKE/data/stream=orders/day=2026-11-15/4f2c....parquet

A commit links a finished file to its name, which fails if the name exists. So if two jobs commit at once, one
wins, the other reads the log again and retries; and a reader sees all of a commit or nothing. The commit that
adds entries also has the archive's position, so there is no separate checkpoint that could contradict it.

A file that a commit removes stays on disk for a while (GRACE_S), for its readers. A file that no commit names
may belong to a running job, so it stays longer (LEFT_S); and a commit refuses a file that is missing.
"""

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from braidstream.errors import LakeError
from braidstream.model import ids
from braidstream.model.frontier import Frontier
from braidstream.model.ids import Id
from braidstream.spark.source.offsets import Offset

LOG, DATA = "log", "data"
SUM_EVERY: Final = 20
KEEP_COMMITS: Final = 200
GRACE_S: Final = 3600.0
LEFT_S: Final = 86_400.0
FORM: Final = 1


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file: entries of one stream and one day, sorted by ID, from `first` to `last` (user IDs).

    places: their strands.
    """

    path: str
    stream: str
    day: str
    rows: int
    bytes: int
    first: Id
    last: Id
    places: tuple[str, ...]

    @property
    def stored(self) -> dict[str, Any]:
        ends = {"first": ids.text(self.first).decode(), "last": ids.text(self.last).decode()}
        plain = ("path", "stream", "day", "rows", "bytes")
        return {**{name: getattr(self, name) for name in plain}, **ends, "places": list(self.places)}

    @staticmethod
    def parse(stored: Mapping[str, Any]) -> "File":
        return File(
            path=str(stored["path"]),
            stream=str(stored["stream"]),
            day=str(stored["day"]),
            rows=int(stored["rows"]),
            bytes=int(stored["bytes"]),
            first=ids.native(str(stored["first"]).encode()),
            last=ids.native(str(stored["last"]).encode()),
            places=tuple(stored["places"]),
        )


@dataclass(frozen=True, slots=True)
class State:
    """A lake as of one commit.

    offset: up to where each strand is archived, and how many entries were added to it by then.
    retired: files that commits removed, and when; they are still on disk.
    removed: how many entries of each strand the engine had removed when the two were last compared.
    journals: up to where deletions of the journals were applied. Both by stream.
    """

    version: int = 0
    offset: Offset = field(default_factory=lambda: Offset(Frontier({})))
    files: Mapping[str, File] = field(default_factory=dict)
    retired: Mapping[str, float] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    journals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def stored(self) -> dict[str, Any]:
        return {
            "form": FORM,
            "version": self.version,
            "offset": self.offset.stored,
            "files": [each.stored for each in self.files.values()],
            "retired": dict(self.retired),
            "removed": dict(self.removed),
            "journals": dict(self.journals),
        }

    @staticmethod
    def parse(stored: Mapping[str, Any]) -> "State":
        return State(
            version=int(stored["version"]),
            offset=Offset.parse(stored["offset"]),
            files={each["path"]: File.parse(each) for each in stored["files"]},
            retired=dict(stored["retired"]),
            removed=stored["removed"],
            journals=stored["journals"],
        )


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit changes; None: unchanged. gone: retired files that were deleted from disk."""

    what: str
    add: tuple[File, ...] = ()
    remove: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    offset: Offset | None = None
    removed: Mapping[str, Mapping[str, int]] | None = None
    journals: Mapping[str, Mapping[str, str]] | None = None

    def stored(self, version: int, at: float) -> dict[str, Any]:
        stored: dict[str, Any] = {"form": FORM, "version": version, "what": self.what, "at": at}
        stored["add"] = [each.stored for each in self.add]
        stored |= {"remove": list(self.remove), "gone": list(self.gone)}
        if self.offset is not None:
            stored["offset"] = self.offset.stored
        for name in ("removed", "journals"):
            if getattr(self, name) is not None:
                stored[name] = getattr(self, name)
        return stored


class Conflict(Exception):
    """Another job has committed meanwhile."""


def after(state: State, commit: Mapping[str, Any]) -> State:
    """The state after one more commit."""
    files, retired = dict(state.files), dict(state.retired)
    for path in commit["remove"]:
        if files.pop(path, None) is not None:
            retired[path] = float(commit["at"])
    for path in commit["gone"]:
        retired.pop(path, None)
    files |= {each["path"]: File.parse(each) for each in commit["add"]}
    return State(
        version=int(commit["version"]),
        offset=Offset.parse(commit["offset"]) if "offset" in commit else state.offset,
        files=files,
        retired=retired,
        removed=commit.get("removed", state.removed),
        journals=commit.get("journals", state.journals),
    )


class Lake:
    """A folder that every Spark node has at the same path."""

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path)

    @property
    def _log(self) -> Path:
        return self.root / LOG

    def file(self, path: str) -> Path:
        return self.root / path

    @property
    def exists(self) -> bool:
        return self._log.is_dir()

    def load(self) -> State:
        """The lake as it is now: the last sum, and the commits after it."""
        names = os.listdir(self._log) if self.exists else []
        sums = sorted(int(name.split(".")[0]) for name in names if name.endswith(".state.json"))
        state = State.parse(self._read(self._log / _sum_name(sums[-1]))) if sums else State()
        commits = (int(name[:-5]) for name in names if name[:-5].isdigit() and name.endswith(".json"))
        for version in sorted(each for each in commits if each > state.version):
            if version != state.version + 1:
                raise LakeError(
                    f"{self.root}: commit {state.version + 1} is missing. Restore it from a backup."
                )
            state = after(state, self._read(self._log / _commit_name(version)))
        return state

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            stored: dict[str, Any] = json.loads(path.read_bytes())
        except ValueError as error:
            raise LakeError(f"{path}: cannot be read ({error}). Restore it from a backup.") from None
        if stored.get("form") != FORM:
            raise LakeError(
                f"{path}: has format {stored.get('form')}, this braidstream supports {FORM}. Upgrade it."
            )
        return stored

    def commit(self, state: State, change: Change) -> State:
        """Add a commit after that of `state`. Conflict if another job has added one."""
        for each in change.add:
            if not self.file(each.path).is_file():
                raise LakeError(
                    f"{self.root}: {each.path} was deleted before its commit. If the job took longer than "
                    f"{LEFT_S / 3600:g} hours, another job has cleaned it up. Nothing was committed: run it "
                    "again, on fewer entries at a time."
                )
        self._log.mkdir(parents=True, exist_ok=True)
        version = state.version + 1
        stored = change.stored(version, time.time())
        draft = self._draft(stored)
        try:
            os.link(draft, self._log / _commit_name(version))
        except FileExistsError:
            raise Conflict(f"commit {version} is taken") from None
        finally:
            draft.unlink()
        _sync(self._log)
        made = after(state, stored)
        if version % SUM_EVERY == 0:
            os.replace(self._draft(made.stored), self._log / _sum_name(version))
            self._forget_commits(version)
        return made

    def _draft(self, stored: Mapping[str, Any]) -> Path:
        draft = self._log / f".{uuid.uuid4().hex}"
        with draft.open("wb") as out:
            out.write(json.dumps(stored, separators=(",", ":")).encode())
            out.flush()
            os.fsync(out.fileno())
        return draft

    def _forget_commits(self, version: int) -> None:
        """Delete old commits and sums. A reader that needs them is too slow and starts over."""
        for name in os.listdir(self._log):
            number = name.split(".")[0]
            if number.isdigit() and int(number) < version - KEEP_COMMITS:
                (self._log / name).unlink(missing_ok=True)

    def vacuum(self, state: State, grace_s: float = GRACE_S) -> State:
        """Delete files from disk: retired ones, and those that a killed run has left, after a while."""
        now = time.time()
        due = [path for path, at in state.retired.items() if now - at >= grace_s]
        for path in due:
            self.file(path).unlink(missing_ok=True)
        self._sweep(now, {*state.files, *state.retired})
        return self.commit(state, Change("vacuum", gone=tuple(due))) if due else state

    def _sweep(self, now: float, known: Set[str]) -> None:
        """Delete files that a killed run has left."""
        found = [path for path in (self.root / DATA).rglob("*.parquet") if now - _written(path) >= LEFT_S]
        left = {str(path.relative_to(self.root)) for path in found} - known
        if left:
            now_known = self.load()  # some may have been committed since `known` was
            for path in left - {*now_known.files, *now_known.retired}:
                self.file(path).unlink(missing_ok=True)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another job has deleted it
        return time.time()


def _commit_name(version: int) -> str:
    return f"{version:020d}.json"


def _sum_name(version: int) -> str:
    return f"{version:020d}.state.json"


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def within(files: Iterable[File], stream: str, place: str, low: Id, high: Id) -> list[File]:
    """The files that may have entries of a strand after `low` up to `high` (user IDs)."""
    return [
        each
        for each in files
        if each.stream == stream and place in each.places and each.first <= high and each.last > low
    ]


def moved(offset: Offset, others: Mapping[Any, Id], counts: Mapping[Any, int], region: int | None) -> Offset:
    """The offset after more entries were archived, up to `others`."""
    kept = dict(offset.counts) if offset.region == region else {}
    frontier = offset.frontier.join(Frontier(others))
    return replace(offset, frontier=frontier, counts={**kept, **counts}, region=region, initial=False)

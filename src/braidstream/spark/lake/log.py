"""The log of a lake: Delta tables in a folder or an object store, written by delta-rs.

    LAKE/orders/_delta_log/                  archive --streams: a table for each stream
    LAKE/_delta_log/                         archive --pattern: one table of all streams
    TABLE/day=2026-11-15/FIRST_LAST_UUID.parquet
    TABLE/_braid/17a3f0....json              how far the streams are archived

Delta has no place for the archive's position, only for a number: a commit has the transaction ("braidstream",
V), and V names a document that was written before. So files and position change in one step, and there is no
separate checkpoint that could contradict it. V is unique: a job that loses a race never overwrites the
document of the winner.

If two jobs commit at once, one gets Conflict, reads the log again and retries. By default delta-rs would
retry for it and add entries twice: never commit without max_commit_retries=0 and the transaction.

A file that a commit removes stays on disk as long as the table's own property says, for its readers and for
time travel. A file that no commit names may belong to a running job, so it stays for at least a day (LEFT_S);
and a commit refuses a file that is missing.
"""

import contextlib
import json
import os
import random
import re
import time
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs
from pyarrow.fs import FileType

from braidstream.errors import LakeError, OptionError
from braidstream.model import ids
from braidstream.model.frontier import Frontier, name_of_text, name_text, place_text
from braidstream.model.ids import Id
from braidstream.model.strand import Strand
from braidstream.plan.retries import TRIES
from braidstream.spark.lake.typed_columns import OWN, RESCUED
from braidstream.spark.source.offsets import Offset, adopted
from braidstream.spark.source.rows import ENTRIES

# ----------------------------------------------------------------------------------------------------
# Values of a lake: its files, its state as of a commit, and what a commit changes.

_SAFE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_LIKE_DIGEST: Final = re.compile(r"-[0-9a-f]{16}\Z")


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file: entries of one stream and one day, from `first` to `last` (user IDs).

    places: the first and last name of their strands. stats: for Delta, of a file that is to be added.
    """

    path: str
    stream: str
    day: str
    rows: int
    bytes: int
    first: Id
    last: Id
    places: tuple[str, str]
    stats: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A lake as of one commit of each table. Keys of versions, documents and offsets: folders of tables.

    offsets: up to where each strand is archived, and how many entries were added to it by then.
    By stream: removed: how many entries of each strand a region had removed when the two were last compared.
    journals: up to where deletions of the journals were applied. doubts: entries of a strand up to here are
    not compared in a region, because it has lost some of them. mended: in which ranges of a region restored
    entries were archived.
    """

    versions: Mapping[str, int] = field(default_factory=dict)
    documents: Mapping[str, int | None] = field(default_factory=dict)
    offsets: Mapping[str, Offset] = field(default_factory=dict)
    frontier: Frontier = field(default_factory=lambda: Frontier({}))
    files: Mapping[str, File] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    journals: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    doubts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mended: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def version(self) -> int:
        """Grows with each commit."""
        return sum(self.versions.values())

    def offset(self, strand: Strand) -> Offset:
        """The offset of the table that has a strand."""
        nothing = Offset(Frontier({}))
        return self.offsets.get("", self.offsets.get(folder_of(name_text(strand.name)), nothing))


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit changes; None: unchanged. offsets: by table."""

    what: str
    add: tuple[File, ...] = ()
    remove: tuple[str, ...] = ()
    offsets: Mapping[str, Offset] = field(default_factory=dict)
    removed: Mapping[str, Mapping[str, int]] | None = None
    journals: Mapping[str, Mapping[str, str]] | None = None
    doubts: Mapping[str, Mapping[str, str]] | None = None
    mended: Mapping[str, Mapping[str, str]] | None = None


# Facts about streams that a commit notes in its document, in addition to the offsets.
NOTES: Final = ("removed", "journals", "doubts", "mended")


class Conflict(Exception):
    """Another job has committed meanwhile. added: files that are committed, in tables before this one."""

    def __init__(self, why: str, added: tuple[File, ...] = ()) -> None:
        super().__init__(why)
        self.added = added


def place_in(strand: Strand, region: int | None) -> str:
    """The key of a strand for what is known of one region: regions count differently."""
    return place_text(strand) if region is None else f"{place_text(strand)}@{region}"


def refuse_adopted(state: State, there: Iterable[Strand], region: int | None) -> None:
    """LakeError if a native stream was adopted since it was archived."""
    for error in adopted_since(state, there, region).values():
        raise error


def adopted_since(state: State, there: Iterable[Strand], region: int | None) -> dict[bytes, LakeError]:
    """Native streams that were adopted since they were archived: each is another strand now."""
    return {
        strand.name: LakeError(
            f"stream {name_text(strand.name)}: it was archived as a native stream, and was adopted "
            "since then (braid adopt). Archive it to another lake."
        )
        for strand in adopted(state.frontier, there, region)
    }


def folder_of(stream: str) -> str:
    """The folder of a stream's table: its name, or one like it that is safe in paths and URLs."""
    if _SAFE.match(stream) and not _LIKE_DIGEST.search(stream):
        return stream
    like = re.sub(r"[^A-Za-z0-9_.-]", "_", stream)[:60].lstrip("_.-") or "stream"
    return f"{like}-{sha256(stream.encode()).hexdigest()[:16]}"


def within(files: Iterable[File], stream: str, place: str, low: Id, high: Id) -> list[File]:
    """The files that may have entries of a strand after `low` up to `high` (user IDs)."""
    return [
        each
        for each in files
        if each.stream == stream
        and each.places[0] <= place <= each.places[1]
        and each.first <= high
        and each.last > low
    ]


# ----------------------------------------------------------------------------------------------------
#
# Where a lake is: a folder that every Spark node has at the same path, or s3://, gs://, abfss://.
#
# Credentials come from the usual environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on.

HIDDEN: Final = "_braid"  # a folder that readers and Delta's vacuum skip
PROBE: Final = "probe-"  # how tables in it begin that probes make


class Store:
    """Files of one lake, named by their path below its root."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        self.is_local = "://" not in root
        self.fs, self.base = (
            (fs.LocalFileSystem(), os.path.abspath(self.root)) if self.is_local else _remote(self.root)
        )

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs needs in addition to the environment."""
        if not self.root.startswith("s3"):
            return {}
        http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        return {"aws_conditional_put": "etag", **({"AWS_ALLOW_HTTP": "true"} if http else {})}

    def uri(self, folder: str) -> str:
        return "/".join(filter(None, [self.base if self.is_local else self.root, folder]))

    def path(self, path: str) -> str:
        return f"{self.base}/{path}"

    def open(self, path: str) -> Any:
        return self.fs.open_input_file(self.path(path))

    def create(self, path: str) -> Any:
        """A stream to a new file, to be closed and then synced."""
        if self.is_local:
            os.makedirs(os.path.dirname(self.path(path)), exist_ok=True)
        return self.fs.open_output_stream(self.path(path))

    def sync(self, path: str) -> int:
        """Sync a closed file and its folder to disk; an object store has done so. Returns its size."""
        if self.is_local:
            for place in (self.path(path), os.path.dirname(self.path(path))):
                handle = os.open(place, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
        return int(self.fs.get_file_info(self.path(path)).size)

    def missing(self, paths: Sequence[str]) -> list[str]:
        found = self.fs.get_file_info([self.path(each) for each in paths])
        return [path for path, info in zip(paths, found, strict=True) if info.type != fs.FileType.File]

    def list(self, folder: str = "") -> list[Any]:
        """Files and folders in a folder; empty if there is none."""
        return list(self.fs.get_file_info(fs.FileSelector(self.path(folder), allow_not_found=True)))

    def delete(self, paths: Iterable[str]) -> int:
        gone = 0
        for path in paths:
            try:
                self.fs.delete_file(self.path(path))
                gone += 1
            except FileNotFoundError:  # another job has deleted it
                continue
        return gone

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another job has deleted it
            self.fs.delete_dir(self.path(folder))


def _remote(root: str) -> tuple[Any, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if not root.startswith("s3") or not endpoint:
        found, base = fs.FileSystem.from_uri(root)
        return found, base
    scheme, _, host = endpoint.partition("://")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return fs.S3FileSystem(endpoint_override=host, scheme=scheme, region=region), root.partition("://")[2]


@lru_cache(maxsize=32)
def store_of(root: str) -> Store:
    return Store(root)


# ----------------------------------------------------------------------------------------------------
# Log

APP: Final = "braidstream"
FORM: Final = 1
LEFT_S: Final = 86_400.0
VACUUM_EVERY_S: Final = 600.0
STORED: Final = ENTRIES.insert(0, pa.field("stream", pa.string(), False))
TABLE: Final = STORED.append(pa.field("day", pa.date32(), False))
RETENTION: Final = "delta.deletedFileRetentionDuration"
SETTINGS: Final = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    RETENTION: "interval 1 days",
}
_INTERVAL: Final = re.compile(r"interval\s+(\d+)\s+(second|minute|hour|day|week)s?\s*\Z", re.IGNORECASE)
_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_NAMED: Final = re.compile(r"(\d+-\d+)_(\d+-\d+)_[0-9a-f]{32}\.parquet\Z")
_ANY_PLACE: Final = ("", "\U0010ffff")


class Lake:
    """A folder of tables. streams: read only their tables. is_one: a new lake is one table of all streams."""

    def __init__(self, root: str, streams: Collection[bytes] | None = None, *, is_one: bool = False) -> None:
        self.root, self.store = str(root), store_of(str(root))
        self._streams = None if streams is None else frozenset(map(name_text, streams))
        self.is_one = is_one
        self._tables = dict[str, DeltaTable]()
        self._states = dict[str, State]()
        self._vacuumed = -VACUUM_EVERY_S

    def __reduce__(self) -> Any:
        streams = None if self._streams is None else tuple(map(name_of_text, self._streams))
        return _lake, (self.root, streams, self.is_one)

    def look(self) -> set[str]:
        """The folders of tables that are there. They decide whether the lake is one table."""
        here = {each.base_name for each in self.store.list() if each.type == FileType.Directory}
        tables = {name for name in here if not name.startswith(("_", ".", "stream="))}
        if tables or "_delta_log" in here:
            self.is_one = "_delta_log" in here
        return {""} if "_delta_log" in here else tables

    def table_of(self, stream: str) -> str:
        return "" if self.is_one else folder_of(stream)

    def prefix(self, stream: str) -> str:
        """Where files of a stream are."""
        return f"stream={folder_of(stream)}" if self.is_one else folder_of(stream)

    def load(self) -> State:
        """The lake as it is now."""
        folders = {""} if "" in self._tables else self.look()
        if self._streams is not None and folders != {""}:
            folders &= set(map(folder_of, self._streams))
        found = [state for state in map(self._load, sorted(folders)) if state is not None]
        if len(found) == 1:
            return found[0]
        at = {strand: native for state in found for strand, native in state.frontier.at.items()}
        names = ("versions", "documents", "offsets", "files", *NOTES)
        parts = {name: ChainMap(*(dict(getattr(each, name)) for each in found)) for name in names}
        return State(frontier=Frontier(at), **{name: dict(each) for name, each in parts.items()})

    def _load(self, folder: str) -> State | None:
        table = self._open(folder)
        if table is None:
            return None
        held = self._states.get(folder)
        while held is None or held.versions[folder] != table.version():
            try:
                held = self._states[folder] = self._parse(folder, table)
            except LakeError:  # its document is gone: has another job committed another one meanwhile?
                version = table.version()
                table.update_incremental()
                if table.version() == version:
                    raise
        return held

    def _open(self, folder: str) -> DeltaTable | None:
        """The newest version of a table."""
        table = self._tables.get(folder)
        try:
            if table is not None:
                table.update_incremental()
                return table
        except DeltaError:  # commits in between were cleaned up
            pass
        try:
            table = DeltaTable(self.store.uri(folder), storage_options=self.store.options)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise LakeError(f"{self.store.uri(folder)}: cannot be read. {error}") from None
        self._tables[folder] = table
        return table

    def _parse(self, folder: str, table: DeltaTable) -> State:
        document, stored = table.transaction_version(APP), dict[str, Any]()
        if document is not None:
            stored = self._read(_document(folder, document))
        offset = Offset.parse(stored["offset"]) if stored else Offset(Frontier({}))
        only, held = _only(offset.frontier), self._states.get(folder)
        known = {} if held is None or _only(held.frontier) != only else held.files
        return State(
            {folder: table.version()},
            {folder: document},
            {folder: offset},
            offset.frontier,
            {file.path: file for file in _files(table, folder, only, known)},
            **{name: stored.get(name, {}) for name in NOTES},
        )

    def _read(self, path: str) -> dict[str, Any]:
        try:
            with self.store.open(path) as source:
                stored: dict[str, Any] = json.loads(source.read())
        except (FileNotFoundError, ValueError) as error:
            where = self.store.path(path)
            raise LakeError(f"{where}: cannot be read ({error}). Restore it from a backup.") from None
        if stored.get("form") != FORM:
            raise LakeError(
                f"{self.store.path(path)}: has format {stored.get('form')}, this braidstream supports "
                f"{FORM}. Upgrade it."
            )
        return stored

    @contextmanager
    def reading(self, state: State) -> Iterator[None]:
        """While files of a state are read: Conflict if that fails because another job has removed one of
        them since (`forget` deletes replaced files at once)."""
        try:
            yield
        except Exception as error:
            if state.files.keys() <= self.load().files.keys():
                raise
            raise Conflict("another job has removed files that were to be read") from error

    def commit(self, state: State, change: Change) -> State:
        """Commit to each table that changes. Conflict if another job has committed to it after `state`."""
        gone = self.store.missing([each.path for each in change.add])
        if gone:
            raise LakeError(
                f"{self.root}: {gone[0]} was deleted before its commit. If the job took longer than "
                f"{LEFT_S / 3600:g} hours, another job has cleaned it up. Nothing was committed: run it "
                "again, on fewer entries at a time."
            )
        added = list[File]()
        for folder in sorted(self._touched(state, change)):
            add = [each for each in change.add if self.table_of(each.stream) == folder]
            try:
                self._commit(state, folder, replace(change, add=tuple(add)))
            except CommitFailedError as error:
                raise Conflict(str(error), tuple(added)) from None
            added += add
        return self.load()

    def _touched(self, state: State, change: Change) -> set[str]:
        streams = {each.stream for each in change.add} | {state.files[path].stream for path in change.remove}
        for name in NOTES:
            for stream, value in (getattr(change, name) or {}).items():
                if value != getattr(state, name).get(stream):
                    streams.add(stream)
        return {self.table_of(stream) for stream in streams} | set(change.offsets)

    def _commit(self, state: State, folder: str, change: Change) -> None:
        table = self._tables.get(folder) or self._create(folder)
        if self.is_one and "stream" not in table.metadata().partition_columns:
            raise LakeError(f"{self.root}: is the table of one stream. Give the folder that it is in.")
        if table.version() != state.versions.get(folder, 0):
            raise CommitFailedError("the table was loaded again since")
        now_ms, is_new = int(time.time() * 1000), change.what != "merge"
        size = len(folder) + 1 if folder else 0
        actions = list[Any]()
        for file in (state.files[path] for path in change.remove):
            if self.table_of(file.stream) == folder:
                parts = self._partition(file)
                actions.append(RemoveAction(file.path[size:], is_new, now_ms, file.bytes, parts))
        for file in change.add:
            parts = self._partition(file)
            actions.append(AddAction(file.path[size:], file.bytes, parts, now_ms, is_new, file.stats))
        how = CommitProperties(
            custom_metadata={"braidstream": change.what},
            max_commit_retries=0,
            app_transactions=[Transaction(APP, self._document(state, folder, change))],
        )
        parts_by = [*(["stream"] if self.is_one else []), "day"]
        table.create_write_transaction(actions, "append", TABLE, partition_by=parts_by, commit_properties=how)
        if self.store.is_local:  # a trim may follow
            self.store.sync("/".join(filter(None, [folder, f"_delta_log/{table.version() + 1:020d}.json"])))

    def columns(self, folder: str) -> pa.Schema | None:
        """The typed columns of a table; None if it has none."""
        table = self._tables.get(folder) or self._open(folder)
        names = [] if table is None else pa.schema(table.schema().to_arrow())
        if RESCUED not in [each.name for each in names]:
            return None
        return pa.schema([each for each in names if each.name not in OWN])

    def widen(self, folder: str, wanted: pa.Schema) -> None:
        """Add typed columns to a table, in a commit of its own. Rows that are there get null."""
        for _ in range(TRIES):
            table = self._open(folder) or self._create(folder, (*wanted, pa.field(RESCUED, pa.string())))
            missing = _missing(self.store.uri(folder), pa.schema(table.schema().to_arrow()), wanted)
            if not missing:
                return
            try:
                fields = Schema.from_arrow(pa.schema(missing)).fields
                how = CommitProperties(custom_metadata={"braidstream": "columns"}, max_commit_retries=0)
                table.alter.add_columns(fields, commit_properties=how)
                return
            except CommitFailedError:
                continue  # another job has committed: look again
        raise LakeError(f"{self.store.uri(folder)}: other jobs keep committing. Run one archive per lake.")

    def _create(self, folder: str, typed: Iterable[pa.Field] = ()) -> DeltaTable:
        parts, uri = [*(["stream"] if self.is_one else []), "day"], self.store.uri(folder)
        try:
            table = DeltaTable.create(
                uri,
                schema=pa.schema([*TABLE, *typed]),
                partition_by=parts,
                configuration=SETTINGS,
                storage_options=self.store.options,
                mode="ignore",
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:  # another job has just created it
            table = DeltaTable(uri, storage_options=self.store.options)
        self._tables[folder] = table
        return table

    def _partition(self, file: File) -> dict[str, str | None]:
        stream = {"stream": file.stream or "base64:"} if self.is_one else {}  # Delta has no empty value
        return {**stream, "day": file.day}

    def _document(self, state: State, folder: str, change: Change) -> int:
        """The number of the document of a commit; a new one if it changes."""
        offset = change.offsets.get(folder, state.offsets.get(folder, Offset(Frontier({}))))
        known = state.documents.get(folder)
        is_same = all(getattr(change, name) is None for name in NOTES) and folder not in change.offsets
        if known is not None and is_same:
            return known
        stored: dict[str, Any] = {"form": FORM, "offset": offset.stored}
        for name in NOTES:
            new = getattr(change, name)
            values = getattr(state, name) if new is None else new
            stored[name] = {
                stream: each for stream, each in values.items() if self.table_of(stream) == folder
            }
        number = int(time.time() * 1000) << 21 | random.getrandbits(21)
        with self.store.create(_document(folder, number)) as out:
            out.write(json.dumps(stored, separators=(",", ":")).encode())
        self.store.sync(_document(folder, number))
        return number

    def vacuum(self, grace_s: float | None = None) -> int:
        """Delete files that no reader needs: those that commits removed, and those that a killed run has
        left, after a while. grace_s: in place of what the table says. Returns how many."""
        self._vacuumed = time.monotonic()
        gone = 0
        for folder in self.load().versions:
            table = self._tables[folder]
            how: dict[str, Any] = {"dry_run": True, "enforce_retention_duration": False}
            kept_s = _retention_s(table) if grace_s is None else grace_s
            left_s = max(LEFT_S, kept_s)
            found = {*table.vacuum(retention_hours=int(kept_s // 3600), **how)}
            found |= {*table.vacuum(retention_hours=int(left_s // 3600), full=True, **how)}
            state = self._load(folder)  # some may have been committed since
            assert state is not None
            start = f"{folder}/" if folder else ""
            ours = {start + each for each in found if each.startswith("stream=" if self.is_one else "day=")}
            gone += self.store.delete(ours - set(state.files))
            self.store.delete(self._old_documents(folder, state.documents[folder]))
        self._delete_old_probes()
        return gone

    def tend(self) -> None:
        """Vacuum, if this job has not for a while."""
        if time.monotonic() - self._vacuumed >= VACUUM_EVERY_S:
            self.vacuum()

    def _old_documents(self, folder: str, current: int | None) -> Iterator[str]:
        for each in self.store.list("/".join(filter(None, [folder, HIDDEN]))):
            number = int(each.base_name.removesuffix(".json"), 16) if each.extension == "json" else current
            if number != current and number is not None and time.time() - (number >> 21) / 1000 >= LEFT_S:
                yield _document(folder, number)

    def _delete_old_probes(self) -> None:
        """Tables of probes (spark/jobs/compaction.py) that were killed."""
        for each in self.store.list(HIDDEN):
            if each.base_name.startswith(PROBE):
                folder = f"{HIDDEN}/{each.base_name}"
                written = [file.mtime_ns or 0 for file in self.store.list(f"{folder}/_delta_log")]
                if written and time.time() - max(written) / 1e9 >= LEFT_S:
                    self.store.delete_folder(folder)


def _retention_s(table: DeltaTable) -> float:
    """How long removed files stay, by the table's property, as Delta writes it: interval 1 days."""
    found = _INTERVAL.match(table.metadata().configuration.get(RETENTION, "").strip())
    return int(found[1]) * _UNITS[found[2].lower()] if found else _UNITS["week"]  # Delta's default


def check_lake(root: str) -> None:
    if not Lake(root).look():
        raise OptionError("lake", f"{root} is not a lake. `braid spark archive` makes one")


def _missing(where: str, there: pa.Schema, wanted: pa.Schema) -> list[pa.Field]:
    """The typed columns that a table has not. LakeError if it has one of another type."""
    known = {each.name.lower(): each for each in there}
    for each in wanted:
        before = known.get(each.name.lower(), each)
        if before.type != each.type or before.name != each.name:
            raise LakeError(
                f"{where}: its column {before.name} is {before.type}, in the schema {each.name} is "
                f"{each.type}. A column keeps its name and type: archive to another table."
            )
    return [each for each in (*wanted, pa.field(RESCUED, pa.string())) if each.name.lower() not in known]


def _lake(root: str, streams: Collection[bytes] | None, is_one: bool) -> Lake:
    return Lake(root, streams, is_one=is_one)


def _document(folder: str, number: int) -> str:
    return "/".join(filter(None, [folder, HIDDEN, f"{number:016x}.json"]))


def _only(frontier: Frontier) -> str:
    """The stream of a table that has one."""
    return min((name_text(strand.name) for strand in frontier), default="")


def _files(table: DeltaTable, folder: str, only: str, known: Mapping[str, File]) -> Iterator[File]:
    """The files of a table; of those that another program wrote, less is known.

    known: of an earlier version. Reading all of them again would take most of the time of a small commit.
    """
    found, start = pa.table(table.get_add_actions(flatten=True)), f"{folder}/" if folder else ""
    paths = [start + each for each in found["path"].to_pylist()]
    new = [number for number, path in enumerate(paths) if path not in known]
    yield from (known[path] for path in paths if path in known)
    for row in found.take(pa.array(new, pa.int64())).to_pylist():
        named = _NAMED.search(row["path"])
        ends = ids.ZERO, ids.LAST
        if named:
            ends = ids.native(named[1].encode()), ids.native(named[2].encode())
        places = row.get("min.place"), row.get("max.place")
        stream = row.get("partition.stream")
        yield File(
            path=start + row["path"],
            stream=only if stream is None else name_text(name_of_text(stream)),
            day=str(row["partition.day"]),
            rows=row["num_records"] or 0,
            bytes=row["size_bytes"],
            first=ends[0],
            last=ends[1],
            places=_ANY_PLACE if None in places else places,
        )

"""Refuses a store that loses commits, before a job starts.

A commit creates an object and must fail if it exists. Some stores ignore that condition: with several writers
they lose commits and report success. A test with one writer passes there, so several commit at once.
"""

import threading
import uuid
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from braidstream.errors import LakeError
from braidstream.spark.lake.store import HIDDEN, PROBE, Store

RACERS, RACES = 6, 8
_SCHEMA: Final = pa.schema([("n", pa.int64())])


def probe(store: Store) -> None:
    """LakeError if the store lets two commits with one number succeed. Local disks are not probed."""
    if store.is_local:
        return
    folder = f"{HIDDEN}/{PROBE}{uuid.uuid4().hex}"
    DeltaTable.create(store.uri(folder), schema=_SCHEMA, storage_options=store.options)
    try:
        for race in range(RACES):
            winners = _race(store, folder, race)
            if winners != 1:
                raise LakeError(
                    f"{store.root}: this store is not safe for a lake. Of {RACERS} commits with the same "
                    f"number {winners} succeeded, so commits of jobs that run at once would be lost. It "
                    "ignores conditional writes (If-None-Match): upgrade it, or use another store."
                )
    finally:
        store.delete_folder(folder)


def _race(store: Store, folder: str, race: int) -> int:
    """How many of several commits with one number succeed."""
    tables = [DeltaTable(store.uri(folder), storage_options=store.options) for _ in range(RACERS)]
    start, winners = threading.Barrier(RACERS), list[int]()

    def commit(number: int) -> None:
        how = CommitProperties(max_commit_retries=0, app_transactions=[Transaction("probe", race)])
        start.wait()
        try:
            tables[number].create_write_transaction([], "append", _SCHEMA, commit_properties=how)
            winners.append(number)
        except CommitFailedError:
            return

    racers = [threading.Thread(target=commit, args=(number,)) for number in range(RACERS)]
    for each in racers:
        each.start()
    for each in racers:
        each.join()
    return len(winners)

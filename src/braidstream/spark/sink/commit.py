"""Commits a batch: decides it once, in whichever region the query runs.

One server has a sink's ledger at a time. A query that is restarted in another region finds that server,
finishes the decided batch there, fences it and takes the ledger over. If it cannot find the server, it
refuses.

    region 1   done 6, batch 7 decided, 3 of 9 chunks published     <- the query was killed here
    region 2   queries region 1: publishes chunks 4..9 there, done 7, moved; has the ledger from 7 on
"""

import random
import time
from collections.abc import Iterable
from typing import Any

from braidstream.clusters.bulk import RedisError, Server
from braidstream.errors import ReplyError, SinkError
from braidstream.model import keys
from braidstream.model.fields import MetaField
from braidstream.model.frontier import name_text
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.retries import Retries
from braidstream.spark.options import SinkOptions
from braidstream.spark.sink.ledger import Book, Ledger, Stage, marked

POLL_S = 0.1


class Committer:
    """Commits batches of a sink on one server. The other servers are queried once in every run of a query: a
    batch that this run began itself cannot have been written by an earlier run."""

    def __init__(self, book: Book, others: list[Server], *, run: str, options: SinkOptions) -> None:
        self.book, self.others, self.run, self.options = book, others, run, options

    def commit(self, batch: int, stages: tuple[Stage, ...], *, in_sequence: bool) -> None:
        """Publish a batch, unless it is done. Idempotent, also after a crash."""
        others = f"other queries keep changing the ledger of sink {self.book.sink!r}. Run one query per sink."
        retries = Retries(others, error=SinkError)
        while True:
            retries.count()
            seen = self.book.read()
            if seen is not None and not seen.moved:
                if seen.done >= batch:
                    return self._skip(seen, batch, stages, is_replay=in_sequence)
                if seen.is_undone and self._complete(self.book, seen, batch):
                    continue
            if not self.book.forgets and not self._is_next(seen, batch, in_sequence=in_sequence):
                seen = self._consult(batch, stages, in_sequence=in_sequence)
                if seen.done >= batch:
                    return self._skip(seen, batch, stages, is_replay=in_sequence)
            if not self.book.are_complete(stages, for_s=self.options.stage_ttl_s):
                raise SinkError(
                    f"batch {batch} was staged elsewhere, or its stage is gone. Start the query again."
                )
            if self.book.decide(seen, batch, stages, self.run):
                decided = Ledger(batch, seen.done if seen else -1, stages, run=self.run)
                if self._complete(self.book, decided, batch):
                    return None

    def _skip(self, seen: Ledger, batch: int, stages: tuple[Stage, ...], *, is_replay: bool) -> None:
        """The batch is done. If a batch write went to other streams, it was another one of the same name."""
        self.book.discard(stages)
        ours = {stage.stream for stage in stages}
        is_other = bool(seen.streams and ours) and not ours & seen.streams
        if seen.done == batch and is_other and not is_replay:
            raise SinkError(
                f"sink {self.book.sink.decode()}: batch {batch} was written to {_shown(seen.streams)}, and "
                f"this write is to {_shown(ours)}. Nothing was appended. Give each write its own txnAppId."
            )

    def _is_next(self, seen: Ledger | None, batch: int, *, in_sequence: bool) -> bool:
        """Whether no other server must be queried. Batches of a query are consecutive; those of batch writes
        may have gaps."""
        if seen is not None and seen.moved:
            return False
        if not in_sequence:
            return not self.others
        if seen is None or seen.done != batch - 1:
            return False
        return not self.others or (seen.run == self.run != "")

    def _consult(self, batch: int, stages: tuple[Stage, ...], *, in_sequence: bool) -> Ledger:
        """Find the server with the ledger, finish the decided batch there, fence it, and take the ledger
        over.

        This server has the ledger if no other one had it in a query *after* it was taken over: of two drivers
        that take it over at once, one sees the other. `decide` then checks that the ledger is unchanged.
        """
        deadline = time.monotonic() + self.options.replication_wait_s
        while True:
            seen = self.book.read()
            found, silent = self._query_others(batch)
            holders = [(book, ledger) for book, ledger in found if not ledger.moved]
            known = [*([seen] if seen else []), *(ledger for _, ledger in found)]
            last = max(known, key=lambda each: each.done, default=Ledger())
            if self.options.take_over and last.done < batch <= self._replicated(stages):
                last = Ledger(batch, batch, streams=frozenset(stage.stream for stage in stages))
            done = last.done
            follows = done >= batch - 1 or not in_sequence
            if self.options.take_over or (follows and self._is_certain(seen, done, holders, silent)):
                if seen is not None and not seen.moved and seen.done == done and not holders:
                    return seen
                if all([book.fence(ledger) for book, ledger in holders]) and self.book.adopt(
                    seen, done, last.streams
                ):
                    continue
            elif done >= batch or self._replicated(stages) >= batch:
                return Ledger(batch, batch)  # it is done; the next batch finds the server with the ledger
            elif time.monotonic() > deadline:
                raise SinkError(self._refusal(batch, done, silent))
            time.sleep(POLL_S * random.uniform(0.5, 1.5))

    def _is_certain(
        self, seen: Ledger | None, done: int, holders: list[tuple[Book, Ledger]], silent: int
    ) -> bool:
        """Whether no server can have done more: all answered, or the one with the ledger did."""
        if seen is not None and seen.moved and not self.others:
            return False  # it moved to a server that is not in the list
        if seen is not None and not seen.moved and seen.done == done:
            return True
        return not silent or any(ledger.done == done for _, ledger in holders)

    def _query_others(self, batch: int) -> tuple[list[tuple[Book, Ledger]], int]:
        found, silent = list[tuple[Book, Ledger]](), 0
        for server in self.others:
            book = Book(server, self.book.sink.decode())
            try:
                ledger = book.read()
                if ledger is not None and ledger.is_undone and not ledger.moved:
                    self._complete_there(book, ledger, batch)
                    ledger = book.read()
            except (RedisError, OSError):
                silent += 1
                continue
            if ledger is not None:
                found.append((book, ledger))
        return found, silent

    def _complete_there(self, book: Book, ledger: Ledger, batch: int) -> None:
        """Publish the rest of a batch on another server. takeOver: also if that is impossible there."""
        try:
            self._complete(book, ledger, batch)
        except SinkError:
            if not self.options.take_over:
                raise

    def _complete(self, book: Book, ledger: Ledger, batch: int) -> bool:
        """Publish the rest of a decided batch. False if that is impossible: read the ledger again, or decide
        again.

        A stage may be missing if a driver crashed after it decided and before it kept the stage. Then nothing
        of it is published, and the next run of the batch decides it again.
        """
        if book.are_complete(ledger.stages):
            book.publish(ledger)
            book.finish(ledger)
            return True
        if book.read() != ledger:
            return False  # another driver has finished it, and deleted its stages
        if any(book.progress(stage.stream)[0] == ledger.batch for stage in ledger.stages):
            raise SinkError(
                f"batch {ledger.batch} is published in part and its stages are missing. Restore the server."
            )
        book.discard(ledger.stages)
        if ledger.batch < batch and not self.options.take_over:
            raise SinkError(
                f"sink {book.sink.decode()}: batch {ledger.batch} was begun, and its rows expired before any "
                f"was published. Run it again, then batch {batch}. To leave it out, set takeOver to true for "
                "one run."
            )
        return False

    def _replicated(self, stages: tuple[Stage, ...]) -> int:
        """The last batch that is complete by the replicated marks in the registries of all its streams."""
        marks = list[int]()
        for name in {stage.stream for stage in stages}:
            batch, published, chunks = marked(self._mark(name))
            marks.append(batch if published == chunks else batch - 1)
        return min(marks, default=-1)

    def _mark(self, name: bytes) -> bytes | None:
        def plan() -> Plan[Any]:
            command = ("HGET", keys.meta(name), MetaField.SINK + self.book.sink)
            [reply] = yield Batch([command], resend=True, attempt=True)
            return None if isinstance(reply, ReplyError) else reply

        reply: bytes | None = self.book.server.run(plan(), keys.meta(name))
        return reply

    def _refusal(self, batch: int, done: int, silent: int) -> str:
        seen = f"the last batch known here is {done}" if done >= 0 else "nothing of it is known here"
        why = (
            f"{silent} of the listed servers do not answer, and may have it"
            if silent
            else "the server that has it is not in the list"
        )
        return (
            f"sink {self.book.sink.decode()}: cannot tell whether batch {batch} was written; {seen}; {why}. "
            "Name every server the query has written to in url and fallbackUrls, or wait until it answers. "
            "If it is lost for good, or the sink is new to this checkpoint, set takeOver to true for one "
            "run: a batch that was being written there may then be doubled."
        )


def _shown(streams: Iterable[bytes]) -> str:
    return ", ".join(name_text(each) for each in sorted(streams)[:3])

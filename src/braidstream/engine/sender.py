# Generated from aio_sender.py by scripts/sync_half.py (make sync-half). Do not edit.
"""Sends the batches of a plan over a connection of redis-py, and tracks whether a write may be lost."""

import time
from typing import Any, TypeVar

from braidstream.engine.blocking import connect, read_reply, send
from braidstream.engine.redis_py import (
    LOST,
    NotResentError,
    is_refusal,
    may_have_run,
    read_timeout,
    resp2,
    take_arrived,
)
from braidstream.errors import LostError
from braidstream.plan.plan import Batch, Plan, Replies, refuse_early_end, run, unpack, wire

T = TypeVar("T")


def run_plan(plan: Plan[T], send: Any) -> T:
    """Run a plan. If a connection is lost, it raises redis-py's error, or NotResentError after a write."""
    try:
        return run(plan, send)
    except LostError as lost:
        error = lost
    # Not in the handler: redis-py's error has a context that says what happened before.
    cause = error.__cause__ or error
    if error.wrote:
        raise NotResentError(cause) from cause
    raise cause


class Sender:
    """Sends batches over one connection. LostError says whether a write may have been applied."""

    def __init__(self, conn: Any, *, watching: bool = False) -> None:
        # Only the first batch may connect: a new connection would have lost the plan's WATCH.
        self.conn, self.may_connect = conn, not watching

    def __call__(self, batch: Batch) -> Replies:
        commands, timeout, replies = wire(batch), read_timeout(self.conn, batch.block_ms), list[Any]()
        began, is_sent = time.monotonic(), False
        try:
            connect(self.conn, self.may_connect)
            self.may_connect, is_sent = False, True
            send(self.conn, commands)
            while len(replies) < len(commands):
                replies.append(read_reply(self.conn, timeout))
                take_arrived(self.conn, replies, len(commands))
            found = unpack(batch, replies, resp2)
        except LOST as error:
            self.conn.disconnect()
            is_refused = is_refusal(error, may_have_run=may_have_run(batch, commands, replies))
            wrote = is_sent and not batch.resend and not is_refused
            raise LostError(repr(self.conn), str(error), wrote=wrote) from error
        refuse_early_end(batch, found, time.monotonic() - began)
        return found

    def close(self) -> None:
        """The connection stays the caller's."""

"""`braidstream.Consumer`: handlers run in threads. `tasks.py` is its asyncio twin; keep the two side by side.

    taker thread     reads new entries, as many as the keeper allows
    keeper           the thread of `run()`: owns all state, acknowledges, extends, claims, moves dead letters
    worker threads   run handlers

They share queues only. The keeper reads `inbox`: entries that were taken, and failures of handlers. Handled
entries go to `handled`. Waking the keeper is slow, so only the first handled entry wakes it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from braidstream.clients.any_region import AnyClient
from braidstream.clients.cluster_client import RedisCluster
from braidstream.clients.sync import Redis
from braidstream.consumers.base import BLOCK_MS, ConsumerBase, check_client, observers_of, settings_of
from braidstream.consumers.handler import call_whole, refuse_unawaited
from braidstream.consumers.held import Held, Reject, Work
from braidstream.consumers.hooks import Middleware, wrapped
from braidstream.consumers.settings import Key
from braidstream.consumers.signals import stopped_by_signals
from braidstream.consumers.turn import take
from braidstream.consumers.worker_thread import HandlerTimeout, WorkerPool
from braidstream.observability.events import emit

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry


class Consumer(ConsumerBase):
    """A worker of a consumer group.

    client: where the streams are. The consumer uses two of its connections.
    streams: a stream, or several.
    group: created if it is missing, from `start` on: "0" for all entries, "$" for new ones.
    name: of this consumer in the group. Every running consumer needs its own; the default is unique.
    concurrency: how many handlers run at once.
    retries: an entry that has failed so many times goes to the dead letters.
    dead_letter: the stream of dead letters; by default the name of the stream and ".dead".
    backoff, max_backoff: seconds until the second attempt, doubled for each further one, up to a maximum.
    timeout: seconds after which a handler counts as failed.
    claim_after: seconds after which entries of a silent consumer are taken over. The same in all processes.
    prefetch: how many entries may be taken ahead at most. 0: none, and each crash counts as an attempt.
    key: keeps the order of entries with the same key: a field, or a function of the message.
    batch: the handler gets a list of up to so many entries. batch_wait: seconds to wait for more of them.
    body: the field that has the whole message as JSON, for handlers with a model.
    stop_timeout: how many seconds running handlers get to finish when the consumer is stopped.
    metrics: a registry of prometheus_client. tracer: one of OpenTelemetry, for a span per handler call.
    """

    def __init__(
        self,
        client: AnyClient,
        streams: str | Sequence[str],
        *,
        group: str,
        name: str | None = None,
        concurrency: int = 8,
        retries: int = 5,
        dead_letter: str | None = None,
        backoff: float = 1.0,
        max_backoff: float = 60.0,
        timeout: float | None = None,
        claim_after: float = 60.0,
        prefetch: int = 1000,
        key: Key | None = None,
        batch: int | None = None,
        batch_wait: float = 0.0,
        body: str | None = None,
        start: str = "0",
        stop_timeout: float = 25.0,
        metrics: "CollectorRegistry | None" = None,
        tracer: "Tracer | None" = None,
    ) -> None:
        check_client(client, (Redis, RedisCluster), "braidstream")
        settings = settings_of(locals())
        super().__init__(settings, body, observers_of(settings, metrics, tracer))
        self._client = client
        self._inbox = SimpleQueue[Any]()
        self._is_rung = False
        self._permits = SimpleQueue[int | None]()
        self._pool = WorkerPool(concurrency, self._run_work, self._report, has_timeout=timeout is not None)
        self._middleware = list[Middleware]()

    def middleware(self, function: Middleware) -> Middleware:
        """Decorator: a function that surrounds the handler. It gets the messages, and calls `call_next`."""
        refuse_unawaited(function)
        self._middleware.append(function)
        return function

    def check_handler(self, function: Callable[..., Any]) -> None:
        refuse_unawaited(function)

    def run(self, *, signals: bool = True) -> None:
        """Handle entries until `stop()` is called, or SIGTERM or SIGINT arrives.

        A second signal does not wait for running handlers.

        signals: whether to react to signals. In other threads than the main thread it never does. If your
            program, or its web server, has a handler for the signal, that runs too.
        """
        self.begin(surrounded=bool(self._middleware))
        taker = threading.Thread(target=self._take_all, daemon=True, name="braidstream-taker")
        with stopped_by_signals(self.stop_by_signal) if signals else nullcontext():
            self._join()
            self._pool.start()
            taker.start()
            try:
                self._keep()
            finally:
                self._permits.put(None)
                self._pool.stop()
            emit("consumer.stopped", group=self.settings.group, name=self.settings.name)

    def ring(self) -> None:
        self._inbox.put(None)

    def _join(self) -> None:
        while self._stop_at is None:
            try:
                self._client.converse(self.turns.join())
                emit("consumer.ready", group=self.settings.group, name=self.settings.name)
                return
            except self.unreachable as error:
                time.sleep(self.unreached(error))

    # The taker

    def _take_all(self) -> None:
        while (most := self._permits.get()) is not None:
            try:
                reply = self._client.converse(take(self.settings, most, BLOCK_MS))
            except Exception as error:
                self._inbox.put(error)
            else:
                self._inbox.put(reply or ())

    # The workers

    def _run_work(self, work: Work) -> tuple[BaseException | None, dict[Held, Reject]]:
        rejected: dict[Held, Reject] = {}
        try:
            if self._is_plain:
                call_whole(self._function, work[0].message)
                return None, rejected
            messages, call = self.prepare(work, rejected)
            if messages:
                if self._middleware:
                    call = wrapped(messages, self._middleware, partial(call_whole, call))
                with self.observed(messages):
                    call_whole(call)
        except HandlerTimeout:
            raise
        except BaseException as error:  # also SystemExit: only the handler ends
            return error, rejected
        return None, rejected

    def _report(self, work: Work, error: BaseException | None, rejected: dict[Held, Reject]) -> None:
        if error is not None or rejected or len(work) > 1:
            self._inbox.put((work, error, rejected))
            return
        self.handled.append(work[0])
        if not self._is_rung:
            self._is_rung = True
            self._inbox.put(None)

    def take_back(self) -> list[Work]:
        return self._pool.take_back()

    # The keeper

    def _keep(self) -> None:
        while not self.is_done():
            now = time.monotonic()
            self._give_up_hanging(now)
            self._hand_out(now)
            self._turn(now)
            self._hand_out(now)
            self._listen()
        try:
            self._client.converse(self.turns.leave(is_reading=self.is_reading))
        except self.failed as error:
            emit("consumer.unreached", group=self.settings.group, why=str(error))

    def _listen(self) -> None:
        """Wait for the next event, or for the time of the next task; then hear all that has happened."""
        try:
            event = self._inbox.get(timeout=self._patience())
            while True:
                self.hear(event)
                event = self._inbox.get_nowait()
        except Empty:
            pass
        self._is_rung = False  # first: what is handled from here on rings again
        self.hear_handled()

    def _patience(self) -> float:
        now = time.monotonic()
        until = self.next_time(now)
        if self.settings.timeout is not None:
            until = min(until, self._pool.next_overdue(self.settings.timeout, now))
        return max(until - now, 0.0)

    def _give_up_hanging(self, now: float) -> None:
        if self.settings.timeout is not None:
            for work in self._pool.overdue(self.settings.timeout, now):
                self.finished(work, self.too_late(), {})

    def _hand_out(self, now: float) -> None:
        """Give work to the workers, and leave to the taker."""
        self.hand.wake(now)
        self._pool.put(self.hand.next_work(now))
        if self.may_read(now):
            self.is_reading = True
            self._permits.put(self.hand.room)

    def _turn(self, now: float) -> None:
        if not self.may_turn(now):
            return
        try:
            if self.must_join:
                self._client.converse(self.turns.join())
                self.must_join = False
            self.tell_refused(self._client.converse(self.turns.turn(now)))
            self.reached()
        except self.failed as error:
            self.pause(error)
        self._pool.put_urgent(self.turns.counted)
        self.turns.counted.clear()
        self.tell_observers()

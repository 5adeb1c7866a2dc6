"""Consumers of either kind, run in a thread of the test: handlers are written once, as plain functions."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import braidstream
import braidstream.asyncio
from tests.support.waiting import eventually

WITHIN_S = 30


class Runs:
    """One kind of consumer: "sync" or "asyncio"."""

    def __init__(self, kind: str, url: str, *, is_cluster: bool = False) -> None:
        self.kind, self.url, self.is_cluster = kind, url, is_cluster

    @contextmanager
    def __call__(
        self, handle: Callable[..., Any], streams: Any = "orders", **options: Any
    ) -> Iterator["Running"]:
        """A consumer that runs until the block ends. Its group is "billing" unless said otherwise.

        hooks: functions by the name of their decorator.
        """
        options = {"group": "billing", "backoff": 0.02, **options}
        running = (_Threads if self.kind == "sync" else _Tasks)(self.url, handle, streams, options)
        running.client_class = "RedisCluster" if self.is_cluster else "Redis"
        running.start()
        try:
            yield running
        finally:
            running.stop()


class Running(threading.Thread):
    """A consumer in a thread."""

    client_class = "Redis"

    def __init__(self, url: str, handle: Callable[..., Any], streams: Any, options: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.hooks: dict[str, Callable[..., Any]] = options.pop("hooks", {})
        self.url, self.handle, self.streams, self.options = url, handle, streams, options
        self.failed: BaseException | None = None
        self.consumer: Any = None
        self.began = threading.Event()

    def run(self) -> None:
        try:
            self.serve()
        except BaseException as error:
            self.failed = error

    def serve(self) -> None:
        raise NotImplementedError

    def add_hooks(self) -> None:
        for name, function in self.hooks.items():
            getattr(self.consumer, name)(function)

    def halt(self) -> None:
        self.consumer.stop()

    def stop(self) -> None:
        """Stop it, and fail if it does not end or ended with an error."""
        assert self.began.wait(WITHIN_S)
        if self.is_alive():
            self.halt()
        self.join(WITHIN_S)
        assert not self.is_alive(), "the consumer should have stopped"
        if self.failed is not None:
            raise self.failed


class _Threads(Running):
    def serve(self) -> None:
        with getattr(braidstream, self.client_class).from_url(self.url) as client:
            try:
                self.consumer = braidstream.Consumer(client, self.streams, **self.options)
                self.consumer.handler(self.handle)
                self.add_hooks()
            finally:
                self.began.set()
            self.consumer.run()


class _Tasks(Running):
    def serve(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        async with getattr(braidstream.asyncio, self.client_class).from_url(self.url) as client:
            try:
                self.consumer = braidstream.asyncio.Consumer(client, self.streams, **self.options)
                is_coroutine = inspect.iscoroutinefunction(self.handle)
                self.consumer.handler(self.handle if is_coroutine else _as_coroutine(self.handle))
                self.add_hooks()
            finally:
                self.began.set()
            await self.consumer.run()

    def halt(self) -> None:
        self.loop.call_soon_threadsafe(self.consumer.stop)


def _as_coroutine(handle: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that blocks waits in a thread, as it would with asyncio.to_thread."""

    async def coroutine(*arguments: Any) -> None:
        await asyncio.to_thread(handle, *arguments)

    coroutine.__signature__ = inspect.signature(handle)  # type: ignore[attr-defined]
    coroutine.__annotations__ = dict(handle.__annotations__)
    coroutine.__wrapped__ = handle  # type: ignore[attr-defined]
    return coroutine


def until_acknowledged(client: braidstream.Redis, stream: str = "orders", group: str = "billing") -> None:
    """Until the group has received everything, and nothing is pending."""

    def done() -> bool:
        groups = client.xinfo_groups(stream) if client.exists(stream) else []
        found = [each for each in groups if each["name"] in (group, group.encode())]
        return bool(found) and found[0]["lag"] == 0 and found[0]["pending"] == 0

    eventually(done, within_s=WITHIN_S, why=f"{group} should acknowledge all of {stream}")


class Log:
    """What handlers saw, in order. Threads may share it."""

    def __init__(self) -> None:
        self.seen = list[tuple[Any, ...]]()

    def __call__(self, *facts: Any) -> None:
        self.seen.append(facts)

    def wait(self, count: int) -> None:
        eventually(lambda: len(self.seen) >= count, within_s=WITHIN_S, why=f"{count} calls should be seen")

    @property
    def firsts(self) -> list[Any]:
        return [facts[0] for facts in self.seen]

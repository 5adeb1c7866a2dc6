"""Open clients of either kind, use an asyncio one by the same text as a sync one, and see them wait."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.retry
from redis.backoff import AbstractBackoff, NoBackoff
from redis.retry import Retry

import braidstream
import braidstream.asyncio
from tests.support.servers import Engine
from tests.support.waiting import eventually

PIPELINES = (redis.asyncio.client.Pipeline, redis.asyncio.cluster.ClusterPipeline)


class LoopThread:
    """A loop that runs in a thread: any thread may run coroutines in it, several at a time."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Awaited:
    """An asyncio client or pipeline, called as a sync one: what it returns is awaited on one loop."""

    def __init__(self, runner: asyncio.Runner | LoopThread, target: Any) -> None:
        self.runner, self.target = runner, target

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reset() if isinstance(self.target, PIPELINES) else self.aclose()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        return (lambda *args, **options: self._settle(found(*args, **options))) if callable(found) else found

    def _settle(self, result: Any) -> Any:
        if isinstance(result, PIPELINES):
            return Awaited(self.runner, result)
        if inspect.isasyncgen(result):
            return self._settle(_listed(result))
        if not inspect.isawaitable(result):
            return result

        async def wait() -> Any:
            for _ in range(3):
                await asyncio.sleep(0)  # hear what happened since the last call
            return await result

        return self._settle(self.runner.run(wait()))


async def _listed(found: Any) -> list[Any]:
    return [each async for each in found]


class Opener:
    """Opens clients of one kind, braidstream's or redis-py's own, and closes them at the end."""

    def __init__(self, kind: str, stack: ExitStack, name: str = "Redis") -> None:
        """name: Redis or RedisCluster."""
        self.kind, self.stack, self._name = kind, stack, name
        self.runner: asyncio.Runner | LoopThread | None = None
        if kind == "asyncio":
            # Tests of clusters use one client in several threads.
            self.runner = stack.enter_context(asyncio.Runner() if name == "Redis" else LoopThread())

    def retry(self, times: int, backoff: AbstractBackoff | None = None) -> Any:
        """The `retry` option: again and again, without waiting."""
        kind = Retry if self.runner is None else redis.asyncio.retry.Retry
        return {"retry": kind(backoff or NoBackoff(), times)}

    def __call__(self, url: str, **options: Any) -> Any:
        return self._opened((braidstream, braidstream.asyncio), lambda kind: kind.from_url(url, **options))

    def bare(self, url: str, **options: Any) -> Any:
        return self._opened((redis, redis.asyncio), lambda kind: kind.from_url(url, **options))

    def constructed(self, **options: Any) -> Any:
        return self._opened((braidstream, braidstream.asyncio), lambda kind: kind(**options))

    def _opened(self, modules: tuple[Any, Any], make: Callable[[Any], Any]) -> Any:
        if self.runner is None:
            return self.stack.enter_context(make(getattr(modules[0], self._name)))
        client = Awaited(self.runner, make(getattr(modules[1], self._name)))
        self.stack.callback(client.aclose)
        return client


def blocked(engine: Engine, clients: int = 1) -> None:
    """Until so many clients wait inside the engine."""
    with engine.client() as operator:
        eventually(
            lambda: operator.info("clients")["blocked_clients"] == clients,
            within_s=20,
            why=f"{clients} clients should be waiting in the engine",
        )

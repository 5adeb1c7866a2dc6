"""Open clients of either kind, use an asyncio one by the same text as a sync one, and see them wait."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.retry
from redis.backoff import AbstractBackoff, NoBackoff
from redis.retry import Retry

import braidstream
import braidstream.asyncio
from tests.support.servers import Engine
from tests.support.waiting import eventually


class Awaited:
    """An asyncio client or pipeline, called as a sync one: what it returns is awaited on one loop."""

    def __init__(self, runner: asyncio.Runner, target: Any) -> None:
        self.runner, self.target = runner, target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        return (lambda *args, **options: self._settle(found(*args, **options))) if callable(found) else found

    def _settle(self, result: Any) -> Any:
        if isinstance(result, redis.asyncio.client.Pipeline):
            return Awaited(self.runner, result)
        if not inspect.isawaitable(result):
            return result

        async def wait() -> Any:
            for _ in range(3):
                await asyncio.sleep(0)  # hear what happened since the last call
            return await result

        return self._settle(self.runner.run(wait()))


class Opener:
    """Opens clients of one kind, braidstream's or redis-py's own, and closes them at the end."""

    def __init__(self, kind: str, stack: ExitStack) -> None:
        self.kind, self.stack = kind, stack
        self.runner = stack.enter_context(asyncio.Runner()) if kind == "asyncio" else None

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
            return self.stack.enter_context(make(modules[0].Redis))
        client = Awaited(self.runner, make(modules[1].Redis))
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

"""A fresh engine for one case: a region, the clients of both kinds, and its CPU clock."""

import asyncio
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import redis
import redis.asyncio

import braidstream
import braidstream.asyncio
from braidstream.operations.membership import meet
from tests.support.regions import become
from tests.support.servers import Engine, Flavour

# What is measured unless --engine says otherwise: what people install today.
NEWEST: tuple[Flavour, ...] = ("redis-8.10", "valkey-9.1")

T = TypeVar("T")


class Bed:
    """Liberal ID mode, so that chosen IDs are allowed; XADD with `*` does not look at the mode."""

    def __init__(self, flavour: Flavour) -> None:
        self.engine = Engine(flavour)
        self.loop = asyncio.Runner()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.engine)
        self._stack.enter_context(self.loop)
        try:
            become(self.engine, id_mode="liberal")
            self._control = self.bare()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def enter(self, context: AbstractContextManager[T]) -> T:
        return self._stack.enter_context(context)

    def ours(self, **options: Any) -> braidstream.Redis:
        client = braidstream.Redis(port=self.engine.port, **options)
        self._stack.callback(client.close)
        return client

    def meet_a_peer(self) -> None:
        """Clients that are opened later write journals. No daemon runs."""
        self.ours().run_plan(meet([1, 2]))

    def bare(self, **options: Any) -> redis.Redis:
        client = redis.Redis(port=self.engine.port, **options)
        self._stack.callback(client.close)
        return client

    def ours_async(self, **options: Any) -> braidstream.asyncio.Redis:
        client = braidstream.asyncio.Redis(port=self.engine.port, **options)
        self._stack.callback(lambda: self.loop.run(client.aclose()))
        return client

    def several(self) -> braidstream.MultiRegion:
        return self.enter(braidstream.MultiRegion([self.engine.url]))

    def several_async(self) -> braidstream.asyncio.MultiRegion:
        async def make() -> braidstream.asyncio.MultiRegion:
            return braidstream.asyncio.MultiRegion([self.engine.url])

        client = self.loop.run(make())
        self._stack.callback(lambda: self.loop.run(client.aclose()))
        return client

    def bare_async(self) -> redis.asyncio.Redis:
        client = redis.asyncio.Redis(port=self.engine.port)
        self._stack.callback(lambda: self.loop.run(client.aclose()))
        return client

    def engine_cpu(self) -> float:
        """Seconds of CPU the engine has used. INFO has microseconds; /proc counts in 10 ms ticks."""
        used: dict[str, float] = self._control.info("cpu")
        return used["used_cpu_user"] + used["used_cpu_sys"]

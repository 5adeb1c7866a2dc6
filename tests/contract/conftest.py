"""Fixtures of the contract tests: clients of both kinds, a proxy, a gateway, threads to wait in."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.support.clients import Opener
from tests.support.gateways import Line, Served
from tests.support.proxy import Proxy
from tests.support.regions import become
from tests.support.servers import Engine


@pytest.fixture(params=["sync", "asyncio"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opener]:
    with ExitStack() as stack:
        yield Opener(request.param, stack)


@pytest.fixture
def proxy(engine: Engine) -> Iterator[Proxy]:
    become(engine)
    with Proxy(engine.port) as between:
        yield between


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def served(engine: Engine) -> Iterator[Served]:
    become(engine)
    with Served(engine.url) as gateway:
        yield gateway


@pytest.fixture
def line(served: Served) -> Iterator[Line]:
    with Line(served.port) as one:
        yield one


@pytest.fixture
def bare(engine: Engine, served: Served) -> Iterator[Line]:
    """The engine itself, in another database, so that the two do not see each other."""
    with Line(engine.port) as one:
        one.say("SELECT 9")
        yield one

"""Fixtures every test may ask for: a clean engine or cluster of each flavour, and the hypothesis profiles."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import braidstream
from tests.support.matrix import installed
from tests.support.orphans import guard
from tests.support.regions import become, client_of
from tests.support.servers import FLAVOURS, WITH_TLS, Cluster, Engine, Flavour
from tests.support.thinning import mark_long, spread, thin

guard()

# A property test that asks for `engine` gets one clean server for all its examples, and calls engine.flush()
# itself where examples must not see each other. Hypothesis would otherwise refuse such a fixture.
CHECKS_OFF = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)

settings.register_profile(
    "ci", max_examples=200, derandomize=True, deadline=None, suppress_health_check=CHECKS_OFF
)
settings.register_profile(
    "quick", max_examples=24, derandomize=True, deadline=None, suppress_health_check=CHECKS_OFF
)
settings.register_profile(
    "nightly", max_examples=20_000, deadline=None, print_blob=True, suppress_health_check=CHECKS_OFF
)
settings.load_profile("ci")  # pytest --hypothesis-profile nightly comes later and wins


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_long(items)
    thin(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        spread(items)


@pytest.fixture(scope="session")
def engines() -> Iterator[dict[Flavour, Engine]]:
    """The servers this worker has started so far; each lives until the session ends."""
    started: dict[Flavour, Engine] = {}
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture(scope="session")
def clusters() -> Iterator[dict[Flavour, Cluster]]:
    started: dict[Flavour, Cluster] = {}
    yield started
    for cluster in started.values():
        cluster.stop()


@pytest.fixture(params=FLAVOURS)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """For tests that start servers of their own."""
    return installed(request.param)


@pytest.fixture(params=WITH_TLS)
def tls_flavour(request: pytest.FixtureRequest) -> Flavour:
    """For tests that start servers with TLS."""
    return installed(request.param)


@pytest.fixture
def engine(flavour: Flavour, engines: dict[Flavour, Engine]) -> Engine:
    """A running server with no keys and no functions. Shared by tests: start your own `Engine` to hurt it."""
    if flavour not in engines:
        engines[flavour] = Engine(flavour).start()
    engines[flavour].flush()
    return engines[flavour]


@pytest.fixture
def cluster(flavour: Flavour, clusters: dict[Flavour, Cluster]) -> Cluster:
    """A running three-node cluster with no keys and no functions."""
    if flavour not in clusters:
        clusters[flavour] = Cluster(flavour).start()
    clusters[flavour].flush()
    return clusters[flavour]


@pytest.fixture
def region(engine: Engine) -> Iterator[braidstream.Redis]:
    """A client of a region in strict mode, replies as text."""
    become(engine)
    with client_of(engine, decode_responses=True) as client:
        yield client


@pytest.fixture
def liberal(engine: Engine) -> Iterator[braidstream.Redis]:
    """A client of a region in liberal mode, replies as text."""
    become(engine, id_mode="liberal")
    with client_of(engine, decode_responses=True) as client:
        yield client

"""Fixtures every test may ask for: clean engines, clients, gateways, regions; and the hypothesis profiles."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache

import pytest
import redis.utils
from hypothesis import HealthCheck, settings

import braidstream
from scripts import spark_classes
from tests.support.clients import Opener
from tests.support.cluster import Cluster
from tests.support.gateways import Line, Served
from tests.support.matrix import installed
from tests.support.orphans import guard
from tests.support.proxy import Proxy
from tests.support.regions import become, client_of
from tests.support.servers import FLAVOURS, WITH_TLS, Engine, Flavour
from tests.support.thinning import folder_of, keep_together, leave_to_the_night, mark_long, spread, thin
from tests.support.world import Pool, World, pooled

guard()
# A shell ignores Ctrl-C for what it starts in the background, and processes inherit that. Tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# redis-py reads its own version from a file for each connection: 1 ms, and tests open tens of thousands.
redis.utils.get_lib_version = cache(redis.utils.get_lib_version)
os.environ["SPARK_SUBMIT_OPTS"] = spark_classes.OPTIONS

# Their engines have no functions, not even ours.
BARE = {"cli", "deploy", "engine", "spark", "unit"}

# A property test that asks for `engine` gets one clean server for all its examples, and calls engine.flush()
# itself where examples must not see each other. Hypothesis would otherwise refuse such a fixture.
CHECKS_OFF = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)

settings.register_profile(
    "ci", max_examples=100, derandomize=True, deadline=None, suppress_health_check=CHECKS_OFF
)
settings.register_profile(
    "quick", max_examples=24, derandomize=True, deadline=None, suppress_health_check=CHECKS_OFF
)
settings.register_profile(
    "nightly", max_examples=20_000, deadline=None, print_blob=True, suppress_health_check=CHECKS_OFF
)
settings.load_profile("ci")  # pytest --hypothesis-profile nightly comes later and wins


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    thin(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_long(items)
    leave_to_the_night(items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        keep_together(items)
        spread(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest-xdist 3.8 silently forms no groups with pytest 9.2. constraints.txt has an older one."""
    if not session.config.getoption("loadgroup", False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError("pytest-xdist forms no groups. Run: make setup")


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
def engine(request: pytest.FixtureRequest, flavour: Flavour, engines: dict[Flavour, Engine]) -> Engine:
    """A running server with no keys, and no functions but ours. Shared by tests: start your own `Engine` to
    hurt it."""
    if flavour not in engines:
        engines[flavour] = Engine(flavour).start()
    engines[flavour].flush(keep_functions=folder_of(request.path) not in BARE)
    return engines[flavour]


@pytest.fixture
def cluster(request: pytest.FixtureRequest, flavour: Flavour, clusters: dict[Flavour, Cluster]) -> Cluster:
    """A running three-node cluster with no keys, and no functions but ours."""
    if flavour not in clusters:
        clusters[flavour] = Cluster(flavour).start()
    clusters[flavour].flush(keep_functions=folder_of(request.path) not in BARE)
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


# Clients, gateways and what stands between them


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


@pytest.fixture
def sound(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing failed inside the gateway either."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelname == "ERROR"] == []


# Several regions


@pytest.fixture(scope="session")
def region_engines() -> Iterator[Pool]:
    started: Pool = {}
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture
def make_world(flavour: Flavour, region_engines: Pool) -> Iterator[Callable[..., World]]:
    """make_world(3, id_mode="liberal"): three empty regions."""
    made: list[World] = []

    def make(regions: int, id_mode: str = "strict") -> World:
        made.append(World(pooled(region_engines, flavour, regions), id_mode))
        return made[-1]

    yield make
    for world in made:
        world.close()

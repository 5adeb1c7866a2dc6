"""The public surface: what is in `__all__`, and two facades that stay twins."""

import inspect
import pickle
import subprocess
import sys
from importlib.metadata import version
from types import ModuleType

import pytest
import redis
import redis.asyncio

import braidstream
import braidstream.asyncio
from braidstream.clients import aio, raised, sync

# Named differently by redis-py.
ONLY_SYNC = {"Client.close"}
ONLY_AIO = {"Client.aclose"}


@pytest.mark.parametrize("name", ["Consumr", "_private"])
def test_a_wrong_name_is_an_error_of_braidstream(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'braidstream' has no attribute '{name}'"):
        getattr(braidstream, name)


def test_our_own_names_are_these() -> None:
    """Besides redis-py's: tests/unit/test_redis_py.py."""
    assert set(braidstream.__all__) - set(redis.__all__) == {
        "BehindWarning",
        "BraidError",
        "Consumer",
        "Later",
        "LibraryError",
        "Message",
        "MultiRegion",
        "NotARegionError",
        "HomeError",
        "Publisher",
        "RefusedError",
        "RegionTakenError",
        "Reject",
        "asyncio",
        "backoff",
        "client",
        "cluster",
        "connection",
        "credentials",
        "exceptions",
        "retry",
        "run",
        "sentinel",
        "trace_fields",
        "utils",
    }
    assert braidstream.Redis is sync.Redis
    assert braidstream.asyncio.Redis is aio.Redis


def test_a_client_of_utils_is_ours() -> None:
    """A plain one would write a native stream beside the stream of that name."""
    assert type(braidstream.utils.from_url("redis://localhost")) is sync.Redis
    assert type(braidstream.asyncio.utils.from_url("redis://localhost")) is aio.Redis
    assert braidstream.utils.str_if_bytes(b"x") == "x"


def loaded(code: str) -> set[str]:
    """Packages, apart from Python's own, that a program loads."""
    told = "import sys; print(*{name.partition('.')[0] for name in sys.modules} - {*sys.stdlib_module_names})"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{told}"], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_a_program_loads_redis_py_and_nothing_of_the_extras() -> None:
    ours = (
        "import braidstream, braidstream.asyncio\n"
        "braidstream.Redis, braidstream.MultiRegion, braidstream.Consumer, braidstream.Publisher\n"
        "braidstream.asyncio.Redis, braidstream.asyncio.Consumer"
    )
    assert loaded(ours) - loaded("import hiredis, redis, redis.asyncio") == {"braidstream"}


def test_a_client_of_one_server_loads_neither_sentinels_nor_the_file_of_regions() -> None:
    code = "import sys, braidstream; braidstream.Redis.from_url('redis://localhost'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    rare = {"config", "engine.address", "engine.sentinel_pool", "engine.tunnel"}
    assert {f"braidstream.{name}" for name in rare} & set(done.stdout.split()) == set()


def test_the_fixtures_for_pytest_load_nothing_until_a_test_wants_one() -> None:
    assert loaded("import pytest, braidstream.testing") - loaded("import pytest") == {"braidstream"}


def test_the_version_is_the_packages() -> None:
    assert braidstream.__version__ == version("braidstream")


@pytest.mark.parametrize("name", [name for name in raised.__all__ if name.endswith("Error")])
def test_an_error_of_ours_is_redis_pys_too_and_can_be_pickled(name: str) -> None:
    kind = getattr(braidstream, name)
    assert issubclass(kind, braidstream.BraidError)
    assert issubclass(kind, redis.RedisError)
    assert kind is getattr(braidstream.exceptions, name)
    copy = pickle.loads(pickle.dumps(kind("why")))
    assert (type(copy), str(copy), copy.code) == (kind, "why", kind.code)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(braidstream.Redis, redis.Redis), (braidstream.asyncio.Redis, redis.asyncio.Redis)],
)
def test_help_shows_the_arguments_of_redis_py_and_ours(ours: type, theirs: type) -> None:
    shown, known = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    assert [*shown] == [*known, "idempotent", "producer", "config"]
    assert all(shown[name] == known[name] for name in known)


def test_shells_offer_the_methods_of_redis_py_and_those_of_the_reference() -> None:
    logs = {"tack", "tcfgset", "tevict", "tread", "twrite"}
    later = {"later", "cancel_later"}
    theirs = {*dir(redis.Redis()), *dir(redis.asyncio.Redis()), "xcfgset"}  # redis-py 7 lacks that
    for client in (braidstream.Redis(), braidstream.asyncio.Redis()):
        assert {name for name in dir(client) if name[0] != "_"} - theirs == {"reader", "topic", *later, *logs}
    several = braidstream.MultiRegion(["redis://localhost"])
    more = {"reader", "topic", "region", "prefer", "behind", *later, *logs}
    assert {name for name in dir(several) if name[0] != "_"} - theirs == more


def _methods(module: ModuleType) -> dict[str, list[str]]:
    """Class.method -> its parameters, for what the module itself defines."""
    return {
        f"{kind.__name__}.{method}": list(inspect.signature(function).parameters)
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
        for method, function in vars(kind).items()
        if inspect.isfunction(function) and not hasattr(function, "__signature__")
    }


def test_the_sync_and_the_asyncio_client_are_twins() -> None:
    ours, theirs = _methods(sync), _methods(aio)
    assert {name for name in ours if name not in theirs} == ONLY_SYNC
    assert {name for name in theirs if name not in ours} == ONLY_AIO
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }

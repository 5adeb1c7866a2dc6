"""braidstream in redis-py's place: every public name is there, and we touch few private ones.

`make oldest-redis-py` runs this on the oldest supported version too.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import redis
import redis.asyncio

import braidstream
import braidstream.asyncio
from braidstream.clients import aio, aio_cluster, client_options, cluster_client, sync

SRC = Path(braidstream.__file__).parent
PACKAGE = Path(redis.__file__).parent
# Only these see objects of redis-py; `make check` keeps it so.
USERS = [
    *SRC.glob("*.py"),
    *(path for room in ("asyncio", "clients", "clusters", "engine") for path in (SRC / room).glob("*.py")),
]
MODULES = [
    "backoff",
    "client",
    "cluster",
    "connection",
    "credentials",
    "exceptions",
    "retry",
    "sentinel",
    "utils",
    "asyncio.client",
    "asyncio.cluster",
    "asyncio.connection",
    "asyncio.retry",
    "asyncio.sentinel",
    "asyncio.utils",
]
OURS = {"Redis", "StrictRedis", "from_url", "Sentinel", "RedisCluster", "Pipeline", "ClusterPipeline"}
# Arguments of ours, and of redis-py, that are written out in the constructors.
WRITTEN_OUT = {"self", "host", "port", "db", "password"}


@pytest.mark.parametrize(
    ("ours", "theirs"), [(braidstream, redis), (braidstream.asyncio, redis.asyncio)], ids=["sync", "asyncio"]
)
def test_every_public_name_of_redis_py_is_ours_too(ours: ModuleType, theirs: ModuleType) -> None:
    names = set(theirs.__all__)
    assert names - set(ours.__all__) == set()
    other = {name for name in names if getattr(ours, name) is not getattr(theirs, name)}
    assert other == {"Redis", "StrictRedis", "from_url", "Sentinel", "RedisCluster"}


@pytest.mark.parametrize("module", MODULES)
def test_its_modules_are_ours_too(module: str) -> None:
    theirs, ours = (importlib.import_module(f"{package}.{module}") for package in ("redis", "braidstream"))
    defined = {
        name
        for name, value in vars(theirs).items()
        if not name.startswith("_") and getattr(value, "__module__", theirs.__name__) == theirs.__name__
    }
    missing = {name for name in defined if not hasattr(ours, name)}
    assert missing == set()
    assert {name for name in defined if getattr(ours, name) is not getattr(theirs, name)} <= OURS


def test_a_module_is_reached_without_importing_it() -> None:
    assert braidstream.asyncio.retry.Retry is redis.asyncio.retry.Retry
    assert braidstream.lock is redis.lock  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        braidstream.no_such_name  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("client", "typed"),
    [(redis.Redis, client_options.SyncOptions), (redis.asyncio.Redis, client_options.AsyncioOptions)],
)
def test_the_typed_arguments_are_redis_pys(client: type, typed: type) -> None:
    theirs = set(inspect.signature(client.__init__).parameters)  # type: ignore[misc]
    ours = WRITTEN_OUT | set(typed.__annotations__)
    assert theirs - ours == set()
    if redis.VERSION >= (8, 1):  # older ones know fewer
        assert ours - theirs == set()


def test_positional_arguments_and_pools_work_as_in_redis_py() -> None:
    client = braidstream.Redis("example", 1234, 5, None, 3.5)
    settings = client.connection_pool.connection_kwargs
    assert [settings[name] for name in ("host", "port", "db", "socket_timeout")] == ["example", 1234, 5, 3.5]
    pool = braidstream.ConnectionPool(host="example")
    assert braidstream.Redis(connection_pool=pool).connection_pool is pool
    assert type(braidstream.Redis.from_pool(pool)) is braidstream.Redis
    assert type(braidstream.from_url("redis://example")) is braidstream.Redis
    assert type(braidstream.asyncio.from_url("redis://example")) is braidstream.asyncio.Redis


def test_clients_of_a_sentinel_are_ours() -> None:
    sentinel = braidstream.Sentinel([("example", 26379)])
    assert type(sentinel.master_for("orders")) is braidstream.Redis
    assert type(sentinel.slave_for("orders")) is braidstream.Redis
    later = braidstream.asyncio.Sentinel([("example", 26379)])
    assert type(later.master_for("orders")) is braidstream.asyncio.Redis


SEAMS = {"_send_command_parse_response", "_execute_pipeline", "_execute_transaction"}


@pytest.mark.parametrize("module", [sync, aio], ids=["sync", "asyncio"])
def test_the_private_methods_that_we_override_are_there_and_no_others(module: ModuleType) -> None:
    ours, theirs = set[str](), {*vars(redis.Redis()), *vars(redis.asyncio.Redis())}
    for kind in {*module.Redis.__mro__, *module.Pipeline.__mro__}:
        (theirs if is_theirs(kind) else ours).update(vars(kind))
    overridden = ours & theirs & private_names(PACKAGE)
    assert overridden == SEAMS


@pytest.mark.parametrize("module", [cluster_client, aio_cluster], ids=["sync", "asyncio"])
def test_the_cluster_clients_override_no_private_method(module: ModuleType) -> None:
    for client in (module.RedisCluster, module.ClusterPipeline):
        ours, theirs = set[str](), set[str]()
        for kind in client.__mro__:
            (theirs if is_theirs(kind) else ours).update(vars(kind))
        assert ours & theirs & private_names(PACKAGE) == set()


def is_theirs(kind: type) -> bool:
    return kind.__module__.startswith("redis.")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_only_one_file_uses_private_names_of_redis_py() -> None:
    theirs = private_names(PACKAGE)
    assert {"_sock", "_conn", "_reader"} <= theirs
    found = {
        f"{path.relative_to(SRC)}: {name}"
        for path in USERS
        if path.name != "redis_py.py"
        for name in foreign(ast.parse(path.read_text(encoding="utf-8")), theirs)
    }
    assert found == set()


@cache
def private_names(folder: Path) -> set[str]:
    """Attributes, functions and modules of a package that are private."""
    names = {part for path in folder.rglob("*.py") for part in path.relative_to(folder).with_suffix("").parts}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
    return {name for name in names if is_private(name)}


def foreign(tree: ast.Module, theirs: set[str]) -> Iterator[str]:
    """Private names of theirs that a module of ours reaches for: of another object, by text, or imported."""
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    stored |= {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in theirs - stored:
            yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            yield from (
                arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant) and arg.value in theirs
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "redis":
            parts = [*(node.module or "").split("."), *(each.name for each in node.names)]
            yield from (part for part in parts if is_private(part))

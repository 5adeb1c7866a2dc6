"""The public surface: what is in `__all__`, and two facades that stay twins."""

import inspect
from types import ModuleType

import braidstream
import braidstream.asyncio
from braidstream.drivers import aio, sync

# redis-py has these seams in one of its two clients only.
ONLY_SYNC = {"Redis._execute_command"}
ONLY_AIO = {"Redis.execute_command"}


def test_the_public_names_are_these() -> None:
    assert braidstream.__all__ == [
        "BraidError",
        "LibraryError",
        "NotARegionError",
        "Redis",
        "RefusedError",
        "RegionTakenError",
        "ReplyError",
    ]
    assert braidstream.asyncio.__all__ == ["Redis"]


def test_every_public_name_is_there() -> None:
    assert all(hasattr(braidstream, name) for name in braidstream.__all__)
    assert braidstream.Redis is sync.Redis
    assert braidstream.asyncio.Redis is aio.Redis


def test_every_error_has_a_code() -> None:
    errors = [getattr(braidstream, name) for name in braidstream.__all__ if name.endswith("Error")]
    assert all(issubclass(error, braidstream.BraidError) for error in errors)
    assert all(error.code for error in errors)


def _methods(module: ModuleType) -> dict[str, list[str]]:
    """Class.method -> its parameters, for what the module itself defines."""
    return {
        f"{name}.{method}": list(inspect.signature(function).parameters)
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
        for method, function in vars(kind).items()
        if inspect.isfunction(function)
    }


def test_the_sync_and_the_asyncio_client_are_twins() -> None:
    ours, theirs = _methods(sync), _methods(aio)
    assert {name for name in ours if name not in theirs} == ONLY_SYNC
    assert {name for name in theirs if name not in ours} == ONLY_AIO
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in theirs if name in ours
    }

"""Slow tests: in CI each runs on two engines. And what the tests of the gateway share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.thinning import keep_two_engines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_two_engines(config, items, Path(__file__).parent)


@pytest.fixture
def sound(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing failed inside the gateway either."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelname == "ERROR"] == []

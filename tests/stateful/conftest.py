"""Slow tests: in CI each runs on two engines."""

from pathlib import Path

import pytest

from tests.support.thinning import keep_two_engines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep_two_engines(config, items, Path(__file__).parent)

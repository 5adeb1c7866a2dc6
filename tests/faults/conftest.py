"""What the tests of the gateway share."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def sound(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing failed inside the gateway either."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelname == "ERROR"] == []

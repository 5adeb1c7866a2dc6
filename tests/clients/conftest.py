"""A region and a gateway before it, for other people's clients and applications."""

from collections.abc import Iterator

import pytest

from tests.support.gateways import Served
from tests.support.regions import become
from tests.support.servers import Engine


@pytest.fixture
def served(engine: Engine) -> Iterator[Served]:
    become(engine)
    with Served(engine.url) as gateway:
        yield gateway

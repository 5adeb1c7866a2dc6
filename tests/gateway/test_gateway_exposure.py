"""A gateway on the network does not open an engine that requires no password."""

from collections.abc import Iterator

import pytest

from braidstream.engine.address import Listen
from braidstream.errors import ConfigError
from braidstream.gateway.hub import Settings
from tests.support.event_counts import counted_events
from tests.support.gateways import Line, Served
from tests.support.regions import become
from tests.support.servers import Engine, Flavour

ALL = "0.0.0.0:0"


@pytest.fixture
def alone(flavour: Flavour) -> Iterator[Engine]:
    with Engine(flavour) as engine:
        become(engine)
        yield engine


def test_it_refuses_to_listen_on_the_network_without_a_password_and_says_what_to_do(alone: Engine) -> None:
    with (
        pytest.raises(ConfigError, match=r"requires no password.*requirepass.*--tls-ca.*--allow-open"),
        Served(alone.url, listen=ALL),
    ):
        pass


def test_it_listens_where_that_is_allowed_and_warns(alone: Engine) -> None:
    with (
        counted_events() as counts,
        Served(alone.url, Settings(allow_open=True), listen=ALL) as gateway,
        Line(gateway.port) as line,
    ):
        assert line.say("PING") == b"+PONG\r\n"
    assert counts["gateway.open"] == 1


def test_it_listens_where_the_engine_asks_for_a_password(alone: Engine) -> None:
    with alone.client() as operator:
        operator.config_set("requirepass", "pp")
    url = alone.url.replace("//", "//:pp@")
    with Served(url, listen=ALL) as gateway, Line(gateway.port) as line:
        assert line.say("XLEN s").startswith(b"-NOAUTH")


@pytest.mark.parametrize(
    ("listen", "local"),
    [
        *((text, True) for text in ("127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "unix:/tmp/x")),
        *((text, False) for text in ("0.0.0.0:1", ":1", "[::]:1", "192.0.2.1:1", "host.example:1")),
    ],
)
def test_what_is_local(listen: str, local: bool) -> None:
    assert Listen.parse(listen).is_local is local

"""URLs: one server, or sentinels that name one. No secret is ever shown."""

import pytest

from braidstream.engine.address import network_of, parse_address, shown
from braidstream.errors import ConfigError
from braidstream.spark.options import urls

SENTINELS = "redis+sentinel://ada:s%40cret@one:26379,two,[::1]:26380/orders/3"


def test_a_sentinel_url_names_sentinels_a_service_a_user_and_a_database() -> None:
    address = parse_address(f"{SENTINELS}?sentinel_username=watch&sentinel_password=hidden")
    assert address.sentinels is not None
    assert address.sentinels.places == (("one", 26379), ("two", 26379), ("::1", 26380))
    assert address.sentinels.service == "orders"
    assert (address.user, address.password, address.db) == ("ada", "s@cret", 3)
    assert (address.sentinels.user, address.sentinels.password) == ("watch", "hidden")
    assert address.tls is None


def test_tls_is_for_sentinels_and_servers_alike() -> None:
    address = parse_address("rediss+sentinel://one/orders?ssl_check_hostname=false&ssl_cert_reqs=none")
    assert address.sentinels is not None
    assert address.tls is not None
    assert address.sentinels.tls is address.tls
    assert address.db == 0


@pytest.mark.parametrize(
    "url", [f"{SENTINELS}?sentinel_password=hidden", "rediss+sentinel://:s%40cret@one/orders"]
)
def test_no_secret_is_shown(url: str) -> None:
    address = parse_address(url)
    for text in (shown(url), str(address), repr(address)):
        assert "cret" not in text
        assert "hidden" not in text
    assert "one:26379" in shown(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://one:26379",
        "redis+sentinel:///orders",
        "redis+sentinel://one:x/orders",
        "sentinel://one/orders",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError, match="redis\\+sentinel://") as error:
        parse_address(url)
    assert "orders" not in str(error.value)


def test_the_same_url_is_the_same_address() -> None:
    assert parse_address(SENTINELS) == parse_address(SENTINELS)
    assert hash(parse_address(SENTINELS)) == hash(parse_address(SENTINELS))
    assert parse_address(SENTINELS) != parse_address(SENTINELS.replace("two", "three"))


def test_a_list_of_urls_keeps_the_hosts_of_sentinels_together() -> None:
    assert urls("fallbackUrls", f"{SENTINELS}, redis://b:1") == (SENTINELS, "redis://b:1")


def test_a_unix_socket_is_shown_by_its_path() -> None:
    assert shown("unix:///run/redis.sock?db=1&password=secret") == "unix:///run/redis.sock"
    assert shown("unix://user:secret@/run/redis.sock") == "unix:///run/redis.sock"
    assert shown("unix:///run/p@th") == "the given URL"


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_clients_are_counted_by_their_address_and_of_ipv6_by_their_network(host: str, network: str) -> None:
    assert network_of(host) == network

"""A peer region whose server sends hostile bytes must not hold up the links to the others."""

import time
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemons import numbered, replicating
from tests.support.proxy import Proxy
from tests.support.regions import client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

# Each announces values that never come. A parser reserves memory for all of them.
ANNOUNCED = {
    "an array": b"*2147483648\r\n",
    "a set": b"~1000000000\r\n",
    "in a push": b">2\r\n*2000000000\r\n",
    "one in the other": b"*9999\r\n" * 20_000,
}


@pytest.mark.parametrize(
    "reply",
    [
        "an array",
        pytest.param("a set", marks=pytest.mark.nightly("In CI: arrays")),
        pytest.param("in a push", marks=pytest.mark.nightly("In CI: arrays")),
        "one in the other",
    ],
)
def test_values_that_a_peer_only_announces_do_not_stop_the_daemon(
    flavour: Flavour, tmp_path: Path, reply: str
) -> None:
    with Engine(flavour) as one, Engine(flavour) as hostile, Engine(flavour) as sound:
        urls = numbered([one, hostile, sound])
        with (
            Proxy(hostile.port) as proxy,
            replicating(tmp_path, {**urls, 2: proxy.url}) as daemon,
            client_of(one) as here,
            client_of(sound) as there,
        ):
            daemon.tells("daemon.ready")
            proxy.answer(b"HELLO", ANNOUNCED[reply])
            took = []
            for number in range(20):
                entry, began = here.xadd("orders", {"n": number}), time.monotonic()
                arrived = partial(there.xrange, "orders", entry, entry)
                eventually(arrived, within_s=60, why="the sound link goes on")
                took.append(time.monotonic() - began)
            daemon.tells("its reply announces more than 4,000,000 values")
            assert max(took) < 5
            proxy.pass_on()
            with client_of(hostile) as again:
                eventually(lambda: again.xlen("orders") == 20, within_s=60, why="it is a peer again")


def test_a_peer_adds_no_regions_that_the_file_does_not_name(flavour: Flavour, tmp_path: Path) -> None:
    """With 1,023 regions each new group has 1,023 strands, and each check of a stream as many keys."""
    with Engine(flavour) as one, Engine(flavour) as hostile, Engine(flavour) as sound:
        urls = numbered([one, hostile, sound])
        with hostile.client() as peer, client_of(one) as here, client_of(sound) as there:
            peer.hset("bs:config", "writers", " ".join(map(str, range(1, 1_024))))
            with replicating(tmp_path, urls) as daemon:
                daemon.tells("link.up peer=region-2")
                entry = here.xadd("orders", {"n": "1"})
                eventually(lambda: there.xrange("orders", entry, entry), within_s=30, why="it is replicated")
            for client in (here, there):
                # Region 3 has no daemon of its own here: it may not know region 2 yet.
                assert client.hget("bs:config", "writers") in (b"1 2 3", b"1 3")

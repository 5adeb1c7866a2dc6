"""How many entries a peer lacks, while it cannot be reached."""

import asyncio
from collections.abc import Callable

import pytest

from braidstream.model import ids
from braidstream.replication.daemon.peer_lag import Lag
from tests.support.world import World


@pytest.mark.parametrize("count", [900, 2_500])
def test_all_entries_that_an_unreachable_peer_lacks_are_counted(
    make_world: Callable[..., World], count: int
) -> None:
    world, lag = make_world(2), Lag(writer=1)
    world[1].xadd("m", {"n": "sent"})
    with world.engines[0].client() as engine:
        [(sent, _)] = engine.xrange("bs:1:s:{m}")

    def write(entries: int) -> None:
        pipe = world[1].pipeline(transaction=False)
        for _ in range(entries):
            pipe.xadd("m", {"n": "1"})
        pipe.execute()

    def measured() -> int:
        asyncio.run(lag.measure(world.endpoints[1], None))
        assert lag.behind is not None
        return lag.behind.entries

    write(count)
    lag.changed(b"m")
    lag.lost(lambda strand: ids.native(sent), 0)
    assert measured() == count
    write(100)
    assert measured() == count + 100

"""A region goes back to an earlier state and loses deletions, while one of its peers is unreachable."""

from contextlib import ExitStack
from pathlib import Path

import braidstream
from tests.support.daemons import numbered, replicating
from tests.support.proxy import Proxy
from tests.support.rolling_back import bring_back, snapshot
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 30


def ids(region: braidstream.Redis) -> list[str]:
    return [entry for entry, _ in region.xrange("x")]


def becomes(region: braidstream.Redis, expected: list[str], why: str) -> None:
    eventually(lambda: ids(region) == expected, within_s=WITHIN_S, why=why)


def test_a_deletion_that_was_lost_is_done_again_by_the_only_peer_that_has_it(
    flavour: Flavour, tmp_path: Path
) -> None:
    """The journal is what shows the loss: it is not trimmed for the peer that comes back first."""
    with ExitStack() as stack:
        home, near, far = (stack.enter_context(Engine(flavour)) for _ in range(3))
        to_near, to_far = (stack.enter_context(Proxy(engine.port)) for engine in (near, far))
        urls = {**numbered([home, near, far]), 2: to_near.url, 3: to_far.url}
        one, two, three = (
            stack.enter_context(braidstream.Redis.from_url(engine.url, decode_responses=True))
            for engine in (home, near, far)
        )
        daemon = stack.enter_context(replicating(tmp_path, urls))
        daemon.tells("daemon.ready")
        first, *kept = [one.xadd("x", {"n": n}) for n in range(6)]
        one.xdel("x", first)  # so that the journal has something to be trimmed of
        for peer in (two, three):
            becomes(peer, kept, "the first deletion has come")
        close(to_near)
        daemon.tells("link.lost peer=region-2")
        earlier = snapshot(home)
        oldest, lost, *rest = kept  # the deletion of the oldest entry would travel as a trim
        one.xdel("x", lost)
        becomes(three, [oldest, *rest], "the deletion has come that will be lost")
        close(to_far)
        daemon.tells("link.lost peer=region-3")
        bring_back(home, earlier)
        assert ids(one) == kept
        with home.client() as operator:
            for kind in ("normal", "pubsub"):
                operator.client_kill_filter(_type=kind, skipme=True)
        to_near.open()
        while len(rest) > 1:  # each is one more round of the link to the near region
            one.xdel("x", rest.pop(0))
            becomes(two, [oldest, lost, *rest], "the near region follows")
        to_far.open()
        for region in (one, two, three):
            becomes(region, [oldest, *rest], "the lost deletion is done again")


def close(line: Proxy) -> None:
    line.cut_off()

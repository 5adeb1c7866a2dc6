"""What clients hear from sentinels. A plain server stands for a sentinel: it publishes the same events."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from braidstream.engine import sentinel_pool
from braidstream.engine.address import parse_address
from braidstream.engine.sentinel_pool import FailoverWatch
from braidstream.engine.sentinels import Sentinels
from tests.support.servers import FLAVOURS, WITH_TLS, Engine, Flavour
from tests.support.waiting import eventually


@pytest.fixture
def watch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[FailoverWatch]:
    monkeypatch.setattr(sentinel_pool, "OPEN_AFTER_S", 0.0)
    monkeypatch.setattr(sentinel_pool, "OPEN_AGAIN_S", 0.1)
    with closing(FailoverWatch(Sentinels((("127.0.0.1", engine.port),), "m"))) as watch:
        _until_subscribed(watch, engine)
        yield watch


def _until_subscribed(watch: FailoverWatch, engine: Engine) -> None:
    def is_subscribed() -> bool:
        watch.look()
        with engine.client() as client:
            return bool(client.pubsub_numpat())

    eventually(is_subscribed, within_s=10, why="the watch should subscribe")


def test_clients_hold_from_the_attempt_to_the_promotion(watch: FailoverWatch, engine: Engine) -> None:
    assert not watch.holds
    with engine.client() as sentinel:
        sentinel.publish("+try-failover", "master m 127.0.0.1 6379")
        eventually(lambda: (watch.read(), watch.holds)[1], within_s=5, why="a failover begins")
        sentinel.publish("+promoted-slave", "slave 127.0.0.1:6380 127.0.0.1 6380 @ m 127.0.0.1 6379")
        eventually(lambda: (watch.read(), not watch.holds)[1], within_s=5, why="the new primary is known")
        assert (watch.primary, watch.switches) == (("127.0.0.1", 6380), 1)
        sentinel.publish("+switch-master", "m 127.0.0.1 6379 127.0.0.1 6380")
        sentinel.publish("+switch-master", "m 127.0.0.1 6380 127.0.0.1 6379")
        eventually(
            lambda: (watch.read(), watch.switches)[1] == 2, within_s=5, why="the same primary counts once"
        )


@pytest.mark.parametrize("event", ["-failover-abort-no-good-slave", "+failover-end-for-timeout"])
def test_clients_go_on_when_a_failover_is_given_up(watch: FailoverWatch, engine: Engine, event: str) -> None:
    with engine.client() as sentinel:
        sentinel.publish("+try-failover", "master m 127.0.0.1 6379")
        eventually(lambda: (watch.read(), watch.holds)[1], within_s=5, why="a failover begins")
        sentinel.publish(event, "master m 127.0.0.1 6379")
        eventually(lambda: (watch.read(), not watch.holds)[1], within_s=5, why="it ended")
    assert (watch.primary, watch.switches) == (None, 0)


def test_events_of_other_services_and_unknown_ones_change_nothing(
    watch: FailoverWatch, engine: Engine
) -> None:
    with engine.client() as sentinel:
        sentinel.publish("+try-failover", "master other 127.0.0.1 6379")
        sentinel.publish("+switch-master", "other 127.0.0.1 6379 127.0.0.1 6380")
        sentinel.publish("+promoted-slave", "slave x 127.0.0.1 6380 @ other 127.0.0.1 6379")
        sentinel.publish("+failover-state-select-slave", "master m 127.0.0.1 6379")
        sentinel.publish("+switch-master", "m and words that no sentinel sends")
        sentinel.publish("+switch-master", "m 127.0.0.1 6379 127.0.0.1 6381")
    eventually(lambda: (watch.read(), watch.switches)[1], within_s=5, why="the last one counts")
    assert (watch.primary, watch.switches, watch.holds) == (("127.0.0.1", 6381), 1, False)


def test_a_lost_sentinel_is_subscribed_to_again(watch: FailoverWatch, engine: Engine) -> None:
    with engine.client() as sentinel:
        sentinel.client_kill_filter(_type="pubsub")
        eventually(lambda: not sentinel.pubsub_numpat(), within_s=5, why="the connection should be closed")
    _until_subscribed(watch, engine)


def test_a_forked_process_has_its_own_subscription(watch: FailoverWatch, engine: Engine) -> None:
    child = os.fork()
    if not child:
        try:
            with engine.client() as client:
                eventually(
                    lambda: (watch.read(), len(client.client_list(_type="pubsub")) == 2)[1],
                    within_s=10,
                    why="parent and child should be subscribed",
                )
                watch.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with engine.client() as sentinel:
        sentinel.publish("+switch-master", "m 127.0.0.1 6379 127.0.0.1 6380")
    eventually(lambda: (watch.read(), watch.switches)[1], within_s=5, why="the parent still hears")


def test_a_closed_watch_leaves_no_connection(watch: FailoverWatch, engine: Engine) -> None:
    watch.close()
    with engine.client() as sentinel:
        eventually(lambda: not sentinel.pubsub_numpat(), within_s=5, why="it is closed")


@pytest.mark.parametrize("flavour", [each for each in FLAVOURS if each in WITH_TLS][:1], indirect=True)
def test_a_watch_hears_over_tls(flavour: Flavour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel_pool, "OPEN_AFTER_S", 0.0)
    with Engine(flavour, tls=True) as engine:
        tls = parse_address(engine.url).tls
        assert tls is not None
        with closing(FailoverWatch(Sentinels((("127.0.0.1", engine.port),), "m", tls=tls))) as watch:
            _until_subscribed(watch, engine)
            with engine.client() as sentinel:
                sentinel.publish("+switch-master", "m 127.0.0.1 6379 127.0.0.1 6380")
            eventually(lambda: (watch.read(), watch.switches)[1], within_s=5, why="it should hear")
            assert watch.primary == ("127.0.0.1", 6380)

"""The tests of one server's clients again, through the cluster clients: replies, errors, waits, lost replies.

The tests are those of other files. Here the server is a cluster of one node, and each test runs through one
of the two cluster clients, by turns: all but their I/O is the same code.
"""

import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import braidstream
from braidstream.model import keys
from tests.client import (
    test_blocking,
    test_clients,
    test_idempotence,
    test_idempotent_clients,
    test_lost_connections,
    test_raised,
    test_redis_py_range,
)
from tests.support.clients import Opener
from tests.support.cluster import start_alone
from tests.support.proxy import Proxy
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

AGAIN = (
    test_blocking.test_a_waiting_reader_is_woken_by_an_append,
    test_blocking.test_maxcount_and_maxsize_cap_the_whole_reply_of_xread,
    test_blocking.test_plus_reads_the_last_entry_and_dollar_what_comes_after_it,
    test_clients.test_a_group_is_created_with_a_scope,
    test_clients.test_xdelex_answers_for_each_id,
    test_idempotence.test_both_clients_know_messages,
    test_idempotent_clients.test_a_message_whose_reply_is_lost_is_sent_again_and_stands_once,
    test_idempotent_clients.test_a_pipeline_far_larger_than_what_is_kept_is_sent_again_as_a_whole,
    test_idempotent_clients.test_a_pipeline_with_commands_that_count_twice_is_not_sent_again,
    test_idempotent_clients.test_chosen_ids_are_sent_once_as_ever,
    test_idempotent_clients.test_it_does_not_depend_on_how_few_are_kept,
    test_idempotent_clients.test_more_messages_of_one_name_than_are_kept_are_not_sent_again,
    test_idempotent_clients.test_without_it_nothing_is_sent_again,
    test_lost_connections.test_a_connection_that_was_cut_while_idle_is_replaced_before_an_append_is_sent,
    test_lost_connections.test_a_read_whose_reply_is_lost_is_asked_again,
    test_lost_connections.test_an_append_whose_reply_is_lost_was_sent_once_and_the_error_says_so,
    test_lost_connections.test_no_write_is_sent_again_after_a_lost_reply,
    test_raised.test_a_refusal_in_a_pipeline_names_its_command,
    test_raised.test_a_refusal_is_ours_and_an_error_reply,
    test_raised.test_a_server_that_is_no_region_is_an_error_of_redis_py_too,
    test_raised.test_error_replies_are_redis_pys_in_its_words,
    test_redis_py_range.test_a_blocking_read_waits_longer_than_the_socket_timeout,
    test_redis_py_range.test_every_append_uses_the_encoding_of_the_client,
    test_redis_py_range.test_memory_that_is_full_is_told_in_redis_pys_class,
    test_redis_py_range.test_streams_groups_and_plain_keys_work,
)
globals().update({test.__name__: test for test in AGAIN})


@pytest.fixture(scope="session")
def lone_nodes() -> Iterator[dict[Flavour, Engine]]:
    started = dict[Flavour, Engine]()
    yield started
    for node in started.values():
        node.stop()


@pytest.fixture
def engine(flavour: Flavour, lone_nodes: dict[Flavour, Engine]) -> Engine:
    if flavour not in lone_nodes:
        lone_nodes[flavour] = start_alone(flavour)
    lone_nodes[flavour].flush()
    return lone_nodes[flavour]


@pytest.fixture
def proxy(engine: Engine) -> Iterator[Proxy]:
    """The cluster says that its node is at the proxy."""
    become(engine)
    with Proxy(engine.port) as between, engine.client() as operator:
        operator.config_set("cluster-announce-port", between.port)
        yield between
        operator.config_set("cluster-announce-port", 0)


@pytest.fixture
def region(engine: Engine) -> Iterator[braidstream.RedisCluster]:
    """A client that does not use the proxy."""
    become(engine)
    with braidstream.RedisCluster.from_url(
        engine.url, decode_responses=True, address_remap=lambda address: ("127.0.0.1", engine.port)
    ) as client:
        yield client


@pytest.fixture
def liberal(engine: Engine) -> None:
    become(engine, id_mode="liberal")


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[Opener]:
    kind = ("sync", "asyncio")[zlib.crc32(request.node.nodeid.encode()) % 2]
    with ExitStack() as stack:
        yield Opener(kind, stack, "RedisCluster")


def test_a_wait_that_reaches_its_node_late_is_ended_too(
    opened: Opener, proxy: Proxy, region: braidstream.RedisCluster, background: ThreadPoolExecutor
) -> None:
    for name in "xy":
        region.xadd(name, {"n": "0"})
    client = opened(proxy.url, decode_responses=True)
    proxy.stall(keys.strand(b"y", "c", 1))  # only a read that waits names a strand that does not exist
    reader = background.submit(client.xread, {"x": "$", "y": "$"}, block=60_000)
    try:
        assert proxy.stalled.wait(20)
        entry = region.xadd("x", {"n": "1"})
        eventually(
            lambda: any(b"UNBLOCK" in sent for sent in proxy.requests),
            within_s=20,
            why="the other wait should be ended before it has begun",
        )
    finally:
        proxy.stall(b"never again")
        proxy.go_on()
    assert reader.result(20) == [["x", [(entry, {"n": "1"})]]]

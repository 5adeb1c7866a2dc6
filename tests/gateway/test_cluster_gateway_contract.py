"""The tests of a gateway before one server again, before a cluster. Plain clients notice no difference.

Most need a cluster of one node only. `bare` is one server that is not a cluster.
"""

from collections.abc import Iterator

import pytest

from tests.gateway import test_gateway
from tests.long.test_differential import SEEDED_LENGTH, SeededDice
from tests.oracle.differential import Mismatch, Tally, compare, sequence
from tests.oracle.differential.cluster_gateway_side import ClusterGatewayServers
from tests.oracle.differential.cluster_side import for_cluster
from tests.support.cluster import start_alone
from tests.support.gateways import Line, Served
from tests.support.servers import Engine, Flavour

AGAIN = (
    test_gateway.test_a_blocked_reader_hinders_nobody_and_is_woken,
    test_gateway.test_a_blocked_reader_that_leaves_takes_its_connection_along,
    test_gateway.test_a_command_that_takes_several_steps_is_refused_in_multi_with_the_reason,
    test_gateway.test_a_pipeline_of_everything_is_answered_in_order,
    test_gateway.test_a_spoilt_multi_with_streams_does_nothing,
    test_gateway.test_an_append_after_the_stream_was_deleted_makes_it_again,
    test_gateway.test_appends_in_pipelines_of_many_clients_each_get_their_own_ids,
    test_gateway.test_info_counts_the_keys_that_users_see,
    test_gateway.test_messages_come_though_replies_are_off,
    test_gateway.test_messages_come_while_streams_are_used,
    test_gateway.test_set_on_the_name_of_a_stream_replaces_it,
)
globals().update({test.__name__: test for test in AGAIN})

# Keys of the native commands. On a cluster, those of one MULTI or one RENAME must share a slot.
KEYS = frozenset(("k", "k2", "k3", "l", "h", "s", "z", "n", "none", "nolist"))
COMMANDS = 1_000


@pytest.fixture(scope="module")
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
def bare(flavour: Flavour, served: Served, engines: dict[Flavour, Engine]) -> Iterator[Line]:
    if flavour not in engines:
        engines[flavour] = Engine(flavour).start()
    engines[flavour].flush()
    with Line(engines[flavour].port) as one:
        yield one


@pytest.mark.parametrize("resp", [2, 3])
def test_plain_commands_get_the_bytes_of_one_server(line: Line, bare: Line, resp: int) -> None:
    for one in (line, bare):
        one.say(f"HELLO {resp}")
    for words in test_gateway.NATIVE:
        if words.startswith("SELECT"):
            continue
        tagged = [f"{{t}}{word}" if word in KEYS else word for word in words.split()]
        if words == "UNSUBSCRIBE":
            tagged += ["a", "b"]  # without names each server has an order of its own
        for one in (line, bare):
            one.send(*tagged)
        for _ in range(2 if words.startswith(("SUBSCRIBE", "UNSUBSCRIBE")) else 1):
            assert (tagged, line.read()) == (tagged, bare.read())


def test_seeded_sequences_are_answered_as_by_one_bare_engine(flavour: Flavour) -> None:
    seed, tally = 9000, Tally()
    with ClusterGatewayServers(flavour) as servers:
        while tally.total < COMMANDS:
            script = for_cluster(sequence(SeededDice(seed), SEEDED_LENGTH), spread=seed % 2 == 1)
            try:
                compare(servers, script, tally)
            except Mismatch as error:
                pytest.fail(f"seed {seed}: {error}", pytrace=False)
            seed += 1

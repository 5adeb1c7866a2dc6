"""XADD with KEY, through a gateway: an append to the partition of the key, for clients in any language."""

from collections.abc import Iterator
from contextlib import contextmanager

import redis

import braidstream
from braidstream.model.topic import Topic
from braidstream.operations.rights import program_rights
from tests.support.cluster import Cluster, become_cluster
from tests.support.gateways import Line, Served
from tests.support.regions import become
from tests.support.servers import Engine


@contextmanager
def gateway_of(place: Engine | Cluster) -> Iterator[Served]:
    is_cluster = isinstance(place, Cluster)
    (become_cluster if is_cluster else become)(place)  # type: ignore[operator]
    with Served(place.url) as gateway:
        kind = braidstream.RedisCluster if is_cluster else braidstream.Redis
        with kind.from_url(place.url) as client:
            client.topic("orders").create(8)
            client.topic("other").create(3)
        yield gateway


def test_entries_go_to_the_partitions_of_their_keys(engine: Engine) -> None:
    with gateway_of(engine) as served:
        check_places(served)


def test_entries_go_to_the_partitions_of_their_keys_on_a_cluster(cluster: Cluster) -> None:
    with gateway_of(cluster) as served:
        check_places(served)


def check_places(served: Served) -> None:
    with redis.Redis(port=served.port, decode_responses=True) as client, Line(served.port) as line:
        first = client.execute_command("XADD orders KEY ada * item book")
        second = client.execute_command(
            "xadd", "orders", "key", "ada", "MAXLEN", "~", 100, "*", "item", "pen"
        )
        [partition] = client.scan_iter("orders/*")
        assert [entry for entry, _ in client.xrange(partition)] == [first, second]
        told = [
            f"XADD {name} KEY k{number} * n {number}" for number in range(60) for name in ("orders", "other")
        ]
        replies = line.pipeline(*told[:60], "PING", *told[60:])
        assert replies.pop(60) == b"+PONG\r\n"
        assert all(reply.startswith(b"$") for reply in replies)
        for topic in (Topic(b"orders", 8), Topic(b"other", 3)):
            for number in range(60):
                where = topic.streams[topic.partition_of(b"k%d" % number)]
                assert any(fields.get("n") == str(number) for _, fields in client.xrange(where))


def test_a_missing_topic_is_refused(engine: Engine) -> None:
    with gateway_of(engine) as served, Line(served.port) as line:
        refused = line.say("XADD payments KEY a * n 1")
        assert refused.startswith(b"-ERR there is no topic payments. Create it: braid topic create payments")
        for unanswered in ("CLIENT REPLY SKIP", "XADD orders KEY a * n 1"):
            line.send(*unanswered.split())
        assert line.say("PING") == b"+PONG\r\n"
        assert line.say("MULTI") == b"+OK\r\n"
        assert line.say("XADD orders KEY a * n 2") == b"+QUEUED\r\n"
        assert line.say("EXEC").startswith(b"*1\r\n")
        assert line.say("MULTI") == b"+OK\r\n"
        assert line.say("XADD payments KEY a * n 2") == b"+QUEUED\r\n"
        assert line.say("EXEC").startswith(b"*1\r\n-ERR Invalid stream ID")
        assert line.say("XADD orders KEY a *").startswith(b"-ERR")
        assert line.say("EXISTS payments orders") == b":0\r\n"


def test_a_user_with_the_rights_of_a_writer_may_append(engine: Engine) -> None:
    rights = program_rights("writer", [], topics=["orders"])
    with gateway_of(engine) as served, engine.client() as admin, Line(served.port) as line:
        admin.execute_command("ACL", "SETUSER", "checkout", "reset", "on", ">secret", *rights)
        assert line.say("AUTH checkout secret") == b"+OK\r\n"
        assert line.say("XADD orders KEY ada * item book").startswith(b"$")
        assert line.say("XADD other KEY ada * item book").startswith(b"-NOPERM")

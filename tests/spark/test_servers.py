"""Wherever Spark connects, TLS, ACL users and clusters work, and no secret is shown."""

from typing import Any

import pytest

from braidstream.errors import OptionError, UnreachableError
from tests.support.cluster import Cluster
from tests.support.microbatch import Micro
from tests.support.servers import Engine
from tests.support.sinks import Sink


def test_tls_and_an_acl_user(tmp_path: Any) -> None:
    with Engine("redis-7.0", tls=True) as engine:
        with engine.client() as client:
            client.execute_command("ACL", "SETUSER", "spark", "on", ">secret", "~*", "+@all")
            client.execute_command("ACL", "SETUSER", "default", "off")
        login = {"redis.username": "spark", "redis.password": "secret"}
        Sink(engine.url, **login).run(0, [1, 2, 3])
        assert Micro({"url": engine.url, "streams": "out", **login}).numbers() == [1, 2, 3]
        with pytest.raises(UnreachableError) as refused:
            Micro(
                {"url": engine.url, "streams": "out", "redis.username": "spark", "redis.password": "wr0ng"}
            ).run()
        assert "wr0ng" not in str(refused.value)


def test_no_server_answers_and_the_address_is_told_without_its_password() -> None:
    query = Micro({"url": "redis://user:hidden@127.0.0.1:1/0", "streams": "a", "redis.socket_timeout": "0.1"})
    with pytest.raises(UnreachableError, match="redis://127.0.0.1:1/0") as refused:
        query.run()
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("option", [{"redis.socket_timeout": "5"}, {"redis.cluster": "true"}])
def test_a_url_that_cannot_be_read_is_told_without_its_password(option: dict[str, str]) -> None:
    query = Micro({"url": "redis://user:hid/den@host:6379/0", "streams": "a", **option})
    with pytest.raises(OptionError, match="option url: cannot be read") as refused:
        query.run()
    assert "hid" not in str(refused.value)


def test_a_cluster_that_does_not_answer_leaves_the_next_one(cluster: Cluster) -> None:
    whole, down = {"redis.cluster": "true"}, "redis://127.0.0.1:1"
    Sink(cluster.url, **whole).run(0, [1])
    Sink(cluster.url, fallbackUrls=down, **whole).run(1, [2])
    assert Micro({"url": down, "fallbackUrls": cluster.url, "streams": "out", **whole}).numbers() == [1, 2]


def test_a_cluster(cluster: Cluster) -> None:
    """Streams that lie on different nodes, found by a pattern, written by a column."""
    whole = {"redis.cluster": "true"}
    names = ["out-a", "out-b", "out-c", "out-d"]
    sink = Sink(cluster.url, stream=None, **whole)
    rows = [{"stream": name, "n": at * 10 + n} for at, name in enumerate(names) for n in range(5)]
    sink.commit(0, sink.write(rows))
    sink.commit(0, sink.write(rows))
    wanted = sorted(row["n"] for row in rows)
    found = Micro({"url": cluster.url, "streamPattern": "out-*", "maxEntriesPerTrigger": 7, **whole})
    assert found.numbers() == wanted

"""The console with a region that is a cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

import braidstream
from braidstream.consumers.dead_letters import DeadLetter
from braidstream.model import keys
from tests.console.test_console_access import Visit
from tests.console.test_console_bounds import viewer
from tests.support.cluster import Cluster, become_cluster
from tests.support.consoles import console
from tests.support.daemons import write_config

NAMES = [f"orders-{number}" for number in range(6)]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Any]:
    become_cluster(cluster, region=1, name="region-1")
    with braidstream.RedisCluster.from_url(cluster.url, decode_responses=True) as opened:
        for name in NAMES:
            opened.xadd(name, {"order": name})
            opened.xgroup_create(name, "billing", "0")
        opened.twrite("audit", "login", "ann")
        yield opened


def test_pages_show_the_streams_of_all_nodes_to_a_user_who_may_only_read(
    cluster: Cluster, client: Any, tmp_path: Path
) -> None:
    owners = {cluster.owner(key_slot(keys.meta(name.encode()))).port for name in NAMES}
    assert len(owners) == 3
    user = [*viewer().split(), "+cluster|slots", "+cluster|nodes"]
    for node in cluster.nodes:
        with node.client() as admin:
            admin.execute_command(*user)
    config = write_config(tmp_path / "braid.toml", {1: cluster.url.replace("redis://", "redis://viewer:pw@")})
    try:
        with console(config) as url:
            listed = Visit(url, "/streams").text
            assert [name for name in NAMES if f">{name}<" in listed] == NAMES
            for name in NAMES:
                for path in ("stream", "entries", "tail", "dead"):
                    answer = Visit(url, f"/{path}?name={name}")
                    assert answer.status == 200, answer.text
                    assert "NOPERM" not in answer.text
                assert name in Visit(url, f"/entries?name={name}").text
                assert Visit(url, f"/group?name={name}&group=billing").status == 200
            assert "billing" in Visit(url, "/groups").text
            assert "ann" in Visit(url, "/log?name=audit").text
            for path in ("/", "/logs", "/doctor"):
                assert Visit(url, path).status == 200
    finally:
        for node in cluster.nodes:
            with node.client() as admin:
                admin.execute_command("ACL", "DELUSER", "viewer")


def test_a_primary_that_does_not_answer_is_left_out_of_lists(
    cluster: Cluster, client: Any, tmp_path: Path
) -> None:
    lost = cluster.nodes[1]
    there = [name for name in NAMES if cluster.owner(key_slot(keys.meta(name.encode()))) is lost]
    elsewhere = [name for name in NAMES if name not in there]
    with console(write_config(tmp_path / "braid.toml", {1: cluster.url})) as url:
        assert all(f">{name}<" in Visit(url, "/streams").text for name in NAMES)
        with lost.paused():
            Visit(url, "/streams")  # it takes a second to notice
            for path in ("/streams", "/groups"):
                seen = Visit(url, path).text
                assert [name for name in NAMES if f">{name}<" in seen] == elsewhere
                assert f"<b>127.0.0.1:{lost.port}</b> does not answer" in seen
            assert f"127.0.0.1:{lost.port}" in Visit(url, "/logs").text


def test_a_dead_letter_is_retried_though_its_stream_is_in_another_slot(
    cluster: Cluster, client: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    letter = DeadLetter("orders-1", "1-1", "billing", "ann", 5, "why", (b"order", b"late"))
    entry = client.execute_command("XADD", "orders-1.dead", "*", *letter.to_words())
    config = write_config(tmp_path / "braid.toml", {1: cluster.url})
    with console(config, "--allow-write") as url:
        page = Visit(url, "/dead?name=orders-1.dead")
        form = {"token": page.token, "name": "orders-1.dead", "region": "region-1", "id": entry}
        done = Visit(url, "/dead/retry", form=form, Cookie=page.cookie)
        assert done.status in (200, 303), done.text
    assert [fields for _, fields in client.xrange("orders-1")][-1] == {"order": "late"}
    assert client.xlen("orders-1.dead") == 0
    said = capfd.readouterr().err
    assert 'console.changed what="dead letters retried" count=1 region=region-1 stream=orders-1.dead' in said
    assert "client=127.0.0.1" in said

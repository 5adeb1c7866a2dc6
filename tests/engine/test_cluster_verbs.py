"""The verbs of `braid` on a cluster, named by one of its nodes, as an operator types them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import Result
from redis.crc import key_slot
from typer.testing import CliRunner

import braidstream
from braidstream import lua as functions
from braidstream.cli.main import app
from braidstream.consumers.dead_letters import DeadLetter
from braidstream.model import keys
from tests.support.cluster import Cluster, SlotMove, become_cluster
from tests.support.forked import braid_process
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

NAMES = ["orders", "payments", "a}b", "events-1", "events-2", "events-3"]


def slot(name: str) -> int:
    return int(key_slot(keys.meta(name.encode())))


def braid(*words: str) -> Result:
    """A verb, in this process: a process for each would take most of the time of these tests."""
    return CliRunner().invoke(app, words)


def typed(cluster: Cluster, *words: str, code: int = 0) -> Any:
    """The result in JSON of a verb."""
    done = braid(*words, "--url", cluster.nodes[1].url, "--json")
    assert (done.exit_code, done.stderr) == (code, ""), done
    return json.loads(done.stdout)


@pytest.fixture
def client(cluster: Cluster) -> Any:
    become_cluster(cluster)
    with braidstream.RedisCluster.from_url(cluster.url, decode_responses=True) as opened:
        yield opened


def test_streams_and_groups_of_all_nodes_are_listed(cluster: Cluster, client: Any) -> None:
    assert {cluster.owner(slot(name)) for name in NAMES} == set(cluster.nodes)
    for at, name in enumerate(NAMES):
        for n in range(at + 1):
            client.xadd(name, {"n": n})
        client.xgroup_create(name, "billing", "0")
    client.xreadgroup("billing", "ann", {"orders": ">", "payments": ">"}, count=1)
    with SlotMove(cluster, slot("orders")) as move:
        move.move(keys.meta(b"orders"))
        found = typed(cluster, "streams")["streams"]
        assert {each["name"]: each["entries"] for each in found} == {
            name: at + 1 for at, name in enumerate(NAMES)
        }
        assert all(each["bytes"] > 0 and each["groups"] == 1 for each in found)
    groups = {each["stream"]: each for each in typed(cluster, "groups")["groups"]}
    assert (groups["payments"]["lag"], groups["payments"]["pending"]) == (1, 1)
    assert {name: each["lag"] for name, each in groups.items() if name.startswith("events")} == {
        "events-1": 4,
        "events-2": 5,
        "events-3": 6,
    }
    listed = typed(cluster, "groups", "--pattern", "events-*")["groups"]
    assert [each["stream"] for each in listed] == ["events-1", "events-2", "events-3"]
    shown = braid("streams", "--url", cluster.url, "--pattern", "events*", "--limit", "2").stdout
    assert "Only the first 2 streams by name" in shown


def test_a_stream_is_followed_while_its_slot_moves(cluster: Cluster, client: Any) -> None:
    client.xadd("orders", {"n": 1})
    words = ["tail", "orders", "--url", cluster.nodes[1].url, "--json"]
    with braid_process(words, stdout=subprocess.PIPE, text=True) as tail:
        assert tail.stdout is not None
        try:
            assert json.loads(tail.stdout.readline())["fields"] == {"n": "1"}
            with SlotMove(cluster, slot("orders")) as move:
                move.finish()
                client.xadd("orders", {"n": 2})
                assert json.loads(tail.stdout.readline())["fields"] == {"n": "2"}
        finally:
            tail.terminate()


def test_dead_letters_are_listed_retried_and_dropped(cluster: Cluster, client: Any) -> None:
    assert slot("orders") != slot("orders.dead")
    assert slot("{orders}.dead") == slot("orders")
    for dead in ("orders.dead", "{orders}.dead"):
        for n in range(3):
            letter = DeadLetter("orders", f"{n + 1}-1", "billing", "w", 5, "no", (b"n", b"1", b"n", b"2"))
            client.execute_command("XADD", dead, "*", *letter.to_words())
        [first, second, third] = [each["id"] for each in typed(cluster, "dead", "list", dead)["letters"]]
        [done] = typed(cluster, "dead", "retry", dead, first)["retried"]
        assert (done["id"], done["stream"]) == (first, "orders")
        assert client.xrange("orders")[-1][0] == done["as"]
        assert typed(cluster, "dead", "retry", dead, first, code=1)["code"] == "NODEADLETTER"
        assert typed(cluster, "dead", "drop", dead, second) == {"stream": dead, "dropped": 1}
        assert [entry for entry, _ in client.xrange(dead)] == [third]
    with braidstream.RedisCluster.from_url(cluster.url) as raw:
        assert [len(fields) for _, fields in raw.xrange("orders")] == [1, 1]
    assert client.xlen("orders") == 2


def test_a_cluster_that_is_no_region_says_so(cluster: Cluster) -> None:
    told = typed(cluster, "streams", code=1)
    assert told["code"] == "NOREGION"


# Setup


def regions(cluster: Cluster, folder: Path) -> str:
    path = folder / "braid.toml"
    path.write_text(f'[[region]]\nid = 1\nname = "us-east"\nurl = "{cluster.nodes[1].url}"\n')
    return str(path)


def test_status_shows_a_cluster_in_which_nothing_is_wrong(
    cluster: Cluster, client: Any, tmp_path: Path
) -> None:
    config = regions(cluster, tmp_path)
    done = braid("status", "--config", config)
    assert done.exit_code == 0, done.stdout
    assert "3 primaries" in done.stdout
    assert "No problems found." in done.stdout
    [region] = json.loads(braid("status", "--config", config, "--json").stdout)["regions"]
    assert {each["name"] for each in region["nodes"]} == {place(node) for node in cluster.nodes}
    assert sum(each["slots"] for each in region["nodes"]) == 16384
    shown = braid("status", "--url", cluster.nodes[2].url)
    assert (shown.exit_code, "3 primaries" in shown.stdout) == (0, True), shown.output
    found = json.loads(braid("doctor", "--url", cluster.url, "--json").stdout)["findings"]
    serious = {each["check"] for each in found if each["level"] != "note"}
    assert serious == {"persistence"}  # servers of tests have none


def test_doctor_names_the_node_where_something_is_wrong(flavour: Flavour, tmp_path: Path) -> None:
    with Cluster(flavour) as cluster:
        become_cluster(cluster)
        config = regions(cluster, tmp_path)
        first, second, third = cluster.nodes
        replica = cluster.add_replica(first)
        with braidstream.RedisCluster.from_url(cluster.url) as client:
            client.xadd("orders", {"n": 1})
        with redis.RedisCluster.from_url(cluster.url) as plain:
            plain.xadd("orders", {"stray": 1})
            for n in range(6):
                plain.xadd(f"native-{n}", {"n": n})
        with second.client() as node:
            node.config_set("maxmemory-policy", "allkeys-lru")
            node.function_flush("SYNC")
            node.function_load(functions.source(functions.VERSION - 1))
        with third.client() as node:
            node.config_set("save", "")
            node.config_set("appendonly", "no")
        SlotMove(cluster, 12_000).begin()
        done = braid("doctor", "--config", config, "--json")
        assert done.exit_code == 1
        found = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
        assert found["eviction"]["nodes"] == [place(second)]
        assert found["functions"]["nodes"] == [place(second)]
        assert place(third) in found["persistence"]["nodes"]
        assert (found["moving"]["level"], "12000" in found["moving"]["text"]) == ("warning", True)
        assert set(found["replicas"]["nodes"]) == {place(second), place(third)}
        assert "orders" in found["stray"]["text"]
        assert all(f"native-{n}" in found["native"]["text"] for n in range(5))
        assert "braid init" in found["functions"]["fix"]
        replica.stop()
        third.stop()
        with first.client() as node:
            node.execute_command("CLUSTER", "DELSLOTS", 5)
        done = braid("status", "--config", config, "--json")
        problems = json.loads(done.stdout)["problems"]
        assert "slots 5" in next(each for each in problems if each["kind"] == "slots")["text"]
        lost = [each for each in problems if each["kind"] == "node"]
        assert {name for each in lost for name in each["nodes"]} == {place(replica), place(third)}
        shown = braid("status", "--config", config).stdout
        assert f"us-east ({place(third)}): a primary cannot be used" in " ".join(shown.split())


def place(node: Engine) -> str:
    return f"127.0.0.1:{node.port}"


# Changes


def test_the_id_mode_is_changed_on_every_node(cluster: Cluster, client: Any) -> None:
    with pytest.raises(redis.ResponseError):
        client.xadd("orders", {"n": 1}, id="5-5")
    told = typed(cluster, "tune", "id-mode", "liberal")
    assert told == {"region": 1, "name": "us-east", "id_mode": "liberal"}
    facts = set()
    for node in cluster.nodes:
        with node.client() as bare:
            facts.add(tuple(bare.fcall_ro("bs_region", 0)))
    [only] = facts
    assert dict(zip(only[::2], only[1::2], strict=True))[b"topology"] == b"2"
    eventually(lambda: _takes(client, "5-5"), within_s=10, why="clients should follow")
    with cluster.owner(key_slot(keys.FACTS_LOCK)).client() as bare:
        assert bare.exists(keys.FACTS_LOCK) == 0


def _takes(client: Any, entry: str) -> bool:
    try:
        return bool(client.xadd("orders", {"n": 1}, id=entry) == entry)
    except redis.ResponseError:
        return False


def test_native_streams_are_adopted_and_given_back_each_in_its_slot(cluster: Cluster, client: Any) -> None:
    names = [f"legacy-{n}" for n in range(6)]
    with redis.RedisCluster.from_url(cluster.url, decode_responses=True) as plain:
        for name in (*names, "x}y"):
            plain.xadd(name, {"n": 1})
            plain.xadd(name, {"n": 2})
            plain.xgroup_create(name, "billing", "0")
        plain.xreadgroup("billing", "ann", {"legacy-0": ">"}, count=1)
        assert {cluster.owner(slot(name)) for name in names} == set(cluster.nodes)
        told = typed(cluster, "adopt", "legacy*", "--dry-run")
        assert [each["name"] for each in told["streams"]] == names
        with SlotMove(cluster, slot("legacy-1")) as move:
            move.finish()
            told = typed(cluster, "adopt", "*", code=1)
        assert (told["done"], told["failed"]) == (6, 1)
        assert told["streams"][0] == {"name": "legacy-0", "entries": 2, "groups": 1, "pending": 1}
        assert "in another slot" in told["streams"][-1]["problem"]
        for name in names:
            assert plain.type(name) == "hash"
            client.xadd(name, {"n": 3})
            assert [fields["n"] for _, fields in client.xrange(name)] == ["1", "2", "3"]
        assert client.xpending("legacy-0", "billing")["pending"] == 1
        told = typed(cluster, "adopt", "legacy*", "--undo")
        assert (told["done"], told["failed"]) == (6, 0)
        assert [plain.xlen(name) for name in names] == [3] * 6


def test_what_was_written_beside_streams_is_brought_in(cluster: Cluster, client: Any) -> None:
    names = ["legacy-1", "legacy-2", "legacy-3"]
    with redis.RedisCluster.from_url(cluster.url, decode_responses=True) as plain:
        for name in names:
            client.xadd(name, {"n": 1})
            plain.xadd(name, {"n": 2})
        assert typed(cluster, "adopt", "--strays")["done"] == 3
        for name in names:
            assert [fields["n"] for _, fields in client.xrange(name)] == ["1", "2"]
            assert plain.type(name) == "hash"


def test_the_verbs_of_logs_find_a_log_on_its_node(cluster: Cluster, client: Any, tmp_path: Path) -> None:
    config = tmp_path / "braid.toml"
    config.write_text(f'[[region]]\nid = 1\nname = "us-east"\nurl = "{cluster.nodes[1].url}"\n')

    def log(*words: str) -> Any:
        done = braid("log", *words, "--config", str(config), "--json")
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    names = [f"ledger-{number}" for number in range(5)]
    assert {cluster.owner(slot(name)) for name in names} == set(cluster.nodes)
    for name in names:
        assert log("create", name, "--home", "us-east")["home"] == 1
        client.twrite(name, entries=[("a", "1"), ("b", "2"), ("a", "3")])
        assert log("info", name)["regions"] == [{"region": "us-east", "first": 1, "last": 3}]
        assert log("set", name, "--pending", "5")["pending"] == 5
        assert (log("compact", name)["deleted"], client.tread(name)[0]) == (1, None)
        assert log("evict", name, "--before", "3")["evicted"] > 0
        assert log("tail", name, "--from", "3", "--count", "1") == {"offset": 3, "tag": "a", "entry": "3"}

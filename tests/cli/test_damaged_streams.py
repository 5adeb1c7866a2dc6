"""A stream whose registry cannot be read: it is named, and hides or stops no other."""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

import braidstream
from braidstream.operations.membership import meet
from braidstream.replication.takeover import _with_scopes
from tests.cli.test_probes import metrics
from tests.support.cli import braid
from tests.support.consoles import console
from tests.support.daemons import WITHIN_S, Daemon, write_config
from tests.support.gateways import Served
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

META = "bs:meta:{a}"
DAMAGES = {
    "o:s1": "notanumber",
    "s1": "garbage",
    "due": " ",
    "until": "1 2 3",
    "g:jobs": "x",
    "x": "1" * 21,
    "v:jobs": "x/",
    "k:jobs": "s1:0",
    "l:s1": "",
}


def damage(client: redis.Redis, field: str = "o:s1") -> None:
    client.hset(META, field, DAMAGES[field])


@pytest.fixture
def client(engine: Engine) -> Iterator[braidstream.Redis]:
    """A region with a damaged stream `a` and a sound one, `b`, both with a group."""
    become(engine, region=1, name="region-1")
    with client_of(engine, decode_responses=True) as client:
        for name in ("a", "b"):
            client.xadd(name, {"n": "1"})
            client.xgroup_create(name, "jobs", "0")
        damage(client)
        yield client


@pytest.fixture
def config(engine: Engine, tmp_path: Path) -> Path:
    return write_config(tmp_path / "braid.toml", {1: engine.url})


@pytest.mark.parametrize("field", DAMAGES)
def test_a_command_on_a_damaged_stream_says_what_to_do(client: braidstream.Redis, field: str) -> None:
    client.hdel(META, "o:s1")
    damage(client, field)
    with client_of_same(client) as fresh:
        for words in (
            ("XLEN", "a"),
            ("XINFO", "STREAM", "a"),
            ("EXISTS", "a"),
            ("DEL", "a"),
            ("TYPE", "a"),
        ):
            with pytest.raises(
                redis.ResponseError, match=f"""DAMAGED .* 'a' .* '{field}' .*HDEL "{META}" "{field}\""""
            ):
                fresh.execute_command(*words)
        assert fresh.xlen("b") == 1


def client_of_same(client: braidstream.Redis) -> braidstream.Redis:
    """A client with an empty cache."""
    return braidstream.Redis(connection_pool=client.connection_pool)


@pytest.mark.parametrize("way", ["client", "gateway"])
def test_a_damaged_stream_is_listed_and_hides_no_other(
    client: braidstream.Redis, engine: Engine, way: str
) -> None:
    with Served(engine.url) as served:
        url = served.url if way == "gateway" else engine.url
        with braidstream.Redis.from_url(url, decode_responses=True) as fresh:
            if way == "gateway":
                fresh = redis.Redis.from_url(url, decode_responses=True)  # noqa: PLW2901
                assert fresh.info("keyspace")["db0"]["keys"] == 2
            assert sorted(fresh.keys()) == sorted(fresh.scan_iter()) == ["a", "b"]
            assert fresh.dbsize() == 2
            assert {fresh.randomkey() for _ in range(30)} <= {"a", "b"}
            with pytest.raises(redis.ResponseError, match="DAMAGED the registry of stream 'a'"):
                fresh.flushdb()
            assert fresh.keys() == ["a"]


def test_the_verbs_name_it_and_list_the_others(
    client: braidstream.Redis, engine: Engine, config: Path
) -> None:
    for verb in ("streams", "groups"):
        done = braid(verb, "--url", engine.url)
        assert (done.returncode, "b " in done.stdout, "'o:s1'" in done.stderr) == (1, True, True), verb
        facts = json.loads(braid(verb, "--url", engine.url, "--json").stdout)
        assert [each.get("name", each.get("stream")) for each in facts[verb]] == ["b"]
        assert list(facts["damaged"]) == ["a"]
    found = json.loads(braid("doctor", "--config", str(config), "--json").stdout)["findings"]
    [named] = [each for each in found if each["check"] == "damaged"]
    assert named["level"] == "error"
    assert "'a'" in named["text"]
    assert f'HDEL "{META}" "o:s1"' in named["fix"]


def test_the_console_lists_the_others(client: braidstream.Redis, engine: Engine, config: Path) -> None:
    with console(config) as where:
        for page in ("/streams", "/groups", "/logs"):
            status, text = visit(where, page)
            assert (status, "DAMAGED" in text, ">b<" in text) == (200, True, page != "/logs"), page


def visit(where: str, path: str) -> tuple[int, str]:
    place = urlsplit(where)
    conn = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    conn.request("GET", path)
    answer = conn.getresponse()
    return answer.status, answer.read().decode()


def test_the_daemon_goes_on_with_the_others(client: braidstream.Redis, engine: Engine, config: Path) -> None:
    with Daemon(config, "region-1", "--listen", "0") as daemon:
        daemon.tells("stream.damaged stream=a field=o:s1")
        [where] = re.findall(r"metrics=(\S+)", daemon.text)

        def shown() -> Any:
            found = metrics(where)
            lag = found.get("braid_group_lag_entries{group=jobs,stream=b}")
            return (found.get("braid_damaged_streams"), lag)

        eventually(lambda: shown() == (1, 1), within_s=WITHIN_S, why="other groups keep their metrics")


def test_groups_of_others_are_taken_over(client: braidstream.Redis) -> None:
    client.run_plan(meet([1, 2]))
    client.execute_command("XGROUP", "SCOPE", "b", "jobs", "ONCE")
    [found], away = client.run_plan(_with_scopes([b"a", b"b"]))
    assert (found[0], away) == (b"b", 0)

"""`compression = "zstd"`: links through `braid replicate --receive` of the peer."""

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

import braidstream
from braidstream.engine.tunnel import HELLO
from tests.support.beside import beside
from tests.support.cli import braid
from tests.support.cluster import Cluster, become_cluster
from tests.support.compressed_links import (
    WITHIN_S,
    become_equal,
    client_of,
    compressed,
    engine_pair,
    linked,
    receiver_of,
    say,
)
from tests.support.daemons import IMPATIENT, Daemon, numbered, write_config
from tests.support.forked import BRAID
from tests.support.proxy import Proxy
from tests.support.regions import become
from tests.support.replicas import SentinelGroup
from tests.support.servers import Engine, Flavour, free_port, tls_files
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

pair = engine_pair

SECRET = "a-secret-of-the-link"
ENTRY: dict[Any, Any] = {
    "order": "0123456789abcdef",
    "customer": "c-4711-0815",
    "amount": "129.90",
    "currency": "EUR",
}


def fill(client: braidstream.Redis, name: str, entries: int) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(entries):
        pipe.xadd(name, ENTRY | {"n": str(number)})
    pipe.execute()


def test_two_regions_become_equal_through_a_receiver_with_few_bytes(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    port = free_port()
    with Proxy(port) as proxy, client_of(pair[0]) as one, client_of(pair[1]) as two:
        config = write_config(
            tmp_path / "braid.toml", numbered(pair), **compressed(port, f"tcp://127.0.0.1:{proxy.port}")
        )
        fill(one, "s", 2_000)
        with Daemon(config, 2, "--receive", str(port)) as second, Daemon(config, 1) as first:
            second.tells("receiver.ready")
            first.tells("daemon.ready")
            become_equal(one, two, "s")
            two.xadd("s", {"n": "back"})
            one.xgroup_create("s", "g", "0")
            become_equal(one, two, "s")
            eventually(lambda: two.xinfo_groups("s"), within_s=WITHIN_S, why="groups should come over")
            assert len(two.xrange("s")) == 2_001
        sent = b"".join(proxy.requests)
        assert len(sent) < 2_000 * 60, "an entry has more than 100 bytes before compression"
        assert sent.startswith(HELLO)


def test_a_receiver_that_is_killed_under_load_loses_and_repeats_nothing(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    urls = numbered(pair)
    with (
        client_of(pair[0]) as one,
        client_of(pair[1]) as two,
        linked(tmp_path, urls) as (first, second),
    ):
        first.tells("daemon.ready")
        with writing(pair[0], "s"):
            for _ in range(3):
                before = two.xlen("s")
                eventually(lambda was=before: two.xlen("s") > was, within_s=WITHIN_S, why="entries arrive")  # type: ignore[misc]
                second.kill()
                assert "through receiver" in first.tells("link.lost peer=region-2")
                second.start()
                first.tells("link.up peer=region-2")
        become_equal(one, two, "s")
        assert one.xlen("s") == len({entry for entry, _ in two.xrange("s")})


def test_an_engine_that_hangs_behind_its_receiver_loses_and_repeats_nothing(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    """What the receiver still has of the lost link reaches the engine late, beside the next link."""
    urls = numbered(pair)
    with (
        client_of(pair[0]) as one,
        client_of(pair[1]) as two,
        linked(tmp_path, urls, env=IMPATIENT) as (first, _),
    ):
        first.tells("daemon.ready")
        with writing(pair[0], "s"):
            eventually(lambda: two.xlen("s") > 0, within_s=WITHIN_S, why="entries arrive")
            with pair[1].paused():
                first.tells("link.lost peer=region-2")
            first.tells("link.up peer=region-2")
        become_equal(one, two, "s")
        assert one.xlen("s") == len({entry for entry, _ in two.xrange("s")})


@contextmanager
def writing(engine: Engine, name: str) -> Iterator[None]:
    """Entries are written all the time."""

    def write(done: threading.Event) -> None:
        with client_of(engine) as client:
            while not done.is_set():
                fill(client, name, 50)
                done.wait(0.01)  # a pace: the daemons need the processor too

    with beside(write):
        yield


def with_secret(url: str) -> str:
    return url.replace("//", "//link:${LINK_PASSWORD}@", 1)


def grant(engine: Engine) -> None:
    with engine.client() as operator:
        operator.execute_command("ACL", "SETUSER", "link", "on", f">{SECRET}", "~*", "&*", "+@all")


def test_daemons_use_tls_with_certificates_of_both_and_their_own_password(
    tls_flavour: Flavour, tmp_path: Path
) -> None:
    with Engine(tls_flavour, tls=True) as first_engine, Engine(tls_flavour, tls=True) as second_engine:
        pair = first_engine, second_engine
        urls = {number: with_secret(url) for number, url in numbered(pair).items()}
        for engine in pair:
            grant(engine)
        files, port = tls_files(tmp_path), free_port()
        trusts = f"tls://127.0.0.1:{port}?ssl_ca_certs={files['ca']}"
        both = f"{trusts}&ssl_certfile={files['cert']}&ssl_keyfile={files['key']}"
        words = [
            "--tls-cert",
            str(files["cert"]),
            "--tls-key",
            str(files["key"]),
            "--tls-ca",
            str(files["ca"]),
        ]
        env = {"LINK_PASSWORD": SECRET}
        config = write_config(tmp_path / "braid.toml", urls, **compressed(port, both))
        with (
            client_of(first_engine) as one,
            client_of(second_engine) as two,
            Daemon(config, 2, "--receive", str(port), *words, env=env) as second,
        ):
            assert "tls=yes" in second.tells("receiver.ready")
            one.xadd("s", {"n": "1"})
            wrongs = {
                trusts: "certificates that the other one accepts",
                f"tls://127.0.0.1:{port}": "certificate verify failed",
                f"tcp://127.0.0.1:{port}": "do both sides use TLS",
            }
            for number, (wrong, why) in enumerate(wrongs.items()):
                other = tmp_path / f"{number}.toml"
                write_config(other, urls, **compressed(port, wrong))
                with Daemon(other, 1, env=env) as stranger:
                    assert why in stranger.tells("link.lost peer=region-2")
            with Daemon(config, 1, env={"LINK_PASSWORD": SECRET}) as first:
                first.tells("link.up")
                become_equal(one, two, "s")
                with second_engine.client() as operator:
                    operator.execute_command("ACL", "SETUSER", "link", "resetpass", ">another")
                    operator.client_kill_filter(_type="normal", skipme=True)
                assert "WRONGPASS" in first.tells("peer.misconfigured")
                assert SECRET not in first.text + second.text


def test_a_password_is_not_compressed_with_entries(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    """Else the lengths of later bytes would tell what it looks like."""
    urls = numbered(pair)
    grant(pair[1])
    port = free_port()
    with Proxy(port) as proxy, client_of(pair[0]) as one, client_of(pair[1]) as two:
        config = write_config(
            tmp_path / "braid.toml",
            {1: urls[1], 2: with_secret(urls[2])},
            **compressed(port, f"tcp://127.0.0.1:{proxy.port}"),
        )
        env = {"LINK_PASSWORD": SECRET}
        with (
            Daemon(config, 2, "--receive", str(port), env=env) as second,
            Daemon(config, 1, env=env) as first,
        ):
            second.tells("receiver.ready")
            first.tells("daemon.ready")
            one.xadd("s", {"n": "1"})
            become_equal(one, two, "s")
        # In clear (there is no TLS here) before the first byte of zstd.
        [sent] = [bytes(each) for each in proxy.requests if SECRET.encode() in each]
        assert sent.index(SECRET.encode()) < sent.index(zstandard.FRAME_HEADER)


def test_a_link_says_that_there_is_no_receiver(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    urls = numbered(pair)
    config = write_config(tmp_path / "braid.toml", urls, **compressed(pair[1].port))
    with Daemon(config, 1) as first:
        assert "no receiver at this address" in first.tells("link.lost peer=region-2")


def test_a_link_says_that_the_engine_of_the_receiver_does_not_answer(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    with linked(tmp_path, numbered(pair)) as (first, _):
        first.tells("daemon.ready")
        pair[1].kill()
        first.tells("link.lost peer=region-2")
        assert "its region's engine does not answer" in first.tells("link.lost peer=region-2", within_s=90)
        pair[1].start()
        become(pair[1], region=2, name="region-2")
        first.tells("link.up peer=region-2")


def test_without_compression_a_link_does_not_use_the_receiver(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    nobody = {2: f"tcp://127.0.0.1:{free_port()}"}
    config = write_config(tmp_path / "braid.toml", numbered(pair), receiver=nobody)
    with client_of(pair[0]) as one, client_of(pair[1]) as two, Daemon(config, 1) as first:
        first.tells("daemon.ready")
        one.xadd("s", {"n": "1"})
        become_equal(one, two, "s")


def test_compression_can_be_switched_on_and_off_while_daemons_run(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    urls, port = numbered(pair), free_port()
    config = write_config(tmp_path / "braid.toml", urls)
    with (
        client_of(pair[0]) as one,
        client_of(pair[1]) as two,
        Daemon(config, 2, "--receive", str(port)) as second,
        Daemon(config, 1) as first,
    ):
        second.tells("receiver.ready")
        first.tells("daemon.ready")
        for more in (compressed(port), {}):
            write_config(config, urls, **more)
            first.tells("config.changed")
            assert ("receiver=" in first.tells("link.up peer=region-2")) == bool(more)
            one.xadd("s", ENTRY)
            become_equal(one, two, "s")


def test_a_cluster_is_reached_through_its_receiver(
    flavour: Flavour, cluster: Cluster, tmp_path: Path
) -> None:
    become_cluster(cluster, region=2, name="region-2")
    with Engine(flavour) as server:
        become(server, region=1, name="region-1")
        with (
            client_of(server) as one,
            braidstream.RedisCluster.from_url(cluster.url, decode_responses=True) as two,
            linked(tmp_path, {1: server.url, 2: cluster.url}) as (first, second),
        ):
            first.tells("daemon.ready")
            for number in range(20):
                one.xadd(f"s{number}", {"n": str(number)})
            for number in range(20):
                become_equal(one, two, f"s{number}")
            port = receiver_of(second)
            assert b"is not a primary of this region" in say(port, HELLO + b"127.0.0.1:%d\n" % server.port)


def test_a_receiver_follows_a_failover_of_its_sentinels(flavour: Flavour, tmp_path: Path) -> None:
    """The peer reaches the receiver only: to it, the sentinels are away."""
    with SentinelGroup(flavour) as group, Engine(flavour) as server:
        old, port = group.primary, free_port()
        become(server, region=1, name="region-1")
        become(old, region=2, name="region-2")
        away = re.sub(r":[0-9]+([,/])", r":1\1", group.url)
        there = write_config(tmp_path / "there.toml", {1: server.url, 2: group.url})
        here = write_config(tmp_path / "here.toml", {1: server.url, 2: away}, **compressed(port))
        with (
            client_of(server) as one,
            Daemon(there, 2, "--receive", str(port)) as second,
            Daemon(here, 1) as first,
        ):
            second.tells("receiver.ready")
            first.tells("daemon.ready")
            one.xadd("s", {"n": "1"})
            with client_of(old) as two:
                become_equal(one, two, "s")
            group.fail_over()
            with client_of(group.promoted(old)) as two:
                one.xadd("s", {"n": "2"})
                eventually(
                    lambda: [fields["n"] for _, fields in two.xrange("s")] == ["1", "2"],
                    within_s=WITHIN_S,
                    why="the new primary should get it",
                )


def hidden(folder: Path) -> dict[str, str]:
    """An environment in which `import zstandard` fails."""
    (folder / "zstandard.py").write_text("raise ModuleNotFoundError('hidden', name='zstandard')\n")
    return {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


def test_without_zstandard_a_daemon_says_what_to_install(engine: Engine, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", {1: engine.url, 2: engine.url}, **compressed(1))
    command = [*BRAID, "replicate", "--config", str(config), "--region", "2", "--receive", "0"]
    done = subprocess.run(command, env=hidden(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install 'braidstream[compression]'" in done.stderr
    become(engine, region=1, name="region-1")
    with Daemon(config, 1, env=hidden(tmp_path)) as first:
        assert "pip install 'braidstream[compression]'" in first.tells("peer.misconfigured peer=region-2")


def test_a_receiver_that_one_machine_cannot_use_is_an_error_of_that_link_only(
    flavour: Flavour, tmp_path: Path
) -> None:
    """The file is the same in every region. Here the CA of a receiver is missing, then it is there."""
    with Engine(flavour) as one, Engine(flavour) as two, Engine(flavour) as three:
        files, port, ca = tls_files(tmp_path), free_port(), tmp_path / "later.crt"
        config = tmp_path / "braid.toml"
        urls = numbered((one, two, three))
        more = compressed(port, f"tls://127.0.0.1:{port}?ssl_ca_certs={ca}")
        write_config(config, urls, **more)
        words = ["--tls-cert", str(files["cert"]), "--tls-key", str(files["key"])]
        with (
            client_of(one) as here,
            client_of(two) as there,
            client_of(three) as other,
            Daemon(config, 2, "--receive", str(port), *words) as second,
            Daemon(config, 1) as first,
        ):
            second.tells("receiver.ready")
            assert "No such file" in first.tells("peer.misconfigured peer=region-2")
            here.xadd("s", {"n": "1"})
            become_equal(here, other, "s")
            write_config(config, urls, gateway={3: "127.0.0.1:6390"}, **more)
            first.tells("config.changed")
            ca.write_bytes(files["ca"].read_bytes())
            first.tells("link.up peer=region-2")
            become_equal(here, there, "s")


def test_an_engine_without_a_password_is_not_opened_to_the_network(engine: Engine, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", {1: engine.url})
    become(engine, region=1, name="region-1")
    words = ("replicate", "--config", str(config), "--region", "1", "--receive", "0.0.0.0:0")
    done = braid(*words, "--allow-open")
    assert done.returncode == 1
    assert "requires no password" in done.stderr


def test_on_the_network_peers_need_a_certificate(engine: Engine, tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", {1: engine.url})
    become(engine, region=1, name="region-1")
    done = braid("replicate", "--config", str(config), "--region", "1", "--receive", "0.0.0.0:0")
    assert done.returncode == 2
    assert "--tls-ca" in done.stderr
    assert "--allow-open" in done.stderr


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"compression": {2: "zstd"}}, "has compression, but no receiver"),
        ({"compression": {2: "gzip"}, "receiver": {2: "tcp://h:1"}}, 'compression must be "zstd"'),
        ({"compression": {2: "zstd"}, "receiver": {2: "tcp://h"}}, "its receiver cannot be read"),
        ({"compression": {2: "zstd"}, "receiver": {2: "h:1"}}, "receiver must be tls://HOST:PORT or"),
    ],
)
def test_a_file_with_a_wrong_receiver_is_refused(
    engine: Engine, tmp_path: Path, more: dict[str, dict[int, str]], why: str
) -> None:
    config = write_config(tmp_path / "braid.toml", {1: engine.url, 2: engine.url}, **more)
    done = braid("replicate", "--config", str(config), "--region", "1")
    assert done.returncode == 1
    assert why in " ".join(done.stderr.split())

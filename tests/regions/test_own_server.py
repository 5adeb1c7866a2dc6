"""A daemon whose own server changes, refuses it or fails over: the peers are not blamed."""

import re
from pathlib import Path

from tests.cli.test_probes import get, metrics
from tests.support.daemons import Daemon, numbered, replicating, write_config
from tests.support.forked import with_constants
from tests.support.proxy import Proxy
from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 60
# A peer forgets within 3 s, instead of 15, which server was this region.
FORGOTTEN_SOON = with_constants(
    {"braidstream.replication.daemon.peer.CLAIM_S": 3, "braidstream.replication.daemon.peer.RENEW_S": 1.0}
)


def test_a_daemon_ends_when_the_file_has_another_server_for_its_own_region(
    flavour: Flavour, tmp_path: Path
) -> None:
    """Or it would go on with the old server, and nobody would replicate the new one."""
    with Engine(flavour) as old, Engine(flavour) as new, Engine(flavour) as peer:
        urls = numbered([old, peer])
        become(new, region=1, name="region-1")
        with replicating(tmp_path, urls, env=FORGOTTEN_SOON) as daemon:
            daemon.tells("daemon.ready")
            file = tmp_path / "braid-1.toml"
            listed = file.read_text()
            file.write_text(listed.replace("region-1", "another"))
            daemon.tells("config.broken")
            file.write_text(listed.replace(f":{old.port}", f":{new.port}"))
            assert f":{new.port}" in daemon.tells("config.moved")
            assert daemon.process.wait(WITHIN_S) == 1
            daemon.start()
            daemon.tells("daemon.ready", within_s=WITHIN_S)
            with client_of(new) as writer, client_of(peer) as reader:
                writer.xadd("m", {"n": "1"})
                eventually(lambda: reader.xlen("m") == 1, within_s=WITHIN_S, why="the new one is replicated")


def test_a_password_that_the_own_server_refuses_is_not_blamed_on_the_peers(
    flavour: Flavour, tmp_path: Path
) -> None:
    with (
        Engine(flavour) as own,
        Engine(flavour) as peer,
        own.client(decode_responses=True) as operator,
        Proxy(peer.port) as way,
    ):
        numbered([own, peer])
        operator.execute_command("ACL", "SETUSER", "braid", "on", ">first", "~*", "&*", "+@all")
        with replicating(tmp_path, {1: own.url.replace("//", "//braid:first@", 1), 2: way.url}) as daemon:
            daemon.tells("link.up peer=region-2")
            operator.execute_command("ACL", "SETUSER", "braid", "resetpass", ">second")
            way.cut()
            daemon.tells("link.lost peer=region-2")
            operator.execute_command("CLIENT", "KILL", "USER", "braid")

            def failed_logins() -> int:
                return sum(int(each["count"]) for each in operator.acl_log())

            before = failed_logins()
            eventually(lambda: failed_logins() > before + 20, within_s=WITHIN_S, why="all parts should try")
            daemon.tells(f'source.lost why="127.0.0.1:{own.port}: WRONGPASS')
            operator.execute_command("ACL", "SETUSER", "braid", ">first")
            daemon.tells("link.up peer=region-2", within_s=WITHIN_S)
            assert not daemon.said("peer.misconfigured")


def test_a_daemon_whose_server_is_down_serves_its_pages_and_waits(flavour: Flavour, tmp_path: Path) -> None:
    with (
        Engine(flavour, args=["--appendonly", "yes", "--appendfsync", "always"]) as one,
        Engine(flavour) as two,
    ):
        config = write_config(tmp_path / "braid.toml", numbered([one, two]))
        one.kill()
        with Daemon(config, "region-1", "--listen", "0") as daemon:
            [where] = re.findall(r"metrics=(\S+)", daemon.tells("daemon.listening"))
            daemon.tells("source.lost")
            assert metrics(where)["braid_engine_up"] == 0
            assert get(where, "/healthz")[0] == 200
            assert get(where, "/readyz")[0] == 503
            one.start()
            daemon.tells("source.up")
            daemon.tells("daemon.ready", within_s=60)
            eventually(
                lambda: metrics(where)["braid_engine_up"] == 1 and get(where, "/readyz")[0] == 200,
                within_s=30,
                why="it works",
            )
            assert metrics(where)["braid_functions_version"] > 0
            assert metrics(where)["braid_engine_memory_bytes"] > 0
            assert metrics(where)["braid_config_ok"] == 1


def test_a_daemon_that_waits_for_its_server_stops_when_told_and_ends_for_a_wrong_password(
    engine: Engine, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "braid.toml", {1: "redis://127.0.0.1:1", 2: engine.url})
    with Daemon(config, "region-1") as daemon:
        daemon.tells("source.lost")
        daemon.process.terminate()
        assert daemon.process.wait(20) == 0
    wrong = engine.url.replace("//", "//nobody:wrong@", 1)
    config = write_config(tmp_path / "wrong.toml", {1: wrong})
    with Daemon(config, "region-1") as daemon:
        assert daemon.process.wait(20) == 1

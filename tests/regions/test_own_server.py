"""A daemon whose own server changes, refuses it or fails over: the peers are not blamed."""

from pathlib import Path

from tests.support.daemons import numbered, replicating
from tests.support.proxy import Proxy
from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

WITHIN_S = 60


def test_a_daemon_ends_when_the_file_has_another_server_for_its_own_region(
    flavour: Flavour, tmp_path: Path
) -> None:
    """Or it would go on with the old server, and nobody would replicate the new one."""
    with Engine(flavour) as old, Engine(flavour) as new, Engine(flavour) as peer:
        urls = numbered([old, peer])
        become(new, region=1, name="region-1")
        with replicating(tmp_path, urls) as daemon:
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

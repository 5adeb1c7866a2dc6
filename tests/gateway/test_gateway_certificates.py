"""Certificates as logins: the gateway's own is none of its clients, and a client's may be one."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from braidstream.cli.serving import read_users, tls_context
from braidstream.config import RegionConfig
from braidstream.errors import ConfigError, ReplyError
from braidstream.gateway.homes import OtherRegion
from braidstream.gateway.hub import Settings
from braidstream.gateway.session import Login
from braidstream.plan.plan import Batch
from tests.support.gateways import Line, Served
from tests.support.matrix import installed
from tests.support.regions import become
from tests.support.servers import KNOW_CERTIFICATES, DidNotStart, Engine, Flavour, certificate, tls_files
from tests.support.waiting import eventually

NOAUTH = b"-NOAUTH Authentication required.\r\n"


@dataclass(frozen=True)
class Guarded:
    """An engine whose default user is off. url: with the certificate of its user `gateway`."""

    engine: Engine
    url: str


def guarded(engine: Engine, *, region: int = 1) -> Guarded:
    become(engine, region=region, name=f"r{region}")
    with engine.client() as admin:
        for user in (
            "gateway on ~* &* +@all",
            "alice on >a ~a ~bs:*:{a}* %R~bs:config +@all -@dangerous",
            "default off",
        ):
            admin.execute_command("ACL", "SETUSER", *user.split())
    files = certificate(engine.directory, "gateway")
    own = f"&ssl_certfile={quote(str(files['cert']))}&ssl_keyfile={quote(str(files['key']))}"
    return Guarded(engine, engine.url + own)


@contextmanager
def started(flavour: Flavour, *, cluster: bool = False) -> Iterator[Engine]:
    words = ["--tls-auth-clients", "optional", "--tls-auth-clients-user", "CN"]
    if cluster:
        words += ["--tls-cluster", "yes"]
    engine = Engine(installed(flavour), tls=True, cluster=cluster, args=words)
    try:
        engine.start()
    except DidNotStart as error:
        if "TLS support" not in str(error):
            raise
        pytest.skip(f"this {flavour} was built without TLS")
    try:
        if cluster:
            with engine.client() as admin:
                admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                eventually(
                    lambda: admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
                    within_s=10,
                    why="a cluster of one node should be whole",
                )
        yield engine
    finally:
        engine.stop()


@pytest.fixture(params=KNOW_CERTIFICATES)
def knowing(request: pytest.FixtureRequest) -> Flavour:
    found: Flavour = request.param
    return found


@pytest.fixture(params=["server", "cluster"])
def alone(request: pytest.FixtureRequest, knowing: Flavour) -> Iterator[Guarded]:
    with started(knowing, cluster=request.param == "cluster") as engine:
        yield guarded(engine)


def test_a_client_never_has_the_user_of_the_gateways_certificate(alone: Guarded) -> None:
    with Served(alone.url) as gateway, Line(gateway.port) as line:
        for each in ("ACL WHOAMI", "XADD a * f v", "XLEN a", "XREAD BLOCK 1 STREAMS a $", "GET k", "SCAN 0"):
            assert line.say(each) == NOAUTH
        assert line.pipeline("XADD a * f v", "GET k", "WATCH k", "MULTI") == [NOAUTH] * 4
        assert line.say("AUTH alice a") == b"+OK\r\n"
        assert line.say("ACL WHOAMI") == b"$5\r\nalice\r\n"
        assert line.say("XADD a * f v").startswith(b"$")
        for each in ("XADD b * f v", "DEL b", "SET k v"):
            assert line.say(each).startswith(b"-NOPERM")
        assert line.say("RESET") == b"+RESET\r\n"
        assert line.say("ACL WHOAMI") == NOAUTH


def test_a_client_does_not_have_it_at_the_home_of_a_log_either(knowing: Flavour) -> None:
    async def ask(region: OtherRegion) -> list[str]:
        replies = []
        for login in (None, Login(b"alice", b"a")):
            lane = region.borrow(login)
            [reply] = await lane.send(Batch([("ACL", "WHOAMI")], resend=True, attempt=True))
            replies.append(reply.code if isinstance(reply, ReplyError) else reply.decode())
            region.give_back(lane)
        await region.refresh()  # as the gateway's own user
        region.close()
        return replies

    with started(knowing) as engine:
        region = OtherRegion(RegionConfig(id=1, name="r1", url=guarded(engine).url))
        assert asyncio.run(ask(region)) == ["NOAUTH", "alice"]


def test_a_clients_certificate_logs_it_in_as_the_user_that_the_operator_named(
    engine: Engine, tmp_path: Path
) -> None:
    become(engine)
    files, passwords = tls_files(tmp_path), tmp_path / "users"
    passwords.write_text("# of the engine\nalice p w\n\nnobody here\n")
    context = tls_context(files["cert"], files["key"], files["ca"])
    with engine.client() as admin:
        admin.execute_command("ACL", "SETUSER", "alice", "on", ">p w", "~*", "+@all")
    settings = Settings(tls=context, users=read_users(passwords))
    with Served(engine.url, settings) as gateway:
        seen = {}
        for name in ("alice", "bob", "nobody"):
            of = certificate(tmp_path, name)
            client = redis.Redis(
                port=gateway.port,
                ssl=True,
                ssl_ca_certs=str(files["ca"]),
                ssl_certfile=str(of["cert"]),
                ssl_keyfile=str(of["key"]),
            )
            with client:
                try:
                    client.xadd(f"of-{name}", {"a": 1})
                    seen[name] = client.acl_whoami()
                    client.execute_command("HELLO", "3")
                    assert client.acl_whoami() == seen[name]
                except redis.AuthenticationError:
                    seen[name] = "refused"
        assert seen == {"alice": "alice", "bob": "default", "nobody": "refused"}


@pytest.mark.parametrize("text", ["alice", "alice a\nalice b", "alice   "])
def test_a_file_of_users_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"line [12] of .* must be NAME PASSWORD"):
        read_users(path)

"""One region is sick: the daemons of its peers live on, so do the links between the others, with an event."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import braidstream
from tests.support.daemons import Daemon, replicating
from tests.support.proxy import Proxy
from tests.support.regions import become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

WITHIN_S = 60  # a peer that is misconfigured is tried again every three seconds
MEGABYTE = 1_000_000
# A peer answers a link's question for a stream's state with...
ODD_REPLIES = {
    "a number": b":1\r\n",
    "nil": b"*-1\r\n",
    "a string": b"$3\r\nabc\r\n",
    "an odd registry": b"*3\r\n*1\r\n$1\r\nx\r\n*0\r\n:0\r\n",
    "what is no RESP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


@pytest.fixture
def three(flavour: Flavour) -> Iterator[list[Engine]]:
    engines = [Engine(flavour) for _ in range(3)]
    try:
        for number, engine in enumerate(engines, start=1):
            become(engine.start(), region=number, name=f"region-{number}")
        yield engines
    finally:
        for engine in engines:
            engine.stop()


def arrives(source: braidstream.Redis, target: braidstream.Redis, name: str = "m") -> None:
    entry = source.xadd(name, {"n": "1"})
    eventually(
        lambda: target.xrange(name, entry, entry), within_s=WITHIN_S, why="the healthy link should bring it"
    )


def resident_mb(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) // 1024


def test_odd_replies_of_a_peer_hinder_no_other_link(three: list[Engine], tmp_path: Path) -> None:
    one, two, three_ = (client_of(engine, decode_responses=True) for engine in three)
    with one, two, three_, Proxy(three[2].port) as sick:
        urls = {1: three[0].url, 2: three[1].url, 3: sick.url}
        with replicating(tmp_path, urls) as daemon:
            daemon.tells("daemon.ready")
            arrives(one, three_)
            for what, reply in ODD_REPLIES.items():
                sick.answer(b"bs_braid_look", reply)
                one.xadd("m", {"n": what})
                daemon.tells("peer=region-3 stream=m" if reply[:1] in b":*$" else "an invalid reply")
                arrives(one, two)
                assert daemon.alive, what
            sick.pass_on()
            arrives(one, three_)


def test_a_huge_reply_of_a_peer_is_not_kept_in_memory(three: list[Engine], tmp_path: Path) -> None:
    one, two = (client_of(engine, decode_responses=True) for engine in three[:2])
    with one, two, Proxy(three[2].port) as sick:
        urls = {1: three[0].url, 2: three[1].url, 3: sick.url}
        with replicating(tmp_path, urls) as daemon:
            daemon.tells("daemon.ready")
            arrives(one, two)
            before = resident_mb(daemon)
            sick.answer(b"bs_braid_look", b"$400000000\r\n" + b"x" * (300 * MEGABYTE))
            one.xadd("m", {"n": "2"})
            daemon.tells("67,108,864 bytes")
            arrives(one, two)
            assert resident_mb(daemon) - before < 200


@pytest.mark.parametrize(
    ("field", "broken"),
    [
        ("writers", "abc"),
        pytest.param("writers", "3 100000000000000", marks=pytest.mark.nightly("In CI: two other fields")),
        pytest.param("name", "", marks=pytest.mark.nightly("In CI: two other fields")),
        ("writer", "1"),
    ],
)
def test_a_peer_whose_configuration_is_broken_is_told_and_tried_again(
    three: list[Engine], tmp_path: Path, field: str, broken: str
) -> None:
    one, two, three_ = (client_of(engine, decode_responses=True) for engine in three)
    with one, two, three_, three[2].client(decode_responses=True) as operator:
        good = operator.hget("bs:config", field)
        if broken:
            operator.hset("bs:config", field, broken)
        else:
            operator.hdel("bs:config", field)
        with replicating(tmp_path, {n: engine.url for n, engine in enumerate(three, start=1)}) as daemon:
            told = daemon.tells("peer.misconfigured peer=region-3")
            assert "ERROR" in told
            assert "bs:config" in told
            arrives(one, two)
            for healthy in (one, two):
                assert healthy.hget("bs:config", "writers") == "1 2"
            operator.hset("bs:config", field, good)
            arrives(one, three_)


def disk_breaks(engine: Engine) -> None:
    with engine.client() as operator:
        shutil.rmtree(engine.directory)
        operator.config_set("save", "1 1")
        operator.set("plain", 1)
        eventually(
            lambda: operator.info("persistence")["rdb_last_bgsave_status"] == "err",
            within_s=WITHIN_S,
            why="a snapshot should fail",
        )


def too_few_replicas(engine: Engine) -> None:
    with engine.client() as operator:
        operator.config_set("min-replicas-to-write", 1)


@pytest.mark.parametrize(("hurt", "code"), [(disk_breaks, "MISCONF"), (too_few_replicas, "NOREPLICAS")])
def test_a_region_that_refuses_writes_still_tells_the_others_what_it_has(
    three: list[Engine], tmp_path: Path, hurt: object, code: str
) -> None:
    one, two = (client_of(engine, decode_responses=True) for engine in three[:2])
    with one, two:
        urls = {1: three[0].url, 2: three[1].url}
        with replicating(tmp_path, urls):
            arrives(one, two)
        for number in range(10):
            one.xadd("m", {"n": str(number)})
        one.xgroup_create("m", "g", "0")
        hurt(three[0])  # type: ignore[operator]
        with pytest.raises(redis.RedisError, match=code):
            one.xadd("m", {"n": "refused"})
        with replicating(tmp_path, urls) as daemon:
            assert code in daemon.tells("source.refused")
            eventually(lambda: two.xlen("m") == 11, within_s=WITHIN_S, why="all should arrive")


def test_a_daemon_that_may_not_hold_leases_says_so_and_works(three: list[Engine], tmp_path: Path) -> None:
    one, two = (client_of(engine, decode_responses=True) for engine in three[:2])
    with one, two, three[0].client() as operator:
        url = three[0].url.replace("//", "//braid:secret@", 1)
        operator.execute_command(
            "ACL", "SETUSER", "braid", "on", ">secret", "~*", "&*", "+@all", "-expire", "-function"
        )
        with replicating(tmp_path, {1: url, 2: three[1].url}) as daemon:
            assert "NOPERM" in daemon.tells("source.refused")
            arrives(one, two)

"""Regions that replicate over TLS as users with the fewest rights; and no secret is ever logged."""

import asyncio
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import braidstream
from braidstream import lua as functions
from braidstream.model.strand import Strand
from braidstream.operations.membership import initialise, meet
from braidstream.operations.rights import daemon_rights
from braidstream.operations.status import STALE_MS
from braidstream.replication.link.batches import WIDEST
from braidstream.replication.log_homes import link_of
from tests.cli.test_probes import metrics
from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, replicating, write_config
from tests.support.limited_rights import IDEMPOTENT, OWN, PEER
from tests.support.regions import apply, client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually
from tests.support.world import Here

pytestmark = pytest.mark.long

WITHIN_S = 30
SECRET = "a-secret-of-the-link"

# Functions run with the rights of their caller, so these are also the commands inside.
RIGHTS = [OWN, PEER]
GUIDE = Path(__file__).parents[2] / "docs/guides/replication-security.md"
# Its patterns of a peer that may have some streams only.
[_SOME] = re.findall(r"```\nACL SETUSER link (resetkeys [^`]*)```", GUIDE.read_text())
SOME_STREAMS = re.findall(r"\([^)]*\)|\S+", _SOME)
# What the test itself calls while the daemon works.
OURS = {"auth", "acl|log", "config|resetstat", "hello", "info", "client|setinfo"}


def url_of(engine: Engine, user: str) -> str:
    return engine.url.replace("//", f"//{user}:${{LINK_PASSWORD}}@", 1)


@pytest.fixture
def pair(tls_flavour: Flavour) -> Iterator[tuple[Engine, Engine]]:
    with Engine(tls_flavour, tls=True) as one, Engine(tls_flavour, tls=True) as two:
        for number, engine in enumerate((one, two), start=1):
            with braidstream.Redis.from_url(engine.url) as client:
                client.run_plan(initialise(number, f"region-{number}"))
                client.run_plan(functions.load())
                client.run_plan(meet((1, 2)))
        yield one, two


@contextmanager
def daemon(folder: Path, urls: list[str], password: str = SECRET) -> "Iterator[Callable[[], str]]":
    """`braid replicate` for region 1; yields what it has said so far."""
    config = write_config(folder / "braid.toml", dict(enumerate(urls, start=1)))
    with Daemon(config, 1, "--verbose", "--listen", "0", env={"LINK_PASSWORD": password}) as running:
        yield lambda: running.text


def together(one: braidstream.Redis) -> None:
    """What both regions had before: streams, groups, deliveries."""
    for name in ("kept", "trimmed", "dropped", "moved", "lost", "compared"):
        for number in range(5):
            one.xadd(name, {"n": str(number)})
    one.xdel("compared", one.xrange("compared")[1][0])
    for name in ("kept", "lost", "dropped"):
        one.xgroup_create(name, "jobs", "0")
        one.xgroup_create(name, "old", "0")


def apart(one: braidstream.Redis, two: braidstream.Redis) -> None:
    """Then something of everything that a link brings over, while there is none."""
    two.xreadgroup("jobs", "bob", {"kept": ">"}, count=2)
    [[_, entries]] = one.xreadgroup("jobs", "alice", {"kept": ">"}, count=4)
    one.xack("kept", "jobs", *(entry for entry, _ in entries[:3]))
    one.xgroup_destroy("kept", "old")
    one.xgroup_create("kept", "new", "$")
    one.xadd("kept", {str(number): "wide" for number in range(WIDEST)})
    one.xdel("kept", one.xadd("kept", {"n": "deleted"}), entries[1][0])
    one.xtrim("trimmed", maxlen=2, approximate=False)
    one.delete("dropped")
    one.xadd("dropped", {"n": "again"})
    one.rename("moved", "there")
    one.xadd("fresh", {"n": "fresh"})
    for number in range(5):
        one.xadd("compared", {"n": str(number)})
        one.xdel("compared", one.xrange("compared")[1][0])
    one.xadd("lost", {"n": "after"})
    one.execute_command("XADD", "once", "IDMP", "producer", "message", "*", "n", "1")


def ahead(one: braidstream.Redis) -> None:
    """An entry of region 2 that is ahead of the clock in region 1."""
    one.xadd("ahead", {"n": "0"})
    later = round(time.time() * 1000) + 30_000, 0
    one.run_plan(apply(Strand(b"ahead", "s", 2), [(later, [b"n", b"1"])]))


def make_old(engine: Engine, journal: str) -> None:
    """As if it had been written eleven minutes ago, and its first entry trimmed away since."""
    with engine.client() as operator:
        entries, (seconds, _) = operator.xrange(journal), operator.time()
        operator.delete(journal)
        for seq, (_, words) in enumerate(entries, start=1):
            operator.xadd(journal, words, id=f"{(seconds - 660) * 1000}-{seq}")
        assert operator.xtrim(journal, maxlen=len(entries) - 1, approximate=False) == 1


def lose(pair: tuple[Engine, Engine]) -> None:
    """Keys go away behind our back, and the regions forget that they have met."""
    with pair[1].client() as operator:
        assert operator.delete("bs:1:j:{compared}", "bs:1:s:{lost}", "bs:2:s:{lost}") == 3
    make_old(pair[0], "bs:1:j:{compared}")
    for number, engine in enumerate(pair, start=1):
        with engine.client() as operator:
            operator.hset("bs:config", "writers", number)


def called(engine: Engine) -> set[str]:
    """Every command that was called since the statistics were reset, by functions too."""
    with engine.client() as operator:
        return {name.removeprefix("cmdstat_") for name in operator.info("commandstats")}


def grant(engine: Engine, rights: list[str]) -> None:
    with engine.client() as operator:
        operator.execute_command("ACL", "DELUSER", "link")
        operator.execute_command("ACL", "SETUSER", "link", "on", f">{SECRET}", "~bs:*", *rights)
        operator.execute_command("ACL", "LOG", "RESET")
        operator.config_resetstat()


def refused(engine: Engine) -> list[str]:
    with engine.client() as operator:
        found = {str(entry["object"]) for entry in operator.acl_log()}
    return sorted(found - {"client|setinfo"})  # redis-py sends its version, and ignores a refusal


def is_answered(engine: Engine) -> bool:
    """Ask what groups of region 2 need, as XTRIM with ACKED does. Whether a question has an answer."""
    with engine.client() as client:
        client.fcall("bs_group_ask", 1, "bs:1:q:{kept}", "ask", "1")
        return any(b"to" in words for _, words in client.xrevrange("bs:1:q:{kept}"))


NAMES = ("kept", "trimmed", "dropped", "moved", "there", "lost", "compared", "fresh", "once", "ahead")


def alike(one: braidstream.Redis, two: braidstream.Redis) -> bool:
    entries = [[client.xrange(name) for name in NAMES] for client in (one, two)]
    groups = [client.xinfo_groups("kept") if client.exists("kept") else None for client in (one, two)]
    names = [[group["name"] for group in found or ()] for found in groups]
    return entries[0] == entries[1] and names[0] == names[1]


def test_a_daemon_needs_these_rights_at_both_ends_and_no_other(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    urls = [url_of(engine, "link") for engine in pair]
    with (
        braidstream.Redis.from_url(pair[0].url, decode_responses=True) as one,
        braidstream.Redis.from_url(pair[1].url, decode_responses=True) as two,
    ):
        for engine in pair:
            grant(engine, ["+@all"])
        together(one)
        with daemon(tmp_path, urls):
            eventually(lambda: alike(one, two), within_s=WITHIN_S, why="the regions should be alike")
        apart(one, two)
        ahead(one)
        lose(pair)
        for engine, rights in zip(pair, RIGHTS, strict=True):
            grant(engine, rights + IDEMPOTENT * (engine is pair[1]))
        with daemon(tmp_path, urls):
            eventually(
                lambda: is_answered(pair[0]), within_s=WITHIN_S, why="it should answer what region 2 needs"
            )
            eventually(
                lambda: [unused(*each) for each in zip(pair, RIGHTS, strict=True)] == [set(), set()],
                within_s=4 * WITHIN_S,  # groups are measured every 15 s, streams swept every 30 s
                why="every right should be used",
            )
        needed = [called(engine) - OURS for engine in pair]
        assert [refused(engine) for engine in pair] == [[], []]
        assert alike(one, two)
        assert needed[1] & plain(IDEMPOTENT)
        assert [each - plain(IDEMPOTENT) for each in needed] == [plain(rights) - OURS for rights in RIGHTS]


def test_a_peer_that_may_have_some_streams_replicates_these_and_can_read_no_other(
    flavour: Flavour, tmp_path: Path
) -> None:
    """`exclude` is a filter of daemons; these patterns are an access control. And bs:config is only read."""
    with Engine(flavour) as one, Engine(flavour) as two:
        urls = numbered((one, two))
        for engine in (one, two):
            with client_of(engine) as client:
                client.run_plan(meet((1, 2)))
        grant(two, [*PEER, *IDEMPOTENT, *SOME_STREAMS])
        limited = two.url.replace("//", f"//link:{SECRET}@", 1)
        with client_of(one) as here, client_of(two) as there:
            there.xadd("pii.eu", {"name": "ada"})
            for name in ("orders.new", "payments"):
                here.xadd(name, {"n": "1"})
                here.xgroup_create(name, "jobs", "0")
                here.xdel(name, here.xadd(name, {"n": "2"}))
                here.execute_command("XADD", name, "IDMP", "producer", "message", "*", "n", "3")
            with replicating(tmp_path, urls | {2: limited}) as running:
                running.tells("daemon.ready")
                here.xack("payments", "jobs", here.xreadgroup("jobs", "w", {"payments": ">"})[0][1][0][0])
                here.xtrim("payments", maxlen=1, approximate=False)
                here.delete("orders.new")
                here.xadd("orders.new", {"n": "4"})
                eventually(
                    lambda: all(
                        here.xrange(name) == there.xrange(name) for name in ("orders.new", "payments")
                    ),
                    within_s=WITHIN_S,
                    why="the streams that the patterns name should be alike",
                )
            # It asks each region for its retention policies, which these patterns leave out.
            assert {*refused(two)} <= {"bs:meta:{braid.retention}"}
        before = facts_of(two)
        with redis.Redis.from_url(limited) as peer:
            for command in (
                ("XRANGE", "bs:2:s:{pii.eu}", "-", "+"),
                ("XADD", "bs:2:s:{pii.eu}", "*", "n", "1"),
                ("HGETALL", "bs:meta:{pii.eu}"),
                ("FCALL", "bs_braid_delete", 2, "bs:meta:{pii.eu}", "bs:2:s:{pii.eu}", 2, "s2:0"),
                ("HSET", "bs:config", "fenced", 1),
                ("HSET", "bs:config", "writer", 9),
                ("FCALL", "bs_region_writers", 1, "bs:config", "part", 1),
            ):
                with pytest.raises(redis.ResponseError, match="(?i)permission|can't (run|access)|ACL"):
                    peer.execute_command(*command)
        assert facts_of(two) == before


def facts_of(engine: Engine) -> list[Any]:
    with engine.client() as operator:
        facts = operator.hgetall("bs:config")
        return [facts[field] for field in (b"writer", b"writers")] + [b"fenced" in facts]


REFUSAL = "deadline.refused stream=brief"
NOT_RESCUED = "log.rescue_refused stream=log"


def test_deadlines_need_the_right_to_unlink(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    urls = [url_of(engine, "link") for engine in pair]
    grant(pair[1], RIGHTS[1])
    with braidstream.Redis.from_url(pair[0].url, decode_responses=True) as one:
        for extra in ([], ["+unlink"]):
            grant(pair[0], RIGHTS[0] + extra)
            one.xadd("brief", {"n": "1"})
            one.pexpire("brief", 1)
            with daemon(tmp_path, urls) as told:
                if extra:
                    eventually(lambda: not one.exists("brief"), within_s=WITHIN_S, why="it should expire")
                else:
                    eventually(lambda: REFUSAL in told(), within_s=WITHIN_S, why="it is logged")
    assert refused(pair[0]) == []


def test_a_rescue_needs_the_rights_to_append_and_delete(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    urls = [url_of(engine, "link") for engine in pair]
    grant(pair[1], RIGHTS[1])
    with (
        braidstream.Redis.from_url(pair[0].url, decode_responses=True) as one,
        braidstream.Redis.from_url(pair[1].url, decode_responses=True) as two,
        pair[0].client() as operator,
    ):
        one.twrite("log", "t", "late")
        two.tcfgset("log", pending=10)  # both have made it; this is the home, by its number
        for extra in ([], ["+xadd", "+xdel"]):
            grant(pair[0], RIGHTS[0] + extra)
            with daemon(tmp_path, urls) as told:
                asyncio.run(bring(two, one))
                eventually(lambda: two.tread("log"), within_s=WITHIN_S, why="it is appended at the home")
                asyncio.run(bring(two, one))  # the home has no daemon
                if extra:
                    gone = lambda: operator.xlen("bs:1:t:{log}") == 0  # noqa: E731
                    eventually(gone, within_s=WITHIN_S, why="it should be deleted")
                else:
                    eventually(lambda: NOT_RESCUED in told(), within_s=WITHIN_S, why="it is logged")
        assert [row[2] for row in two.tread("log")] == ["late"]
    assert [refused(engine) for engine in pair] == [[], []]


async def bring(source: braidstream.Redis, target: braidstream.Redis) -> None:
    """What a daemon of the other region would do."""
    await (await link_of(Here(source), Here(target))).sync(b"log")


def plain(rights: list[str]) -> set[str]:
    """The commands."""
    return {right for word in rights for right in re.findall(r"\+([a-z|_]+)", word)}


def unused(engine: Engine, rights: list[str]) -> set[str]:
    """The rights that were not used so far, but for what the daemon does when it stops."""
    return plain(rights) - called(engine) - {"hdel"}


def test_a_changed_file_leaves_links_over_tls_alone_that_did_not_change(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    with daemon(tmp_path, [engine.url for engine in pair]) as said:
        eventually(lambda: "daemon.ready" in said(), within_s=WITHIN_S, why="it should start")
        os.utime(tmp_path / "braid.toml", (1, 1))
        eventually(lambda: "config.changed" in said(), within_s=WITHIN_S, why="it should see the file")
        with (
            braidstream.Redis.from_url(pair[0].url) as one,
            braidstream.Redis.from_url(pair[1].url) as two,
        ):
            one.xadd("m", {"n": "1"})
            eventually(lambda: two.xlen("m") == 1, within_s=WITHIN_S, why="the link should work")
        assert said().count("link.up") == 1


def test_a_peer_whose_certificate_is_not_trusted_gets_nothing(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    """Its URL trusts the other engine's authority instead of its own."""
    one, two = pair
    wrong = one.url.replace(f":{one.port}", f":{two.port}")
    with daemon(tmp_path, [one.url, wrong]) as said:
        eventually(lambda: "link.lost" in said(), within_s=WITHIN_S, why="it should refuse")
        assert "certificate verify failed" in said()
        assert "link.up" not in said()


def test_no_secret_is_told_when_a_peer_refuses_it(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    one, two = pair
    for engine in pair:
        grant(engine, ["+@all"])
    urls = [one.url, url_of(two, "link")]
    with daemon(tmp_path, urls, password="wrong-secret") as said:
        eventually(
            lambda: "ERROR peer.misconfigured" in said(), within_s=WITHIN_S, why="it should be refused"
        )
        assert "WRONGPASS" in said()
        assert "wrong-secret" not in said()
    grant(two, ["+ping"])
    with daemon(tmp_path, urls) as said:
        eventually(lambda: "NOPERM" in said(), within_s=WITHIN_S, why="it should be refused")
        assert SECRET not in said()


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (f"rediss://link:{SECRET}@127.0.0.1:1?ssl_ca_certs=/none/ca.crt", "No such file"),
        (f"rediss://link:{SECRET}@127.0.0.1:1?ssl_cert_reqs=maybe", "cannot be read"),
        (f"redis://link:{SECRET}@127.0.0.1:port", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_used_ends_the_daemon_with_a_word_about_it(
    engine: Engine, tmp_path: Path, wrong: str, hint: str
) -> None:
    with daemon(tmp_path, [engine.url, wrong]) as said:
        eventually(lambda: hint in said(), within_s=WITHIN_S, why="it should say what is wrong")
        assert "region-2" in said()
        assert SECRET not in said()


def test_the_status_of_a_full_region_does_not_blame_its_daemon(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    urls = [url_of(engine, "link") for engine in pair]
    for engine, rights in zip(pair, RIGHTS, strict=True):
        grant(engine, rights)
    with daemon(tmp_path, urls) as told:
        eventually(lambda: "daemon.ready" in told(), within_s=WITHIN_S, why="it should start")
        with pair[0].client() as operator:
            operator.config_set("maxmemory", operator.info("memory")["used_memory"] // 2)

        def problems_when_stale() -> set[tuple[str, str]]:
            words = ("status", "--config", str(tmp_path / "braid.toml"), "--json")
            found: dict[str, Any] = json.loads(braid(*words, env={"LINK_PASSWORD": SECRET}).stdout)
            [reported] = found["regions"][0]["daemons"]
            is_stale = reported["reported_ms_ago"] > STALE_MS
            return {(each["kind"], each["where"]) for each in found["problems"]} if is_stale else set()

        wanted = {("full", "region-1"), ("daemon", "region-2")}
        eventually(
            lambda: problems_when_stale() == wanted,
            within_s=WITHIN_S,
            why="a full server refuses the status, and nothing else is wrong in region 1",
        )


def test_the_guide_and_doctor_know_the_same_rights() -> None:
    assert daemon_rights(own=True, peer=False) == OWN
    assert daemon_rights(own=False, peer=True) == PEER


def test_metrics_that_the_user_may_not_read_are_absent_and_the_missing_right_is_logged_once(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    """Zero would be wrong: an alert on it could never fire."""
    urls = [url_of(engine, "link") for engine in pair]
    grant(pair[1], PEER)
    with braidstream.Redis.from_url(pair[0].url) as one, pair[0].client() as plain_client:
        one.xadd("orders", {"n": "1"})
        one.xgroup_create("orders", "billing", "0")
        plain_client.xadd("orders", {"n": "stray"})
    lacking = [right for right in OWN if right not in ("+xinfo|consumers", "(%R~* +xlen)")]
    for rights in (lacking, OWN):
        grant(pair[0], rights)
        folder = tmp_path / str(len(rights))
        folder.mkdir()
        with daemon(folder, urls) as told:
            eventually(lambda: "daemon.listening" in told(), within_s=WITHIN_S, why="it should start")
            [where] = re.findall(r"daemon.listening .*metrics=(\S+)", told())
            if rights is lacking:
                eventually(
                    lambda: told().count("metrics.refused") == 2, within_s=WITHIN_S, why="both are logged"
                )
                assert "right=+xinfo|consumers" in told()
                assert 'right="(%R~* +xlen)"' in told()
                shown = metrics(where)
                assert not [name for name in shown if name.startswith(("braid_stray", "braid_group"))]
            else:
                counted = partial(lambda at: metrics(at).get("braid_stray_entries") == 1, where)
                eventually(counted, within_s=WITHIN_S, why="there is one stray")
                assert metrics(where)["braid_group_lag_entries{group=billing,stream=orders}"] == 1
    assert refused(pair[0]) == []


def test_a_daemon_promotes_entries_for_later_with_these_rights(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    grant(pair[1], [*PEER, *IDEMPOTENT])
    urls = [url_of(engine, "link") for engine in pair]
    with braidstream.Redis.from_url(pair[0].url, decode_responses=True) as one:
        for number, rights in enumerate(
            (OWN, [*OWN, "+hsetnx", "+unlink", "+xdel", "+xgroup|create", "+xgroup|destroy", *IDEMPOTENT])
        ):
            grant(pair[0], rights)
            one.xadd("orders", {"n": str(number)}, delay=0)
            folder = tmp_path / str(number)
            folder.mkdir()
            with daemon(folder, urls) as told:
                if rights is OWN:
                    eventually(lambda t=told: "NOPERM" in t(), within_s=WITHIN_S, why="it lacks rights")  # type: ignore[misc]
                    assert one.xlen("orders") == 0, "and nothing is half done"
                else:
                    eventually(lambda: one.xlen("orders") == 2, within_s=WITHIN_S, why="it has all")
                    assert refused(pair[0]) == []
        assert one.xlen("{orders}.later") == 0

"""`braid adopt` as an operator runs it: text, --json, exit codes."""

import json

import redis

from braidstream.replication.link.batches import WIDEST
from tests.support.cli import braid
from tests.support.regions import become, client_of
from tests.support.servers import Engine


def _streams(engine: Engine) -> redis.Redis:
    become(engine)
    bare = redis.Redis.from_url(engine.url, decode_responses=True)
    for name, entries in (("orders", 2), ("orders:eu", 1), ("other", 1)):
        for at in range(entries):
            bare.xadd(name, {"at": at})
    bare.xgroup_create("orders", "billing", 0)
    bare.xreadgroup("billing", "ann", {"orders": ">"}, count=1)
    return bare


def test_a_dry_run_changes_nothing_and_an_adoption_says_what_it_did(engine: Engine) -> None:
    with _streams(engine) as bare:
        done = braid("adopt", "orders*", "--url", engine.url, "--dry-run")
        assert done.stdout.splitlines()[:2] == [
            "orders: would be adopted, 2 entries, 1 group, 1 pending",
            "orders:eu: would be adopted, 1 entry",
        ]
        assert bare.xlen("orders") == 2
        facts = json.loads(braid("adopt", "orders*", "--url", engine.url, "--json").stdout)
        assert facts == {
            "dry_run": False,
            "done": 2,
            "failed": 0,
            "streams": [
                {"name": "orders", "entries": 2, "groups": 1, "pending": 1},
                {"name": "orders:eu", "entries": 1},
            ],
        }
        assert (bare.type("orders"), bare.type("other")) == ("hash", "stream")
        assert braid("adopt", "orders*", "--url", engine.url).stdout.endswith(": 0 streams adopted.\n")
        assert "orders: adopted already\n" in braid("adopt", "orders", "--url", engine.url).stdout
        for verb in ((), ("--undo",)):
            missing = braid("adopt", "nosuch", *verb, "--url", engine.url)
            assert (missing.returncode, "nosuch: not done: " in missing.stdout) == (1, True)
        done = braid("adopt", "*", "--undo", "--url", engine.url)
        assert done.stdout.splitlines()[0] == "orders: made native again, 0 entries moved"
        assert bare.xlen("orders") == 2


def test_what_cannot_be_done_is_told_and_the_rest_is_done(engine: Engine) -> None:
    with _streams(engine) as bare:
        bare.expire("orders", 1000)
        done = braid("adopt", "orders*", "--url", engine.url)
        assert done.returncode == 1
        assert "orders: not done: it has a time to live. Take that away first with: PERSIST." in done.stdout
        assert "1 stream adopted. 1 could not be." in done.stdout
        assert bare.type("orders:eu") == "hash"


def test_strays_need_no_names_and_other_uses_do(engine: Engine) -> None:
    with _streams(engine):
        assert braid("adopt", "--strays", "--url", engine.url).stdout.endswith(": 0 streams brought in.\n")
        assert braid("adopt", "--url", engine.url).returncode == 2
        assert braid("adopt", "x", "--undo", "--strays", "--url", engine.url).returncode == 2


def test_a_server_that_is_no_region_is_refused(engine: Engine) -> None:
    done = braid("adopt", "orders", "--url", engine.url)
    assert done.returncode == 1
    assert "braid init" in done.stderr


def test_a_stray_is_not_adopted_and_what_becomes_of_its_groups_is_said(engine: Engine) -> None:
    """As when another region has adopted, or written, a stream of the same name first."""
    become(engine)
    with redis.Redis.from_url(engine.url) as bare, client_of(engine) as client:
        client.xadd("orders", {"n": "ours"})
        bare.xadd("orders", {"n": "stray"})
        bare.xgroup_create("orders", "billing", 0)
        for dry in ((), ("--dry-run",)):
            done = braid("adopt", "ord*", "--url", engine.url, *dry)
            assert done.returncode == 1
            assert "orders: not done: a stream of that name exists already, here or in a peer." in done.stdout
        done = braid("adopt", "--strays", "--url", engine.url)
        assert (
            "orders: brought in, 1 entry; 1 group with 0 pending dropped: XGROUP CREATE again" in done.stdout
        )
        assert client.xinfo_groups("orders") == []


def test_a_stray_with_an_entry_that_is_too_wide_does_not_stop_the_others(engine: Engine) -> None:
    become(engine)
    with redis.Redis.from_url(engine.url) as bare, client_of(engine) as client:
        for name in ("a", "b"):
            client.xadd(name, {"n": "ours"})
        bare.xadd("a", {str(number): "wide" for number in range(WIDEST + 1)})
        bare.xadd("b", {"n": "stray"})
        done = braid("adopt", "--strays", "--url", engine.url)
        assert done.returncode == 1
        assert "a: not done: it has an entry with too many fields." in done.stdout
        assert "b: brought in, 1 entry" in done.stdout
        assert client.xlen("b") == 2

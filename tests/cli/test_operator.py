"""`braid acl operator`: with these rights one can look at a region, and mend groups and dead letters."""

import re
import time
from pathlib import Path

import pytest

import braidstream
from braidstream.consumers.dead_letters import DeadLetter
from braidstream.model.strand import Strand
from braidstream.operations.membership import meet
from braidstream.operations.rights import OPERATOR
from tests.support.cli import braid
from tests.support.daemons import write_config
from tests.support.regions import apply, become, client_of
from tests.support.servers import NEWEST, Engine

# What each client sends in any case, or the test; COMMAND INFO is optional.
ALWAYS = {"auth", "hello", "client|setinfo", "command|info", "config|resetstat", "acl|log"}


def fill(client: braidstream.Redis, engine: Engine) -> None:
    for number in range(5):
        client.xadd("orders", {"n": number})
    client.xdel("orders", client.xrange("orders")[3][0])
    client.execute_command("XGROUP CREATE", "orders", "billing", "0", "SCOPE", "ONCE")
    client.xgroup_create("orders", "mail", "0")
    for group in ("mail", "billing"):
        client.xreadgroup(group, "ann", {"orders": ">"}, count=2)
    client.twrite("payments", entries=[("t", "e")] * 4)
    add_dead_letters(client)
    bills = client.topic("bills")
    bills.create(2)
    client.xgroup_create(bills.streams()[0], "billing", "0", mkstream=True)
    with engine.client() as plain:
        plain.xadd("native", {"n": 1})
        plain.xgroup_create("native", "old", "0")
        plain.set("plain", 1)


def add_dead_letters(client: braidstream.Redis) -> None:
    for number in range(3):
        words = DeadLetter("orders", f"{number}-1", "mail", "ann", 5, "why", (b"n", b"9")).to_words()
        client.xadd("orders.dead", dict(zip(words[::2], words[1::2], strict=True)))


def operate(url: str, config: Path) -> None:
    """The verbs of an operator."""
    for line in (
        "status",
        "streams",
        "groups",
        "tail orders --no-follow",
        "tail payments --no-follow",
        "dead list orders.dead",
        "dead retry orders.dead --all --reason none",
        "dead drop orders.dead --all --reason none",
        "group scope once --streams orders --group mail",
        "group scope everywhere --streams orders --group mail",
        "group take --from 1",
        "group give --from 1 --to 1",
        "topic create bills --partitions 2",
        "topic info bills",
        "topic members bills",
        "retention set orders --max-age 7d --acked",
        "retention list",
        "retention run",
        "retention off orders",
        "tune id-mode strict",
    ):
        done = braid(*line.split(), "--url", url)
        said = done.stdout + done.stderr
        assert done.returncode == 0 or line == "status", f"{line}: {said}"
        assert "NOPERM" not in said, f"{line}: {said}"
        assert "no permissions" not in said, f"{line}: {said}"
    [first, second, _] = re.findall(r"\d{13}-\d+", braid("dead", "list", "orders.dead", "--url", url).stdout)
    for words in (("show", first), ("retry", first), ("drop", second)):
        done = braid("dead", words[0], "orders.dead", words[1], "--url", url)
        assert done.returncode == 0, done.stdout + done.stderr
    for line in ("log info payments", "log set payments --pending 100", "log evict payments --before 2"):
        done = braid(*line.split(), "--config", str(config))
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"


def called(engine: Engine) -> set[str]:
    with engine.client() as admin:
        return {name.removeprefix("cmdstat_") for name in admin.info("commandstats")} - ALWAYS


def meet_a_peer(client: braidstream.Redis) -> None:
    """It has a peer now, of whose entries some have come, and some dead letters again."""
    client.run_plan(meet((1, 2)))
    now = round(time.time() * 1000)
    client.run_plan(apply(Strand(b"orders", "s", 2), [((now, n), [b"n", b"2"]) for n in range(9)]))
    client.delete("orders.dead")
    add_dead_letters(client)


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_an_operator_needs_these_rights_and_no_other(engine: Engine, tmp_path: Path) -> None:
    become(engine)
    printed = re.findall(r"\([^)]*\)|\S+", braid("acl", "operator", "--user", "ops").stdout)
    url = engine.url.replace("//", "//ops:secret@")
    config, used = write_config(tmp_path / "braid.toml", {1: url}), set[str]()
    with client_of(engine) as client, engine.client() as admin:
        fill(client, engine)
        admin.execute_command(*[">secret" if word == ">PASSWORD" else word for word in printed])
        for before in (lambda: None, lambda: meet_a_peer(client)):
            before()
            admin.execute_command("ACL", "LOG", "RESET")
            admin.config_resetstat()
            operate(url, config)
            used |= called(engine)
            assert {str(entry["object"]) for entry in admin.acl_log()} - ALWAYS == set()
    assert used == {*OPERATOR}

"""`braid doctor` finds what is set up badly, and says what to type."""

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from braidstream.commands.rename import copy
from braidstream.engine.sender import Sender
from braidstream.model.strand import Strand
from braidstream.operations.checkup import check_file
from braidstream.operations.doctor import read_setup
from braidstream.operations.rights import lacking, operator_rights, program_rights
from braidstream.plan.lookup import read_region
from braidstream.plan.plan import Plan, run
from braidstream.plan.view import View
from tests.regions.test_replication_security import RIGHTS
from tests.support.cli import braid
from tests.support.daemons import numbered, write_config
from tests.support.matrix import installed
from tests.support.regions import become, client_of
from tests.support.servers import NEWEST, Engine, Flavour
from tests.support.waiting import eventually


@pytest.fixture(params=NEWEST)
def pair(request: pytest.FixtureRequest) -> Any:
    flavour = installed(request.param)
    with Engine(flavour) as one, Engine(flavour) as two:
        yield one, two


def findings(config: Path, *more: str) -> dict[tuple[str, str], dict[str, str]]:
    done = braid("doctor", "--config", str(config), "--json", *more)
    found = json.loads(done.stdout)["findings"]
    serious = any(each["level"] != "note" for each in found)
    assert done.returncode == (1 if serious else 0)
    return {(each["check"], each["where"]): each for each in found}


def test_every_bad_setting_is_found_with_a_remedy(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    one, two = pair
    config = write_config(tmp_path / "braid.toml", numbered(pair), durability={2: "replicas:1"})
    with client_of(one) as ours, redis.Redis.from_url(one.url) as plain:
        ours.xadd("orders", {"n": 1})
        plain.xadd("orders", {"from": "an old producer"})
        plain.xadd("unrelated", {"n": 1})
        plain.config_set("maxmemory", "500mb")
        plain.config_set("maxmemory-policy", "allkeys-lru")
        plain.config_set("client-output-buffer-limit", "normal 1mb 0 0")
    with redis.Redis.from_url(two.url) as plain:
        plain.config_set("client-output-buffer-limit", "pubsub 1mb 1mb 60")
        plain.hset("bs:config", "writers", "2 7")
        plain.hset("bs:config", "id-mode", "liberal")
        plain.execute_command("ACL", "SETUSER", "weak", "on", ">secret", "~*", "+@all", "-xadd")
    found = findings(config)
    assert found["eviction", "region-1"]["fix"] == "CONFIG SET maxmemory-policy noeviction"
    assert "orders" in found["stray", "region-1"]["text"]
    assert "unrelated" in found["native", "region-1"]["text"]
    assert "normal" in found["output-buffer", "region-1"]["text"]
    assert ("output-buffer", "region-2") not in found
    assert found["replicas", "region-2"]["level"] == "error"
    assert "region 7" in found["unlisted", "region-2"]["text"]
    assert "region-1" in found["unmet", "region-2"]["text"]
    assert "liberal" in found["id-mode", "all regions"]["text"]
    assert found["daemon", "region-1"]["level"] == "error"
    weak = two.url.replace("redis://", "redis://weak:secret@")
    config = write_config(tmp_path / "weak.toml", {2: weak})
    assert "XADD" in findings(config)["rights", "region-2"]["text"]


def test_workers_of_two_regions_that_handle_the_same_entries_are_found(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    config = write_config(tmp_path / "braid.toml", numbered(pair))
    for engine in pair:
        with client_of(engine) as client, redis.Redis.from_url(engine.url) as plain:
            plain.hset("bs:config", "writers", "1 2")
            for group, scope in [("billing", "EVERYWHERE"), ("mail", "ONCE")]:
                client.xgroup_create("orders", group, "0", mkstream=True, scope=scope)
                client.xreadgroup(group, "worker", {"orders": ">"})
            client.xgroup_create("orders", "idle", "0")
    found = {where: each for (check, where), each in findings(config).items() if check == "everywhere"}
    assert [*found] == ["region-1"]
    assert "billing of orders has the scope EVERYWHERE" in found["region-1"]["text"]
    fix = "braid group scope once --streams orders --group billing --region region-1"
    assert found["region-1"]["fix"].endswith(fix)


def test_entries_of_scope_once_that_wait_where_no_worker_is_are_found(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    config = write_config(tmp_path / "braid.toml", numbered(pair))
    for engine in pair:
        with client_of(engine) as client, redis.Redis.from_url(engine.url) as plain:
            plain.hset("bs:config", "writers", "1 2")
            for group in ("mail", "nobody"):
                client.xgroup_create("orders", group, "0", mkstream=True, scope="ONCE")
            client.xadd("orders", {"n": 1})
    with client_of(pair[0]) as client:
        client.xreadgroup("mail", "worker", {"orders": ">"})
    found = {where: each for (check, where), each in findings(config).items() if check == "unattended"}
    assert [*found] == ["region-2"]
    assert found["region-2"]["text"].endswith("its workers are in region-1.")
    give = "--from 2 --to 1 --streams orders --group mail --timeout 10 --region region-2"
    assert found["region-2"]["fix"].endswith(f"braid group give {give}")
    with client_of(pair[1]) as client:
        client.xreadgroup("mail", "worker", {"orders": ">"})
    assert "unattended" not in {check for check, _ in findings(config)}


def test_a_server_on_the_network_without_tls_or_password_is_found(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    """0.0.0.0 reaches this machine, and is not an address of loopback."""
    config = tmp_path / "braid.toml"
    urls = numbered(pair)
    apart = {number: url.replace("127.0.0.1", "0.0.0.0") for number, url in urls.items()}
    with pair[1].client() as operator:
        operator.config_set("requirepass", "secret")
        try:
            with_password = apart[2].replace("//", "//:secret@", 1)
            found = findings(write_config(config, {1: apart[1], 2: with_password}))
        finally:
            operator.config_set("requirepass", "")
    assert "rediss://" in found["tls", "region-1"]["fix"]
    assert "CONFIG SET requirepass" in found["password", "region-1"]["fix"]
    assert ("tls", "region-2") in found
    assert ("password", "region-2") not in found
    assert not {"tls", "certificate", "password"} & {
        check for check, _ in findings(write_config(config, urls))
    }


def test_a_certificate_that_is_not_verified_is_found(tls_flavour: Flavour, tmp_path: Path) -> None:
    with Engine(tls_flavour, tls=True) as engine:
        become(engine, region=1, name="region-1")
        url = f"rediss://0.0.0.0:{engine.port}?ssl_cert_reqs=none&ssl_check_hostname=false"
        found = findings(write_config(tmp_path / "braid.toml", {1: url}))
    assert "ssl_ca_certs" in found["certificate", "region-1"]["fix"]
    assert ("tls", "region-1") not in found


def test_a_file_with_a_password_that_others_can_read_is_found(engine: Engine, tmp_path: Path) -> None:
    become(engine, region=1, name="region-1")
    secret = engine.url.replace("//", "//default:secret@", 1)
    config = write_config(tmp_path / "braid.toml", {1: secret})
    for mode, is_found in ((0o644, True), (0o640, True), (0o600, False)):
        config.chmod(mode)
        found = findings(config)
        assert (("file-mode", str(config)) in found) == is_found
        assert "secret@" not in str(found)
    config.chmod(0o644)
    for url in (engine.url, engine.url.replace("//", "//default:${LINK_PASSWORD}@", 1)):
        assert check_file(write_config(config, {1: url})) == []
    assert check_file(write_config(config, {1: secret}))[0].fix.startswith(f"chmod 600 {config}")


@pytest.mark.parametrize(
    ("rules", "loses"),
    [("off", True), ("on >long ~* &* +@all -xadd", True), ("on >long ~* &* +@all", False)],
)
def test_a_server_that_loses_transactions_at_a_restart_is_refused(
    flavour: Flavour, tmp_path: Path, rules: str, loses: bool
) -> None:
    """Whether it does is tried: newer engines lose nothing, whatever the rights of their default user."""
    users, whole = tmp_path / "users.acl", "on >long ~* &* +@all"
    write_users = lambda rules: users.write_text(f"user default {rules}\nuser admin on >pw ~* &* +@all\n")  # noqa: E731
    write_users(rules)
    with Engine(flavour, args=["--appendonly", "yes", "--aclfile", str(users)]) as engine:
        url = engine.url.replace("redis://", "redis://admin:pw@")
        init = ("init", "--url", url, "--region", "1", "--name", "region-1")
        done = braid(*init)
        with redis.Redis.from_url(url) as plain:
            plain.pipeline().xadd("kept", {"n": 1}).set("also", 1).execute()
            engine.restart()
            eventually(lambda: _is_loaded(plain), within_s=30, why="the server should have read its file")
            is_lost = not plain.exists("kept")
            assert (done.returncode == 1) == is_lost, done.stderr
            assert loses or not is_lost
            if is_lost:
                assert not plain.exists("bs:config")
                assert "ACL SETUSER default on" in " ".join(done.stderr.split())
                write_users(whole)
                plain.acl_load()
                assert braid(*init).returncode == 0
                write_users(rules)
                plain.acl_load()
        config = write_config(tmp_path / "braid.toml", {1: url})
        assert (("aof-user", "region-1") in findings(config)) == is_lost


def _is_loaded(client: "redis.Redis[bytes]") -> bool:
    with suppress(redis.BusyLoadingError):
        return bool(client.ping())
    return False


def _copy(client: Any) -> Plan[Any]:
    view = View(client.run_plan(read_region()))
    return copy(view, [b"COPY", b"orders", b"sales"])


def _repair(client: Any) -> Plan[Any]:
    pytest.importorskip("pyspark")
    from braidstream.spark.jobs.repair import rebuild

    return rebuild(Strand(b"orders", "s", 1), {(1, 0): [b"n", b"0"]})


@pytest.mark.parametrize("command", [_copy, _repair])
def test_the_copy_of_a_client_that_was_killed_is_named_after_an_hour(
    flavour: Flavour, tmp_path: Path, command: Callable[[Any], Plan[Any]]
) -> None:
    def killed(plan: Plan[Any]) -> Plan[None]:
        """Nothing is sent after the first page of the copy."""
        batch = next(plan)
        while True:
            replies = yield batch
            if any(command[0] == "XADD" for command in batch.commands):
                return
            batch = plan.send(replies)

    with Engine(flavour, clock_s=0) as engine:
        config = write_config(tmp_path / "braid.toml", {1: engine.url})
        become(engine, region=1, name="region-1")
        with client_of(engine) as client, engine.client() as operator:
            client.xadd("orders", {"n": 1})
            client.run_plan(killed(command(client)))
            [left] = operator.keys("bs:copy:*")
            assert ("copies", "region-1") not in findings(config)
            engine.set_clock(2 * 3600)
            found = findings(config)["copies", "region-1"]
            assert left.decode() in found["text"]
            assert "120 minutes" in found["text"]
            assert "UNLINK" in found["fix"]
            operator.unlink(left)
            assert ("copies", "region-1") not in findings(config)


def test_a_large_stream_without_a_limit_is_named(engine: Engine, tmp_path: Path) -> None:
    become(engine, name="region-1")
    config = write_config(tmp_path / "braid.toml", {1: engine.url})
    now_ms = round(time.time() * 1000)
    with client_of(engine) as client:
        for name in ("orders", "payments", "parcels"):
            for age in range(220, 0, -1):
                client.xadd(name, {"n": "x" * 2**19}, id=str(now_ms - age * 3_600_000))
        client.xadd("braid.retention", {"streams": "pa*", "max-age": "7d", "acked": "1"})
        for group, start in (("stuck", now_ms - 215 * 3_600_000), ("works", now_ms - 9 * 3_600_000)):
            client.xgroup_create("parcels", group, start)
    found = json.loads(braid("doctor", "--config", str(config), "--json").stdout)["findings"]
    notes = [each for each in found if each["check"] == "retention"]
    parcels, orders = sorted(notes, key=lambda each: str(each["text"]))
    assert re.search(
        r"orders has no retention policy: 1\d\d(\.\d)? MB, about 1\d(\.\d)? MB a day", orders["text"]
    )
    assert orders["fix"].startswith("braid retention set 'orders'")
    assert re.search(r"group stuck of parcels holds 1\d\d(\.\d)? MB, the last 9d\.", parcels["text"])
    assert "XGROUP DESTROY parcels stuck" in parcels["fix"]


def test_entries_for_later_need_a_takeover(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    become(pair[0], region=1, name="region-1")
    config = write_config(tmp_path / "braid.toml", {1: pair[0].url, 2: pair[1].url})

    def said() -> list[str]:
        found = json.loads(braid("doctor", "--config", str(config), "--json").stdout)["findings"]
        return [each["text"] for each in found if each["check"] == "later"]

    with client_of(pair[0]) as client, pair[0].client() as bare:
        bare.hset("bs:config", "writers", "1 2")
        assert said() == []
        client.xadd("orders", {"n": "1"}, delay=60)
        [text] = said()
        assert "entries that wait for orders wait for a region that is lost" in text
    config.write_text(f"{config.read_text()}[groups]\ntakeover_after_s = 60\n")
    assert said() == []


def test_native_streams_are_found_although_copies_cannot_be_looked_for(pair: tuple[Engine, Engine]) -> None:
    become(pair[0], region=1, name="region-1")
    with pair[0].client() as operator:
        operator.execute_command("ACL", "SETUSER", "few", "on", ">secret", "~*", "+@all", "-time")
        operator.xadd("bull:x:events", {"n": 1})
    with redis.Redis.from_url(pair[0].url.replace("//", "//few:secret@", 1)) as few:
        setup = run(read_setup("region-1"), Sender(few.connection_pool.get_connection()))
    assert setup.natives == (b"bull:x:events",)
    assert "unfinished copies could not be looked for: NOPERM" in setup.unchecked


def test_what_is_found_is_shown_with_what_to_type(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    become(pair[0], region=1, name="region-1")
    config = write_config(tmp_path / "braid.toml", {1: pair[0].url, 2: "redis://127.0.0.1:1"})
    done = braid("doctor", "--config", str(config))
    assert done.returncode == 1
    assert "error   region-2: " in done.stdout
    assert "2 regions checked: " in done.stdout
    done = braid("doctor", "--config", str(config), "--region", "region-1")
    assert "region-2: " not in done.stdout


def test_a_region_without_peers_has_nothing_to_rejoin_from(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    config = write_config(tmp_path / "braid.toml", numbered(pair[:1]))
    with redis.Redis.from_url(pair[0].url) as plain:
        plain.config_set("appendonly", "no")
        plain.config_set("save", "")
        text = findings(config)["persistence", "region-1"]["text"]
        assert "there is no other region" in text
        assert "rejoin" not in text
        plain.flushall()
    empty = findings(config)["noregion", "region-1"]
    assert "rejoin" not in empty["text"] + empty["fix"]
    assert "braid init --url URL --region 1 --name region-1" in empty["fix"]


def test_users_with_few_rights_see_what_they_may_and_no_false_errors(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    """The users of the guide on replication security: the second may not SCAN."""
    numbered(pair)
    urls = dict[int, str]()
    for number, (engine, rights) in enumerate(zip(pair, RIGHTS, strict=True), start=1):
        with engine.client() as operator:
            operator.execute_command("ACL", "SETUSER", "link", "on", ">secret", *rights)
            operator.xadd("bull:x:events", {"n": 1})
            operator.config_set("maxmemory-policy", "allkeys-lru")
        urls[number] = engine.url.replace("//", "//link:secret@", 1)
    found = findings(write_config(tmp_path / "braid.toml", urls))
    assert not [check for check, _ in found if check == "stray"]
    for region in ("region-1", "region-2"):
        assert found["eviction", region]["level"] == "error"
    assert "NOPERM" in found["unchecked", "region-2"]["text"]


def test_a_frozen_server_does_not_stop_the_checks(pair: tuple[Engine, Engine], tmp_path: Path) -> None:
    config = write_config(tmp_path / "braid.toml", numbered(pair))
    with pair[1].paused():
        done = braid("doctor", "--config", str(config), within_s=20)
    assert done.returncode == 1
    assert "error   region-2: no answer" in done.stdout
    assert "region-1: " in done.stdout


def test_the_rights_of_the_daemons_user_are_checked_by_an_administrator(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    config = write_config(tmp_path / "braid.toml", numbered(pair))
    with pair[0].client() as operator:
        operator.execute_command("ACL", "SETUSER", "link", "on", ">secret", *RIGHTS[0], *RIGHTS[1])
        operator.execute_command("ACL", "SETUSER", "link", "-xinfo|consumers", "-xadd", "clearselectors")
    found = findings(config, "--user", "link")
    lacks = found["user", "region-1"]
    assert lacks["level"] == "error"
    assert lacks["fix"] == "ACL SETUSER link (%R~* +xlen) +xadd +xinfo|consumers"
    assert "there is no user link" in found["user", "region-2"]["text"]
    for engine, fix in zip(pair, (lacks["fix"], found["user", "region-2"]["fix"]), strict=True):
        with engine.client() as operator:  # what it prints can be typed
            words = re.findall(r"\([^)]*\)|\S+", fix.replace(">PASSWORD", ">secret"))
            operator.execute_command(*words)
    assert not [check for check, _ in findings(config, "--user", "link") if check == "user"]


def test_the_rights_of_a_programs_user_are_checked_and_what_it_prints_suffices(
    pair: tuple[Engine, Engine], tmp_path: Path
) -> None:
    """As after the import of a program has changed: its user was made for redis-py."""
    config = write_config(tmp_path / "braid.toml", numbered(pair[:1]))
    words = ("--user", "app", "--as", "worker", "--streams", "orders")
    with pair[0].client() as operator:
        operator.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~orders", "+@stream")
        lacks = findings(config, *words)["user", "region-1"]
        assert lacks["text"] == "the user app lacks rights that a worker of orders needs."
        assert "~bs:*:{orders}*" in lacks["fix"]
        assert "+hgetall" in lacks["fix"]
        assert " ~orders " not in lacks["fix"]
        operator.execute_command(*lacks["fix"].split())
    assert ("user", "region-1") not in findings(config, *words)
    done = braid("doctor", "--config", str(config), "--as", "worker", "--streams", "orders")
    assert done.returncode == 2
    assert "name it with --user" in done.stderr


@pytest.mark.parametrize("kind", ["reader", "writer", "consumer", "worker", "operator"])
def test_each_right_that_braid_acl_prints_is_missed_if_it_is_not_there(
    pair: tuple[Engine, Engine], kind: str
) -> None:
    rights = operator_rights()
    if kind != "operator":
        rights = program_rights(kind, ["orders", "odd?*"], idempotent=kind == "writer")
    with pair[0].client() as operator:
        send = Sender(operator.connection_pool.get_connection())
        assert run(lacking("app", rights), send) is None
        for missing in (None, *rights):
            given = [right for right in rights if right != missing]
            operator.execute_command("ACL", "SETUSER", "app", "reset", "on", *given)
            assert run(lacking("app", rights), send) == ([] if missing is None else [missing])

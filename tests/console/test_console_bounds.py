"""No page of the console asks a server for too much, or writes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from braidstream.console.access import BoundError, bounded
from braidstream.errors import ReplyError
from braidstream.plan.plan import Batch, Plan, run
from tests.console.test_console_access import Visit
from tests.support.consoles import console
from tests.support.daemons import write_config
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.world import fresh_world

GUIDE: Final = Path(__file__).parents[2] / "docs/guides/console.md"
# What a page may send: only reads, each with a bound. TREAD and XPENDING are plans of ours.
PAGES: Final = (
    "/",
    "/streams",
    "/streams?pattern=[",
    "/stream?name=orders",
    "/entries?name=orders&count=200",
    "/entries?name=orders&text=nowhere",
    "/entry?name=orders&id=1-1",
    "/tail?name=orders",
    "/groups",
    "/group?name=orders&group=billing",
    "/dead?name=orders",
    "/logs",
    "/log?name=audit",
    "/log?name=orders",
    "/doctor",
    "/audit",
)
HOSTILE: Final = (
    "/entries?name=orders&count=999999999",
    "/entries?name=orders&count=-1",
    "/entries?name=orders&at=99999999999999999999999999-1",
    "/entries?name=orders&at=9999999999999999-18446744073709551615",
    "/entries?name=",
    "/entries?name=base64:%21",
    "/entries?name=a%00b&field=%ff%fe",
    "/streams?cursor=-1",
    "/streams?pattern=base64:%3F",
    "/streams?cursor=99999999999999999999",
    "/streams?pattern=" + "[" * 1_000,
    "/streams?pattern=" + "*a" * 90,
    "/streams?region=nosuch",
    "/streams?pattern=" + "x" * 3_000,
    "/tail/new?name=orders&cursor=[]",
    "/tail/new?name=orders&cursor={",
    "/tail/new?name=orders&cursor=%7B%22orders%22%3A%7B%22s1%22%3A%22x%22%7D%7D",
    "/entry?name=orders&id=%ff",
    "/log?name=audit&at=99999999999999999999",
    "/dead?name=orders&at=(1-1",
    "/tail/new?name=orders&cursor=" + "[" * 1_900,
    "/static/../page.py",
    "/static/%2e%2e/page.py",
    "/" + "a" * 5_000,
)


def viewer() -> str:
    """The command of the guide that makes a user for the console."""
    (found,) = re.findall("^ACL SETUSER .*$", GUIDE.read_text(), re.M)
    return str(found).replace("PASSWORD", "pw")


@pytest.fixture
def url(engine: Engine, tmp_path: Path) -> Iterator[str]:
    """A console whose user may not write anything."""
    become(engine, region=1, name="region-1")
    with client_of(engine) as client, client.pipeline(transaction=False) as pipe:
        for number in range(5_000):
            pipe.xadd("orders", {"order": number})
        pipe.execute()
        client.xgroup_create("orders", "billing", "0")
        client.twrite("audit", "login", "ann")
        client.execute_command(*viewer().split())
    config = write_config(tmp_path / "braid.toml", {1: engine.url.replace("redis://", "redis://viewer:pw@")})
    try:
        with console(config) as found:
            yield found
    finally:
        with engine.client() as client:
            client.execute_command("ACL", "DELUSER", "viewer")


def calls(engine: Engine) -> dict[str, int]:
    with engine.client() as client:
        found: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}


def test_all_pages_work_for_a_user_who_may_only_read(url: str, engine: Engine) -> None:
    before = calls(engine)
    for path in PAGES:
        answer = Visit(url, path)
        expected = {"/entry?name=orders&id=1-1": 404, "/log?name=orders": 502}.get(path, 200)
        assert answer.status == expected, f"{path}: {answer.text}"
        assert "NOPERM" not in answer.text, path
    after = calls(engine)
    ran = {name for name, count in after.items() if count > before.get(name, 0)}
    assert "keys" not in ran
    # A filter that finds nothing reads 2,000 entries in ten pages, two round trips each.
    assert after["xrevrange"] - before.get("xrevrange", 0) < 20


def test_odd_words_are_refused_with_a_page(url: str) -> None:
    for path in HOSTILE:
        answer = Visit(url, path)
        assert answer.status in (200, 400, 404, 502), f"{path[:80]}: {answer.status}"
        assert "Traceback" not in answer.text
    assert Visit(url, "/").status == 200


@pytest.mark.parametrize("direction", ["older", "newer"])
def test_entries_with_one_id_are_on_one_page(engine: Engine, tmp_path: Path, direction: str) -> None:
    with Engine(engine.flavour) as other, fresh_world([engine, other], "liberal") as world:
        for number in (1, 2):
            world[number].xadd("orders", {"from": f"region-{number}"}, id="5-1")
        world[1].xadd("orders", {"from": "later"}, id="6-1")
        world.sync()
        with console(write_config(tmp_path / "braid.toml", {1: engine.url})) as url:
            page = Visit(url, f"/entries?name=orders&count=1&at=5-1&dir={direction}").text
    assert ("region-1" in page.partition("<table")[2], "region-2" in page, "later" in page) == (
        True,
        True,
        False,
    )


def test_odd_values_are_shown(url: str, engine: Engine) -> None:
    words = [word for name in ("stream", "id", "group", "consumer") for word in (f"dead.{name}", "x")]
    words += ["dead.attempts", "9" * 5_000, "dead.reason", "x", "a", '["half of a pair: \\ud83d"]']
    with client_of(engine) as client:
        client.execute_command("XADD", "odd", "*", *words)
    for path in ("/entries?name=odd", "/dead?name=odd"):
        answer = Visit(url, path)
        assert answer.status == 200, f"{path}: {answer.text}"
        assert "half of a pair: \\ud83d" in answer.text


def test_a_page_of_large_entries_is_refused(url: str, engine: Engine) -> None:
    with client_of(engine) as client:
        for _ in range(34):
            client.xadd("large", {"f": bytes(2**20)})
            client.twrite("large-log", "t", bytes(2**20))
    for path in ("/dead?name=large", "/log?name=large-log", "/entries?name=large"):
        answer = Visit(url, path)
        assert (answer.status, "more than 33,554,432 bytes" in answer.text) == (502, True), path
    assert Visit(url, "/dead?name=orders").status == 200


def test_a_compacted_log_is_shown_page_by_page(url: str, engine: Engine) -> None:
    with client_of(engine) as client:
        client.twrite("thin", entries=[("t", "x")] * 3_000)
        kept = [*range(25, 2_900, 25), *range(2_990, 3_001)]
        client.xdel("thin", *(f"0-{offset}" for offset in range(1, 3_001) if offset not in kept))
    backwards = [*pages(url, "/log?name=thin", "Earlier")]
    assert backwards == [kept[-50:], kept[-100:-50], kept[:50]]
    forwards = [*pages(url, "/log?name=thin&at=1", "Later")]
    assert [offset for page in forwards for offset in page] == kept


def pages(url: str, path: str, word: str) -> Iterator[list[int]]:
    """The offsets of a page of a log, and of the pages that its links lead to."""
    while path:
        seen = Visit(url, path).text
        yield [int(each.replace(",", "")) for each in re.findall(r'<td class="id">([0-9,]+) ', seen)]
        found = re.search(rf'href="([^"]*)">{word} offsets', seen)
        path = found[1].replace("&amp;", "&") if found else ""


def test_a_search_that_finds_nothing_can_be_continued(url: str, engine: Engine) -> None:
    with engine.client() as client, client.pipeline(transaction=False) as pipe:
        for number in range(30_000):
            pipe.set(f"filler-{number}", 1)
        pipe.execute()
    path, seen, parts = "/streams?pattern=ord", "", 0
    while path:
        seen = Visit(url, path).text
        found = re.search(r'href="([^"]*cursor=[^"]*)">Continue', seen)
        path = found[1].replace("&amp;", "&") if found else ""
        parts += 1
        if ">orders<" in seen:
            break
    assert ">orders<" in seen
    assert 1 <= parts < 40


def test_a_plan_ends_before_it_makes_too_many_round_trips() -> None:
    def endless() -> Plan[int]:
        while True:
            yield Batch([("PING",)])

    def short() -> Plan[Any]:
        try:
            yield Batch([("PING",)])
        except ReplyError as error:
            return (yield Batch([(str(error),)]))

    sent = list[Batch]()

    def send(batch: Batch) -> list[Any]:
        sent.append(batch)
        return [ReplyError("ERR no")] if batch.commands[0][0] == "PING" and len(sent) == 1 else [b"PONG"]

    assert run(bounded(short(), 2), send) == [b"PONG"]
    with pytest.raises(BoundError, match="more than 5 round trips"):
        run(bounded(endless(), 5), send)
    assert len(sent) == 2 + 5


def test_an_audit_is_shown_from_its_file(engine: Engine, tmp_path: Path) -> None:
    become(engine, region=1, name="region-1")
    config = write_config(tmp_path / "braid.toml", {1: engine.url})
    file = tmp_path / "audit.json"
    with console(config, "--audit", str(file)) as url:
        assert "cannot be read" in Visit(url, "/audit").text
        file.write_text("[]")
        assert "is not what" in Visit(url, "/audit").text
        lost = {"kind": "lost", "stream": "<b>", "place": "s1", "id": "1-1", "region": 1, "certain": True,
                "healed": False, "note": ""}  # fmt: skip
        facts = {"regions": [1, 2], "entries": 7, "behind": {"1": 0, "2": 3}, "removing": {"1": 0, "2": 0},
                 "wrong": 1, "healed": 0, "anomalies": [lost], "seconds": 1.0}  # fmt: skip
        file.write_text(json.dumps(facts))
        shown = Visit(url, "/audit").text
        assert "1 entries or groups are wrong" in shown
        assert ">&lt;b&gt;</td>" in shown
        file.write_text(json.dumps({**facts, "anomalies": [], "wrong": 0}))
        assert "3 entries were still replicating" in Visit(url, "/audit").text

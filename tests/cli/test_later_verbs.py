"""`braid later`: what waits, and its promotion in a region without a daemon."""

import json
import time

import braidstream
from tests.support.cli import braid
from tests.support.gateways import Line, Served
from tests.support.servers import Engine


def test_what_waits_is_listed_and_promoted_when_it_is_due(engine: Engine, region: braidstream.Redis) -> None:
    region.xadd("orders", {"n": "soon"}, delay=0.2)
    region.xadd("orders", {"n": "late"}, delay=86_400)
    wrong = region.xadd("{orders}.later", {"later.delay": "soon", "n": "odd"})
    group = region.xadd("{orders}.later", {"later.delay": "0", "later.group": "g", "n": "again"})
    listed = json.loads(braid("later", "list", "orders", "--url", engine.url, "--json").stdout)["waiting"]
    assert [dict(each["fields"])["n"] for each in listed] == ["again", "soon", "late", "odd"]
    assert [each["id"] for each in listed if each["why"]] == [wrong]
    assert [each["id"] for each in listed if each["group"] == "g"] == [group]
    shown = " ".join(braid("later", "list", "orders", "--url", engine.url).stdout.split())
    assert "1d" in shown or "24h" in shown
    assert "only group g: n=again" in shown
    assert "never: 'soon' is not a number of milliseconds" in shown
    time.sleep(0.3)
    done = json.loads(braid("later", "run", "--url", engine.url, "--json").stdout)
    assert done["promoted"] == 2
    [refused] = done["refused"]
    assert refused.startswith(f"{{orders}}.later {wrong}: ")
    assert [fields for _, fields in region.xrange("orders")] == [{"n": "soon"}]
    assert [fields for _, fields in region.xrange("{orders}.g.again")] == [{"n": "again"}]
    assert region.xlen("{orders}.later") == 2
    again = json.loads(braid("later", "run", "--url", engine.url, "--json").stdout)
    assert again["promoted"] == 0
    nothing = braid("later", "list", "payments", "--url", engine.url)
    assert nothing.stdout == "Nothing waits for payments.\n"
    assert braid("later", "list", "{orders}.later", "--url", engine.url).returncode == 2


def test_they_can_be_typed_at_a_gateway(engine: Engine, region: braidstream.Redis) -> None:
    with Served(engine.url) as served, Line(served.port) as line:
        first = line.say("XADD", "{orders}.later", "*", "later.delay", "0", "order", "1")
        assert first.startswith(b"$")
        entry = line.say("XADD", "{orders}.later", "*", "later.at", "1796112000000", "order", "2")
        assert line.say("XLEN", "{orders}.later") == b":2\r\n"
        assert line.say("XDEL", "{orders}.later", entry.split(b"\r\n")[1]) == b":1\r\n"
    assert "1 entries promoted" in braid("later", "run", "--url", engine.url).stdout
    assert [fields for _, fields in region.xrange("orders")] == [{"order": "1"}]

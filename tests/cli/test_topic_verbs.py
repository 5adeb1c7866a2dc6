"""`braid topic`: topics are created and shown."""

import json

import braidstream
from tests.support.cli import braid
from tests.support.servers import Engine


def test_topics_are_created_and_shown(engine: Engine, region: braidstream.Redis) -> None:
    at = ("--url", engine.url)
    assert braid("topic", "list", *at).stdout.startswith("There are no topics.")
    done = braid("topic", "create", "orders", "--partitions", "64", *at)
    assert done.stdout.endswith("topic orders has 64 partitions, in all regions.\n"), done.stderr
    assert braid("topic", "create", "orders", "--partitions", "64", *at).returncode == 0
    refused = braid("topic", "create", "orders", "--partitions", "8", *at)
    assert (refused.returncode, "exists with 64 partitions" in refused.stderr) == (1, True)
    for words in (("orders", "--partitions", "0"), ("a{b}", "--partitions", "1"), ("orders",)):
        assert braid("topic", "create", *words, *at).returncode == 2
    placed = region.topic("orders").add({"n": 1}, key="a")
    [listed] = json.loads(braid("topic", "list", *at, "--json").stdout)["topics"]
    assert (listed["topic"], listed["partitions"]) == ("orders", 64)
    shown = json.loads(braid("topic", "info", "orders", *at, "--json").stdout)["partitions"]
    assert [each["partition"] for each in shown] == [*range(64)]
    assert [each["partition"] for each in shown if each["entries"]] == [placed.partition]
    assert shown[63]["stream"] == "orders/0.63{228}"
    assert "orders/0.63{228}" in braid("topic", "info", "orders", *at).stdout
    assert braid("topic", "list", *at).stdout.split() == ["topic", "partitions", "orders", "64"]
    assert "there is no topic payments" in braid("topic", "info", "payments", *at).stderr

"""`braid topic`: topics are created and shown."""

import json
import threading

import braidstream
from tests.support.cli import braid
from tests.support.servers import Engine
from tests.support.waiting import eventually


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


def test_members_and_lag_of_groups_are_shown(engine: Engine, region: braidstream.Redis) -> None:
    at, orders, go_on = ("--url", engine.url), region.topic("orders"), threading.Event()
    orders.create(4)
    orders.add_many([(f"k{number}", {"n": number}) for number in range(20)])
    assert braid("topic", "members", "orders", *at).stdout == "Topic orders has no groups.\n"
    worker = braidstream.Consumer(region, topic="orders", group="billing", name="ann", concurrency=1)

    @worker.handler
    def wait(message: braidstream.Message) -> None:
        go_on.wait(40)

    running = threading.Thread(target=worker.run)
    running.start()
    try:

        def seen() -> dict[str, object]:
            [group] = json.loads(braid("topic", "members", "orders", *at, "--json").stdout)["groups"]
            return group  # type: ignore[no-any-return]

        eventually(lambda: region.xinfo_groups(orders.stream("k0")), within_s=40, why="it joins")
        eventually(lambda: seen()["pending"], within_s=40, why="it has taken some")
        [member], lag = seen()["members"], seen()["lag"]  # type: ignore[misc]
        assert member == {"name": "ann", "partitions": [0, 1, 2, 3], "lag": lag}
        assert lag == 20 - seen()["pending"]  # type: ignore[operator]
        table = braid("topic", "members", "orders", *at).stdout.splitlines()
        assert table[1].split()[:3] == ["billing", "ann", "0-3"]
        assert braid("topic", "info", "orders", *at).stdout.splitlines()[-1].split()[0::3] == ["billing", "1"]
        none = braid("topic", "members", "orders", "--group", "other", *at)
        assert none.stdout == "Topic orders has no such group.\n"
    finally:
        go_on.set()
        worker.stop()
        running.join()
    assert "billing  nobody    0-3" in braid("topic", "members", "orders", *at).stdout

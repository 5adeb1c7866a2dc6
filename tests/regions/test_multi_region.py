"""A client that changes region by itself: what it sends again, where it goes, and what it reads.

The same cases for the blocking client, for asyncio, and with a cluster as the preferred region.
"""

import asyncio
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

import braidstream
from braidstream.clients.shared_multi_region import FRESH_S
from tests.support.multi_region import Kind, Lab, on
from tests.support.reader import ROOT
from tests.support.regions import become
from tests.support.replicas import SentinelGroup
from tests.support.servers import NEWEST, Engine, Flavour
from tests.support.waiting import eventually

KINDS = [("sync", False), ("asyncio", False), ("sync", True)]
IDS = ["sync", "asyncio", "cluster"]
# Restarts and waits: one kind of client in CI, all every night.
SLOWLY = [KINDS[0], *(pytest.param(each, marks=pytest.mark.nightly("In CI: sync")) for each in KINDS[1:])]
slowly = pytest.mark.parametrize("case", SLOWLY, indirect=True, ids=IDS)


@pytest.fixture(scope="module", params=NEWEST)
def labs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    flavour: Flavour = request.param
    with ExitStack() as stack:
        made = dict[bool, Lab]()

        def lab(is_cluster: bool) -> Lab:
            if is_cluster not in made:
                folder = tmp_path_factory.mktemp("cluster" if is_cluster else "server")
                made[is_cluster] = stack.enter_context(Lab(folder, flavour, is_cluster=is_cluster))
            return made[is_cluster]

        yield lab


@pytest.fixture(params=KINDS, ids=IDS)
def case(request: pytest.FixtureRequest, labs: Any) -> Iterator["Case"]:
    kind, is_cluster = request.param
    lab = labs(is_cluster)
    with ExitStack() as stack:
        case = Case(lab, kind, stack, request.node.name)
        yield case
    lab.bring_back()


class Case:
    def __init__(self, lab: Lab, kind: Kind, stack: ExitStack, name: str) -> None:
        self.lab, self.kind, self._stack = lab, kind, stack
        self.stream = name

    def open(self, *regions: Any, **options: Any) -> Any:
        return self.lab.open(self.kind, self._stack, *regions, **options)

    def bodies(self) -> list[str]:
        [entries] = self.lab.settle(self.stream)
        return [fields["n"] for _, fields in entries]


def test_it_leaves_a_killed_region_and_adds_each_message_once(case: Case) -> None:
    client = case.open()
    client.xadd(case.stream, {"n": 0})
    assert client.region == "region-1"
    case.lab.one.kill()
    began = time.monotonic()
    client.xadd(case.stream, {"n": 1})
    assert time.monotonic() - began < 5
    assert client.region == "region-2"
    case.lab.bring_back()
    assert sorted(case.bodies()) == ["0", "1"]


def test_a_frozen_region_is_left_after_the_timeout(case: Case) -> None:
    client = case.open(timeout=0.5)
    client.xadd(case.stream, {"n": 0})
    with case.lab.one.paused():
        client.xadd(case.stream, {"n": 1})
        assert client.region == "region-2"
    case.lab.bring_back()
    assert sorted(case.bodies()) == ["0", "1"]


def lose_replies(case: Case) -> None:
    """Region 1 applies the next appends; then nobody reaches it."""
    case.lab.proxy.lose_replies(case.stream.encode(), times=1)
    case.lab.proxy.shut()


@pytest.fixture
def through_proxy(case: Case) -> Iterator[Case]:
    if case.lab.is_cluster:
        pytest.skip("a cluster's clients know its nodes, and pass the proxy by")
    yield case
    case.lab.proxy.lose_replies(b"", times=0)
    case.lab.proxy.shut()
    case.lab.proxy.open()


def test_a_message_whose_reply_is_lost_is_one_entry(through_proxy: Case) -> None:
    case = through_proxy
    client = case.open()
    client.xadd(case.stream, {"n": 0})
    lose_replies(case)
    client.xadd(case.stream, {"n": 1})
    assert client.region == "region-2"
    assert sorted(case.bodies()) == ["0", "1"]


def test_messages_of_a_pipeline_and_of_a_multi_are_once_there(through_proxy: Case) -> None:
    case = through_proxy
    client = case.open()
    client.xadd(case.stream, {"n": 0})
    for start, transaction in ((1, False), (11, True)):
        client.prefer("region-1") if client.region != "region-1" else None
        lose_replies(case)
        pipe = client.pipeline(transaction=transaction)
        for number in range(start, start + 10):
            pipe.xadd(case.stream, {"n": number})
        assert len(pipe.execute()) == 10
        assert client.region == "region-2"
        case.lab.proxy.open()
    assert sorted(map(int, case.bodies())) == list(range(21))


def test_a_plain_write_whose_reply_is_lost_is_not_sent_again(through_proxy: Case) -> None:
    case = through_proxy
    client = case.open(idempotent=False)
    client.xadd(case.stream, {"n": 0})
    lose_replies(case)
    with pytest.raises(redis.ConnectionError, match="may or may not") as caught:
        client.xadd(case.stream, {"n": 1})
    assert caught.value.is_unknown  # type: ignore[attr-defined]
    client.xadd(case.stream, {"n": 2})
    assert client.region == "region-2"
    assert sorted(case.bodies()) == ["0", "1", "2"]


def test_a_plain_key_is_never_sent_to_a_second_region(case: Case) -> None:
    client = case.open()
    client.xadd(case.stream, {"n": 0})
    assert client.incr("counter") >= 1
    case.lab.one.kill()
    for call in (lambda: client.incr("counter"), lambda: client.get("counter")):
        if client.region == "region-1":
            with pytest.raises((redis.ConnectionError, redis.RedisClusterException)):
                call()
    assert case.lab.plain[1].exists("counter") == 0
    assert client.xlen(case.stream) >= 0
    assert client.region == "region-2"


@slowly
def test_a_plain_command_in_a_pipeline_keeps_the_whole_of_it_in_one_region(case: Case) -> None:
    client = case.open()
    client.xadd(case.stream, {"n": 0})
    case.lab.one.kill()
    pipe = client.pipeline(transaction=False)
    pipe.xadd(case.stream, {"n": 1})
    pipe.set("note", 1)
    with pytest.raises(redis.ConnectionError):
        pipe.execute()
    case.lab.bring_back()
    assert case.bodies() == ["0"]
    assert case.lab.plain[1].exists("note") == 0


def test_a_watched_pipeline_stays_in_its_region(case: Case) -> None:
    client = case.open()
    client.xadd(case.stream, {"n": 0})
    case.lab.settle(case.stream)  # what the daemons write into its registry is over
    with client.pipeline() as pipe:
        pipe.watch(case.stream)
        assert pipe.xlen(case.stream) == 1
        pipe.multi()
        pipe.xadd(case.stream, {"n": 1})
        assert len(pipe.execute()) == 1
        pipe.watch(case.stream)
        case.lab.plain[0].xadd(case.stream, {"n": 2})
        pipe.multi()
        pipe.xadd(case.stream, {"n": 3})
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert case.bodies() == ["0", "1", "2"]


@slowly
def test_it_goes_back_when_the_region_is_back_and_has_all_entries(case: Case) -> None:
    changes = list[tuple[str, str]]()
    client = case.open(failback_after=0.5, on_change=lambda old, new, why: changes.append((old, new)))
    client.xadd(case.stream, {"n": 0})
    case.lab.one.kill()
    client.xadd(case.stream, {"n": 1})
    assert client.region == "region-2"
    with case.lab.apart(2):  # nobody says that region 1 has all entries
        case.lab.bring_back()
        time.sleep(FRESH_S + 1)
        assert client.region == "region-2"
    on(client)("region-1")
    assert sorted(fields["n"] for _, fields in client.xrange(case.stream)) == ["0", "1"]
    assert changes == [("region-1", "region-2"), ("region-2", "region-1")]


@pytest.mark.parametrize("case", KINDS[:2], indirect=True, ids=["sync", "asyncio"])
def test_a_client_that_may_not_see_whether_its_region_is_back_says_so(case: Case) -> None:
    for engine in (case.lab.one, case.lab.two):
        with engine.client() as bare:
            keys = ("~[^b]*", "~b[^s]*", "~bs:[^s]*")  # all but bs:status
            bare.execute_command("ACL", "SETUSER", "poor", "on", ">secret", "+@all", "&*", "resetkeys", *keys)
    client = case.open(failback_after=0.5, username="poor", password="secret")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.xadd(case.stream, {"n": 0})
        with case.lab.one.paused():
            client.xadd(case.stream, {"n": 1})
        eventually(lambda: len(caught) > 0, within_s=30, why="it should say what it lacks")
        assert client.region == "region-2"
    [text] = [str(each.message) for each in caught]
    assert "stays in region-2: " in text
    assert "%R~bs:status" in text


def test_a_closed_client_leaves_no_task_behind(labs: Any) -> None:
    lab: Lab = labs(False)

    async def tasks_after_a_change() -> int:
        client = braidstream.asyncio.MultiRegion(lab.urls, decode_responses=True)
        await client.xadd("closed", {"n": 1})
        assert client.region == "region-2"
        assert len(asyncio.all_tasks()) == 2  # one looks whether region 1 is back
        await client.aclose()
        return len(asyncio.all_tasks())

    lab.one.kill()
    assert asyncio.run(tasks_after_a_change()) == 1
    lab.bring_back()


def test_a_fenced_region_is_not_chosen(case: Case) -> None:
    if case.lab.is_cluster:
        pytest.skip("tests/regions/test_cluster_rejoin.py has the fence of a cluster")
    client = case.open()
    client.xadd(case.stream, {"n": 0})
    with case.lab.one.client() as operator:
        operator.hset("bs:config", "fenced", "1")
        try:
            eventually(
                lambda: client.xadd(case.stream, {"n": 1}) and client.region == "region-2",
                within_s=10,
                why="the client should leave the fenced region",
            )
            with pytest.raises(redis.ConnectionError, match="does not answer"):
                client.prefer("region-1")
        finally:
            operator.hdel("bs:config", "fenced")
    assert client.prefer("region-1") is None
    assert client.region == "region-1"


@slowly
def test_a_read_after_a_change_warns_exactly_if_entries_are_missing(case: Case) -> None:
    client = case.open()
    other = f"{case.stream}-whole"
    client.xadd(case.stream, {"n": 0})
    client.xadd(other, {"n": 0})
    case.lab.settle(case.stream, other)
    with case.lab.apart():
        last = client.xadd(case.stream, {"n": 1})
        assert len(client.xrange(case.stream)) == 2
        case.lab.one.kill()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(client.xrange(other)) == 1
            assert caught == []
            assert len(client.xrange(case.stream)) == 1
            assert len(client.xread({case.stream: "0"})) == 1
        assert [each.category for each in caught] == [braidstream.BehindWarning]
        assert f"up to {last} of region 1" in str(caught[0].message)
        assert client.behind(case.stream) == {1: last}
        case.lab.bring_back()
    case.lab.settle(case.stream)
    assert client.behind(case.stream) == {}


def test_a_read_can_refuse_to_go_backward_or_wait(case: Case) -> None:
    client = case.open(behind="raise")
    waiting = case.open(behind="wait")
    for number, each in enumerate((client, waiting)):
        each.xadd(case.stream, {"n": number})
    case.lab.settle(case.stream)
    with case.lab.apart():
        for number, each in enumerate((client, waiting), start=2):
            each.xadd(case.stream, {"n": number})
        for each in (client, waiting):
            each.prefer("region-2")
        for _ in range(2):
            with pytest.raises(braidstream.BehindWarning):
                client.xrange(case.stream)
        found = list[int]()
        reader = threading.Thread(target=lambda: found.append(len(waiting.xrange(case.stream))), daemon=True)
        reader.start()
    reader.join(30)
    assert found == [4]
    assert len(client.xrange(case.stream)) == 4


def test_the_file_names_the_regions_and_the_user_prefers_one(case: Case) -> None:
    client = case.open(str(case.lab.config), prefer="region-2")
    client.xadd(case.stream, {"n": 0})
    assert client.region == "region-2"
    with pytest.raises(ValueError, match="no region 'nowhere' among region-1, region-2"):
        case.open(str(case.lab.config), prefer="nowhere")
    with pytest.raises(braidstream.BraidError, match="cannot be read"):
        case.open("no-such-file.toml")
    assert case.bodies() == ["0"]


@pytest.mark.parametrize("case", KINDS[:2], indirect=True, ids=["sync", "asyncio"])
def test_the_login_of_the_caller_replaces_that_of_the_file_and_of_urls(case: Case, tmp_path: Path) -> None:
    for engine in (case.lab.one, case.lab.two):
        with engine.client() as bare:
            bare.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "+@all", "~*", "&*")
    file = tmp_path / "braid.toml"
    file.write_text(case.lab.config.read_text().replace("redis://", "redis://nobody:wrong@"))
    urls = [url.replace("redis://", "redis://nobody:wrong@") for url in case.lab.urls]
    for regions in (str(file), urls):
        client = case.open(regions, username="shop", password="secret")
        client.xadd(case.stream, {"n": 0})
        for name in ("region-1", "region-2"):
            client.prefer(name)
            assert client.acl_whoami() == "shop"
    with pytest.raises(redis.AuthenticationError):
        case.open(urls, within=0.1).xadd(case.stream, {"n": 0})


def test_a_message_with_an_id_of_the_users_own_is_one_entry(case: Case) -> None:
    client = case.open()
    first = client.xadd(case.stream, {"n": 1}, idmp=("p", b"1"))
    case.lab.settle(case.stream)
    client.prefer("region-2")
    client.xadd(case.stream, {"n": 1}, idmp=("p", b"1"))
    assert case.bodies() == ["1"]
    assert client.xadd(case.stream, {"n": 1}, idmp=("p", b"1")) == first


def test_a_stream_with_a_short_duration_is_made_to_remember_longer(case: Case) -> None:
    case.lab.plain[0].xadd(case.stream, {"n": 0})
    case.lab.plain[0].xcfgset(case.stream, idmp_duration=5)
    client = case.open()
    client.xadd(case.stream, {"n": 1})
    assert case.lab.plain[0].xinfo_stream(case.stream)["idmp-duration"] == 86_400


@slowly
def test_no_region_answers_is_an_error_in_time(case: Case) -> None:
    client = case.open(within=1.0)
    client.xadd(case.stream, {"n": 0})
    case.lab.one.kill()
    with case.lab.two.paused():
        began = time.monotonic()
        with pytest.raises(redis.ConnectionError):
            client.xadd(case.stream, {"n": 1})
        assert time.monotonic() - began < 15


@slowly
def test_threads_that_write_while_a_region_dies_lose_nothing(case: Case) -> None:
    client = case.open(failback_after=0.5)
    given, unknown, stop = dict[str, str](), list[str](), threading.Event()

    def write(me: int) -> None:
        for number in range(10**6):
            if stop.is_set():
                return
            name = f"{me}-{number}"
            try:
                given[name] = client.xadd(case.stream, {"n": name})
            except redis.RedisError:
                unknown.append(name)
            time.sleep(0.005)

    threads = [threading.Thread(target=write, args=(me,), daemon=True) for me in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(given) > 50, within_s=30, why="some messages should be there")
    case.lab.one.kill()
    before = len(given)
    eventually(lambda: len(given) > before + 100, within_s=30, why="writes should go on in region 2")
    case.lab.bring_back()
    on(client)("region-1")
    stop.set()
    for thread in threads:
        thread.join()
    found = Counter(case.bodies())
    assert [name for name, times in found.items() if times > 1] == []
    assert given.keys() - found.keys() == set()
    assert unknown == []


@pytest.mark.parametrize("case", KINDS[:1], indirect=True, ids=["sync"])
def test_the_guides_recipe_for_redis_pys_own_client_adds_a_message_once(through_proxy: Case) -> None:
    pytest.importorskip("pybreaker", reason="redis-py's MultiDBClient needs pybreaker, which is not here")
    from redis.multidb.config import DatabaseConfig, MultiDbConfig

    case = through_proxy
    page = (ROOT / "docs/guides/when-a-region-dies.md").read_text(encoding="utf-8")
    names = dict[str, Any]()
    exec(page[page.index("from redis.multidb.client") :].split("```")[0], names)
    options = {"socket_timeout": 1, "decode_responses": True, "idempotent": True}
    databases = [
        DatabaseConfig(from_url=url, weight=weight, client_kwargs=options)
        for url, weight in zip(case.lab.urls, (1.0, 0.5), strict=True)
    ]
    config = MultiDbConfig(
        client_class=braidstream.Redis,
        databases_config=databases,
        command_retry=Retry(ConstantBackoff(0.3), 20),
        health_check_interval=0.5,
        health_check_probes=1,
        min_num_failures=2,
        auto_fallback_interval=-1,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is experimental
        client = names["MarkedClient"](config)
        client.xadd(case.stream, {"n": 0})
        lose_replies(case)
        client.xadd(case.stream, {"n": 1})
        client.close()
    assert sorted(case.bodies()) == ["0", "1"]


@pytest.mark.parametrize("flavour", NEWEST[-1:], indirect=True)
def test_a_sentinel_group_is_a_region_too(flavour: Flavour) -> None:
    with SentinelGroup(flavour, replicas=1) as group, Engine(flavour) as two:
        become(group.primary, region=1, name="region-1")
        become(two, region=2, name="region-2")
        with braidstream.MultiRegion([group.url, two.url]) as client:
            client.xadd("s", {"n": 0})
            assert client.region == "region-1"
            group.primary.kill()
            client.xadd("s", {"n": 1})
            assert client.region == "region-2"

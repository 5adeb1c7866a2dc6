"""The engine functions: loaded once, upgraded under load, never downgraded; and commands that use them."""

import asyncio
import re
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import redis

import braidstream
import braidstream.asyncio
from braidstream import lua as functions
from braidstream.commands import rename
from braidstream.model.strand import Strand
from braidstream.operations.membership import initialise
from braidstream.plan.lookup import read_region
from braidstream.plan.plan import Batch, Plan
from braidstream.plan.view import View
from tests.support.matrix import on_every_engine
from tests.support.observed import observed
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.every_engine

flavour = on_every_engine

NEWER = functions.VERSION + 1
FAR = 99_999_999_999_999


def installed(engine: Engine) -> int:
    with client_of(engine) as client:
        return client.run_plan(functions.installed())


def interrupted(plan: Plan[Any], before: Callable[[int, Batch], None]) -> Plan[Any]:
    """The same plan; `before` runs ahead of each of its batches, with the batch's number."""
    numbers = count()
    return observed(plan, lambda batch: before(next(numbers), batch))


# Loading.


def test_loading_again_changes_nothing(region: braidstream.Redis, engine: Engine) -> None:
    with engine.client() as operator:
        before = operator.execute_command("FUNCTION", "DUMP"), operator.hgetall("bs:config")
        operator.config_resetstat()
        assert region.run_plan(functions.load()) == functions.VERSION
        assert (operator.execute_command("FUNCTION", "DUMP"), operator.hgetall("bs:config")) == before
        assert "cmdstat_function|load" not in operator.info("commandstats")


def test_a_second_database_becomes_a_region_of_the_same_server(
    region: braidstream.Redis, engine: Engine
) -> None:
    """Functions are the server's, so they are there already; the database is a region all the same."""
    with braidstream.Redis.from_url(engine.url.replace("/0", "/1"), decode_responses=True) as second:
        second.run_plan(initialise(2, "eu-west"))
        assert second.run_plan(functions.load()) == functions.VERSION
        assert second.xrange("x") == []
        assert second.xadd("x", {"n": "1"}) == second.xrange("x")[0][0]


def test_a_region_whose_settings_were_lost_is_initialized_only_on_purpose(
    region: braidstream.Redis, engine: Engine
) -> None:
    region.xadd("x", {"n": "1"})
    with engine.client() as operator:
        operator.delete("bs:config")
        typed = re.escape("redis-cli HSET bs:config identity '' library 1")
        with pytest.raises(braidstream.BraidError, match=f"this server lost data.*region rejoin.*{typed}"):
            become(engine)
        operator.hset("bs:config", mapping={"identity": "", "library": "1"})
    become(engine)
    with client_of(engine) as client:
        assert client.xlen("x") == 1


def test_a_newer_library_replaces_an_older_one(region: braidstream.Redis, engine: Engine) -> None:
    assert region.run_plan(functions.load(version=NEWER)) == functions.VERSION
    assert installed(engine) == NEWER
    assert region.xadd("x", {"n": "1"}) == region.xrange("x")[0][0]


def test_an_older_client_is_refused_and_told_to_upgrade(region: braidstream.Redis, engine: Engine) -> None:
    region.run_plan(functions.load(version=NEWER))
    with pytest.raises(braidstream.LibraryError, match=rf"has version {NEWER} .*pip install -U braidstream"):
        region.run_plan(functions.load())
    assert installed(engine) == NEWER
    # The connection is clean after the refusal: nothing stays WATCHed.
    assert region.pipeline().hset("bs:config", "library", NEWER).xlen("x").execute() == [0, 0]


@pytest.mark.parametrize("version", [functions.VERSION, 9_999])
def test_functions_that_somebody_changed_are_noticed_and_replaced(
    region: braidstream.Redis, engine: Engine, version: int
) -> None:
    assert region.run_plan(functions.read_changed()) == ""
    with engine.client() as mallory:
        mallory.execute_command("FUNCTION", "LOAD", "REPLACE", functions.source(version) + "\n-- mine")
    why = "somebody has changed them" if version == functions.VERSION else "they claim version 9999"
    assert why in region.run_plan(functions.read_changed())
    assert region.run_plan(functions.load(force=True)) == version
    assert region.run_plan(functions.read_changed()) == ""
    assert installed(engine) == functions.VERSION


def test_a_library_that_does_not_compile_leaves_the_old_one(
    region: braidstream.Redis, engine: Engine
) -> None:
    region.xadd("x", {"n": "1"})
    with pytest.raises(redis.ResponseError, match="compil|syntax|near"):
        region.run_plan(functions.load(f"#!lua name={functions.NAME}\nthis is not Lua", version=NEWER))
    assert installed(engine) == functions.VERSION
    assert region.delete("x") == 1


def test_a_loader_overtaken_by_a_newer_one_does_not_undo_it(engine: Engine) -> None:
    become(engine)
    batches = 0

    def counted(number: int, batch: Batch) -> None:
        nonlocal batches
        batches = number + 1

    with client_of(engine) as older, client_of(engine) as newer:
        older.run_plan(interrupted(functions.load(version=NEWER), counted))
        for moment in range(batches):
            version = NEWER + 2 * moment + 1

            def overtake(number: int, batch: Batch, moment: int = moment, version: int = version) -> None:
                if number == moment:
                    newer.run_plan(functions.load(version=version + 1))

            with pytest.raises(braidstream.LibraryError, match=f"has version {version + 1}"):
                older.run_plan(interrupted(functions.load(version=version), overtake))
            assert installed(engine) == version + 1


def test_many_loaders_at_once_end_with_the_newest(engine: Engine) -> None:
    become(engine)
    failures, start = list[BaseException](), threading.Barrier(6)

    def load(version: int) -> None:
        with client_of(engine) as client:
            start.wait()
            try:
                client.run_plan(functions.load(version=version))
            except braidstream.LibraryError:
                pass  # a newer one was faster
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=load, args=(NEWER + number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert installed(engine) == NEWER + 5


def test_an_upgrade_under_load_disturbs_nobody(liberal: braidstream.Redis, engine: Engine) -> None:
    added, failures, done = list[str](), list[BaseException](), threading.Event()

    def write(writer: int) -> None:
        with client_of(engine, decode_responses=True) as client:
            number = 0
            while not done.is_set():
                number += 1
                try:
                    # Births, plain appends, chosen IDs and deletes: everything the functions serve.
                    client.xadd(f"born {writer} {number}", {"n": "1"})
                    added.append(client.xadd("x", {"n": "1"}))
                    client.xadd(f"chosen {writer}", {"n": "1"}, id=f"{FAR}-{number}")
                    client.delete(f"born {writer} {number}")
                except Exception as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    try:
        for version in range(NEWER, NEWER + 30):
            liberal.run_plan(functions.load(version=version))
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert installed(engine) == NEWER + 29
    assert sorted(added) == sorted(entry for entry, _ in liberal.xrange("x"))
    assert [liberal.xlen(f"chosen {writer}") > 0 for writer in range(3)] == [True] * 3


# An engine that is not ready.

USES: dict[str, Callable[[Any], Any]] = {
    "XADD": lambda client: client.xadd("x", {"n": "1"}),
    "XADD in a pipeline": lambda client: client.pipeline(transaction=False).xadd("x", {"n": "1"}).execute(),
    "XADD in MULTI": lambda client: client.pipeline().xadd("x", {"n": "1"}).execute(),
}


def _used(client_kind: str, engine: Engine, use: str) -> Any:
    async def story() -> Any:
        async with braidstream.asyncio.Redis.from_url(engine.url) as client:
            return await USES[use](client)

    if client_kind == "asyncio":
        return asyncio.run(story())
    with client_of(engine) as client:
        return USES[use](client)


@pytest.mark.parametrize("client_kind", ["sync", "asyncio"])
@pytest.mark.parametrize("use", USES)
def test_an_engine_without_the_functions_tells_how_to_load_them(
    engine: Engine, client_kind: str, use: str
) -> None:
    become(engine)
    with engine.client() as operator:
        operator.execute_command("FUNCTION", "FLUSH", "SYNC")
    with pytest.raises(braidstream.LibraryError, match="braid init --url URL --region N --name NAME"):
        _used(client_kind, engine, use)


@pytest.mark.parametrize("client_kind", ["sync", "asyncio"])
@pytest.mark.parametrize("use", USES)
def test_a_database_that_is_no_region_tells_how_to_make_it_one(
    engine: Engine, client_kind: str, use: str
) -> None:
    with pytest.raises(braidstream.NotARegionError, match="braid init --url URL --region N --name NAME"):
        _used(client_kind, engine, use)
    with engine.client() as operator:
        assert operator.dbsize() == 0


def test_a_database_that_is_no_region_serves_plain_keys_as_ever(engine: Engine) -> None:
    with client_of(engine, decode_responses=True) as client:
        assert client.set("plain", "1")
        assert client.pipeline().incr("plain").get("plain").execute() == [2, "2"]


def test_functions_and_streams_survive_a_restart_from_the_append_only_file(flavour: Flavour) -> None:
    with Engine(flavour, args=["--appendonly", "yes", "--appendfsync", "always"]) as engine:
        become(engine, id_mode="liberal")
        with client_of(engine, decode_responses=True) as client:
            client.xadd("x", {"n": "1"})
            client.xadd("x", {"n": "2"}, id=f"{FAR}-5")
            client.rename("x", "y")
            client.xadd("x", {"n": "3"})
            before = client.xrange("x"), client.xrange("y"), client.xinfo_stream("y")
        engine.kill()
        engine.restart()
        with client_of(engine, decode_responses=True) as client:
            assert (client.xrange("x"), client.xrange("y"), client.xinfo_stream("y")) == before
            assert client.xadd("y", {"n": "4"}) == f"{FAR}-1025"
            assert client.delete("x", "y") == 2


# RENAME and COPY: many round trips, one step.


def _fill(client: braidstream.Redis, entries: int) -> list[tuple[str, dict[str, str]]]:
    """A stream `x` of three strands: generated and chosen here, generated by region 2."""
    far, last = Strand(b"x", "s", 2), (0, 0)
    for first in range(1, entries + 1, 300):
        pipe = client.pipeline(transaction=False)
        for n in range(first, first + 100):
            pipe.xadd("x", {"n": str(n)}, id=f"{n}-7")
        pipe.execute()
        natives = [((n, 0), [b"n", b"%d" % n]) for n in range(first + 100, first + 200)]
        client.run_plan(apply(far, natives, after=last))
        last = natives[-1][0]
        pipe = client.pipeline(transaction=False)
        for n in range(first + 200, first + 300):
            pipe.xadd("x", {"n": str(n)}, id=f"{n}")
        pipe.execute()
    found = client.xrange("x")
    assert [int(fields["n"]) for _, fields in found] == list(range(1, entries + 1))
    return found


def test_three_thousand_entries_are_renamed_and_copied_with_their_ids(liberal: braidstream.Redis) -> None:
    before, about = _fill(liberal, 3000), liberal.xinfo_stream("x")
    assert liberal.copy("x", "copy") == 1
    assert liberal.rename("x", "moved") is True
    assert (liberal.exists("x"), liberal.xrange("x")) == (0, [])
    counted = {"length", "last-generated-id", "entries-added", "first-entry", "last-entry"}
    for name in ("copy", "moved"):
        assert liberal.xrange(name) == before
        seen = liberal.xinfo_stream(name)
        assert {fact: seen[fact] for fact in counted} == {fact: about[fact] for fact in counted}
    liberal.xadd("copy", {"n": "3001"})
    assert (liberal.xlen("copy"), liberal.xlen("moved")) == (3001, 3000)
    with pytest.raises(redis.ResponseError, match="no such key"):
        liberal.rename("x", "elsewhere")


def test_renaming_and_copying_keep_the_rules_of_the_engine(liberal: braidstream.Redis) -> None:
    liberal.xadd("x", {"n": "1"}, id="1-1")
    liberal.xadd("taken", {"n": "2"}, id="9-9")
    liberal.set("plain", "1")
    assert [liberal.renamenx("x", other) for other in ("taken", "plain")] == [False, False]
    assert [liberal.copy("x", other) for other in ("taken", "plain")] == [0, 0]
    assert liberal.rename("x", "x") is True
    assert liberal.copy("x", "taken", replace=True) == 1
    assert liberal.xrange("taken") == [("1-1", {"n": "1"})]
    assert liberal.rename("taken", "plain") is True
    assert (liberal.type("plain"), liberal.exists("taken")) == ("stream", 0)
    liberal.set("another", "value")
    assert liberal.rename("another", "plain") is True
    assert (liberal.get("plain"), liberal.type("plain"), liberal.xlen("x")) == ("value", "string", 1)
    with pytest.raises(redis.ResponseError, match="COPY refused by braidstream: another database"):
        liberal.copy("x", "y", destination_db=1)


@pytest.mark.parametrize("strands", ["one strand", "two strands"])
@pytest.mark.parametrize("command", ["RENAME", "COPY"])
def test_an_entry_added_at_any_moment_of_a_rename_or_copy_is_never_lost(
    liberal: braidstream.Redis, engine: Engine, command: str, strands: str
) -> None:
    build = {"RENAME": rename.rename, "COPY": rename.copy}[command]
    moment, late = 0, True
    with client_of(engine, decode_responses=True) as other:
        region = other.run_plan(read_region())
        while late:
            source, target, late = f"source {moment}", f"target {moment}", False
            other.xadd(source, {"n": "generated"})
            if strands == "two strands":
                other.xadd(source, {"n": "chosen"}, id=f"{FAR}-1")
            kept = [fields["n"] for _, fields in other.xrange(source)]

            def add(number: int, batch: Batch, moment: int = moment, source: str = source) -> None:
                nonlocal late
                if number == moment:
                    other.xadd(source, {"n": "late"})
                    late = True

            argv = [command.encode(), source.encode(), target.encode()]
            liberal.run_plan(interrupted(build(View(region), argv), add))
            here, there = ([fields["n"] for _, fields in other.xrange(name)] for name in (source, target))
            where = f"added before batch {moment}: {source} {here}, {target} {there}"
            assert there[: len(kept)] == kept, where
            assert not late or "late" in here + there, where
            if command == "COPY":
                assert here == kept + ["late"] * late, where
            moment += 1
    assert moment > 5
    with engine.client() as operator:
        assert operator.keys("bs:copy:*") == []


def _renamed(client: braidstream.Redis, to: str) -> bool:
    """On a busy machine the writer may come first every time. The error says what to do: try again."""
    try:
        client.rename("x", to)
    except redis.ResponseError as error:
        assert "try again" in str(error)  # noqa: PT017
        return False
    return True


def test_renaming_goes_through_under_a_modest_load(liberal: braidstream.Redis, engine: Engine) -> None:
    """Each round renames what is there; whatever was added stands in exactly one of the streams."""
    added, done = list[str](), threading.Event()

    def write() -> None:
        with client_of(engine, decode_responses=True) as client:
            while not done.wait(0.01):
                added.append(client.xadd("x", {"n": "1"}))

    thread = threading.Thread(target=write)
    thread.start()
    names = [f"y{number}" for number in range(10)]
    try:
        for name in names:
            liberal.xadd("x", {"n": "0"})
            eventually(lambda name=name: _renamed(liberal, name), within_s=20, why="a pause should be found")
    finally:
        done.set()
        thread.join()
    found = [entry for name in ["x", *names] for entry, fields in liberal.xrange(name) if fields["n"] == "1"]
    assert sorted(found) == sorted(added)


def test_numbers_that_no_region_can_have_are_not_met(engine: Engine) -> None:
    become(engine)
    with engine.client(decode_responses=True) as operator:
        for words in (("meet", 2, "100000000000000", "-5", "0", "1024", "x"), ("part", "2000")):
            operator.fcall("bs_region_writers", 1, "bs:config", *words)
        assert operator.hmget("bs:config", "writers", "left") == ["1 2", ""]


def test_the_library_has_room_for_more_local_variables(engine: Engine) -> None:
    """Lua allows 200 at the top level, of all files together. If this fails, put helpers into tables."""
    more = "\n".join(f"local spare_{number} = nil" for number in range(10))
    with engine.client() as operator:
        assert operator.function_load(f"{functions.source()}\n{more}", replace=True) == b"braidstream"
        operator.function_load(functions.source(), replace=True)

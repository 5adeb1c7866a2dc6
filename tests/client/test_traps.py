"""Engine behaviours that would break one region. Each test fails without its guard in the code."""

from collections.abc import Callable

import pytest
import redis

import braidstream
from braidstream.model import keys
from braidstream.model.ids import text
from braidstream.model.strand import Strand
from braidstream.plan.plan import Plan
from tests.support.cluster import Cluster, become_cluster
from tests.support.regions import apply, apply_even, become, client_of, position
from tests.support.servers import Engine, Flavour

FAR = 99_999_999_999_999  # a millisecond that the clock of no test reaches
MAX = 2**64 - 1
PEER = Strand(b"x", "s", 2)  # our copy of a strand that another region writes


# Repeated IDs: a key that is deleted forgets its last ID, and the engine generates it again.


def test_adding_deleting_and_adding_in_one_millisecond_never_repeats_an_id(region: braidstream.Redis) -> None:
    generated = list[str]()
    for _ in range(200):
        first, _, second = (
            region.pipeline(transaction=False)
            .xadd("x", {"n": "1"})
            .delete("x")
            .xadd("x", {"n": "2"})
            .execute()
        )
        generated += [first, second]
        region.delete("x")
    assert generated == sorted(set(generated), key=position)


def _rename_onto(client: braidstream.Redis) -> None:
    client.xadd("y", {"n": "0"})
    client.rename("y", "x")


def _copy_onto(client: braidstream.Redis) -> None:
    client.xadd("y", {"n": "0"})
    client.copy("y", "x", replace=True)


def _a_plain_key_onto(client: braidstream.Redis) -> None:
    client.set("plain", "value")
    client.rename("plain", "x")
    client.delete("x")


FORGETTING: dict[str, Callable[[braidstream.Redis], object]] = {
    "DEL": lambda client: client.delete("x"),
    "UNLINK": lambda client: client.unlink("x"),
    "RENAME away": lambda client: client.rename("x", "y"),
    "RENAME onto": _rename_onto,
    "RENAME of a plain key onto": _a_plain_key_onto,
    "COPY onto": _copy_onto,
    "XTRIM to nothing": lambda client: client.xtrim("x", maxlen=0, approximate=False),
    "XDEL of the last": lambda client: client.xdel("x", f"{FAR}-1"),
    "FLUSHDB": lambda client: client.flushdb(),
    "FLUSHALL": lambda client: client.flushall(),
}


@pytest.mark.parametrize("way", FORGETTING)
def test_the_next_id_sorts_after_all_before_whatever_emptied_the_stream(
    region: braidstream.Redis, way: str
) -> None:
    # An ID ahead of the clock: if it were forgotten, `*` would fall back to the present.
    before = region.xadd("x", {"n": "1"}, id=str(FAR))
    FORGETTING[way](region)
    again, after = region.xadd("x", {"n": "2"}, id=str(FAR)), region.xadd("x", {"n": "3"})
    assert [before, again, after] == [f"{FAR}-1", f"{FAR}-{1024 + 1}", f"{FAR}-{2 * 1024 + 1}"]


# Gaps: an entry that is refused while a later one is taken is shut out of the copy for ever.


def entries(first: int, last: int) -> list[tuple[tuple[int, int], list[bytes]]]:
    return [((n, 0), [b"n", b"%d" % n]) for n in range(first, last + 1)]


def held(client: braidstream.Redis) -> list[int]:
    return [int(fields["n"]) for _, fields in client.xrange("x")]


Apply = Callable[..., Plan[int]]
in_both_forms = pytest.mark.parametrize("apply", [apply, apply_even])


@in_both_forms
def test_a_batch_that_follows_an_id_the_copy_lacks_is_refused_whole(
    region: braidstream.Redis, apply: Apply
) -> None:
    with pytest.raises(redis.ResponseError, match=r"BSGAP our copy ends at 0-0, the batch follows 5-0"):
        region.run_plan(apply(PEER, entries(6, 8), after=(5, 0)))
    assert (region.exists("x"), region.keys()) == (0, [])
    region.run_plan(apply(PEER, entries(1, 5)))
    with pytest.raises(redis.ResponseError, match=r"BSGAP our copy ends at 5-0, the batch follows 6-0"):
        region.run_plan(apply(PEER, entries(7, 8), after=(6, 0)))
    assert held(region) == [1, 2, 3, 4, 5]


@in_both_forms
def test_a_batch_sent_twice_changes_nothing(region: braidstream.Redis, apply: Apply) -> None:
    applied = [
        region.run_plan(apply(PEER, entries(1, 5))),
        region.run_plan(apply(PEER, entries(1, 5))),
        region.run_plan(apply(PEER, entries(3, 7), after=(2, 0))),
    ]
    assert (applied, held(region)) == ([5, 0, 2], [1, 2, 3, 4, 5, 6, 7])


@in_both_forms
def test_a_batch_stops_at_the_first_refusal(region: braidstream.Redis, apply: Apply) -> None:
    no_such_id = (2**64, 0)  # passes as text and is refused by the engine
    with pytest.raises(redis.ResponseError, match="Invalid stream ID"):
        region.run_plan(apply(PEER, [*entries(1, 2), (no_such_id, [b"n", b"3"]), *entries(4, 5)]))
    assert held(region) == [1, 2]


def test_a_malformed_batch_is_refused_before_anything_is_written(region: braidstream.Redis) -> None:
    listed = [(text(native), fields) for native, fields in entries(1, 3)]
    words = list(PEER.apply((0, 0), listed, (0, 0)))
    for broken in (
        words[:-1],
        [*words, "4-0", 3, "a", "b", "c"],
        [*words, "4-0"],
        [*words, "4", 2, "a", "b"],
    ):
        with pytest.raises(redis.ResponseError, match="BSBATCH"):
            region.execute_command(*broken)
    assert region.exists("x") == 0


@pytest.mark.parametrize("shape", [(3, 2), (3, 4), (1, 5), (1, 0), (6, 0), (-1, 2), ("x", 2), ("nan", "nan")])
def test_a_malformed_even_batch_is_refused_before_anything_is_written(
    region: braidstream.Redis, shape: tuple[int | str, int | str]
) -> None:
    words = ["1-0", "n", "1", "2-0", "n", "2"]
    for broken in (words, words[:-1], [*words, "3", "n", "3"], [*words, "MAXLEN", "0", "3-0"], ["x"] * 9):
        with pytest.raises(redis.ResponseError, match="BSBATCH"):
            region.execute_command(*PEER.apply_even((0, 0), shape), *broken)  # type: ignore[arg-type]
    assert region.exists("x") == 0


def test_a_batch_refused_for_want_of_memory_leaves_no_gap(flavour: Flavour) -> None:
    with Engine(flavour, args=["--maxmemory", "512mb"]) as engine, engine.client() as operator:
        become(engine)
        with client_of(engine, decode_responses=True) as client:
            client.run_plan(apply(PEER, entries(1, 3)))
            operator.config_set("maxmemory", 1)
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                client.run_plan(apply(PEER, entries(4, 6), after=(3, 0)))
            operator.config_set("maxmemory", 0)
            # The link had this one in flight already. A bare XADD would now shut 4 to 6 out.
            with pytest.raises(redis.ResponseError, match="BSGAP our copy ends at 3-0"):
                client.run_plan(apply(PEER, entries(7, 9), after=(6, 0)))
            client.run_plan(apply(PEER, entries(4, 6), after=(3, 0)))
            client.run_plan(apply(PEER, entries(7, 9), after=(6, 0)))
            assert held(client) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_stream_can_be_deleted_when_memory_is_full(flavour: Flavour) -> None:
    with Engine(flavour) as engine, engine.client() as operator:
        become(engine)
        with client_of(engine, decode_responses=True) as client:
            client.xadd("x", {"n": "1"})
            operator.config_set("maxmemory", 1)
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                client.xadd("x", {"n": "2"})
            assert (client.delete("x"), client.exists("x")) == (1, 0)


# Slots: a name that is empty or starts with `}` has no hash tag of its own between braces.

HOSTILE = [
    b"",
    b"}",
    b"}x",
    b"{",
    b"{}",
    b"{}x",
    b"x{}",
    b"x{",
    b"{a}",
    b"{a}b",
    b"c{a}",
    b"{{a}}",
    b"a}b",
    b"!{!}",
]


def test_all_keys_of_a_hostile_name_share_a_slot_and_none_with_another_name(flavour: Flavour) -> None:
    with Cluster(flavour) as cluster, redis.RedisCluster.from_url(cluster.url) as operator:
        become_cluster(cluster, id_mode="liberal")
        with braidstream.RedisCluster.from_url(cluster.url) as client:
            for number, name in enumerate(HOSTILE):
                client.xadd(name, {b"generated": number})
                client.xadd(name, {b"chosen": number}, id=f"{FAR}-7")
                client.xadd(name, {b"after": number}, maxlen=3, approximate=False)
            for number, name in enumerate(HOSTILE):
                value = b"%d" % number
                found = [fields for _, fields in client.xrange(name)]
                assert found == [{b"generated": value}, {b"chosen": value}, {b"after": value}], name
                mine = [key for key in operator.keys(b"bs:*", target_nodes="primaries") if _name(key) == name]
                slots = {operator.cluster_keyslot(key) for key in mine}
                assert (len(mine), len(slots)) == (3, 1), f"{name!r} has {mine} in slots {slots}"
                assert client.xdel(name, f"{FAR}-7") == 1
                assert client.xread({name: 0}, count=1)[0][0] == name
                assert client.xinfo_stream(name)["length"] == 2
                assert client.xtrim(name, maxlen=1, approximate=False) == 1
                with client.pipeline(transaction=True) as pipe:
                    if keys.shares_slot(name):  # else WATCH of the plain key needs a second slot
                        pipe.watch(name)
                        pipe.multi()
                    assert pipe.xlen(name).xadd(name, {"in": "MULTI"}).xlen(name).execute()[::2] == [1, 2]
                assert (client.type(name), client.delete(name), client.exists(name)) == (b"stream", 1, 0)


def _name(key: bytes) -> bytes | None:
    place = keys.parse_strand(key)
    return place[0] if place else keys.name_of_meta(key)


# XSETID backwards: allowed by the engines on an emptied stream, and then IDs repeat.


@pytest.mark.parametrize("emptied_by", ["nothing", "XDEL", "XTRIM"])
def test_the_last_id_never_moves_back(liberal: braidstream.Redis, emptied_by: str) -> None:
    generated = liberal.xadd("x", {"n": "1"}, id=f"{FAR - 1}")
    chosen = liberal.xadd("x", {"n": "2"}, id=f"{FAR}-3")
    if emptied_by == "XDEL":
        liberal.xdel("x", generated, chosen)
    elif emptied_by == "XTRIM":
        liberal.xtrim("x", maxlen=0, approximate=False)
    for backwards in ("0-1", generated, f"{FAR}-2"):
        with pytest.raises(redis.ResponseError, match="XSETID.* is smaller than"):
            liberal.execute_command("XSETID", "x", backwards)
    assert liberal.xinfo_stream("x")["last-generated-id"] == chosen
    assert liberal.execute_command("XSETID", "x", chosen) in (True, "OK")
    assert position(liberal.xadd("x", {"n": "3"})) > position(chosen)


@pytest.mark.parametrize("emptied", [False, True], ids=["with entries", "emptied by XTRIM"])
def test_a_strict_region_refuses_it_too_and_says_why(region: braidstream.Redis, emptied: bool) -> None:
    entry = region.xadd("x", {"n": "1"}, id=str(FAR))
    if emptied:
        region.xtrim("x", maxlen=0, approximate=False)
    with pytest.raises(redis.ResponseError, match="smaller than the"):
        region.execute_command("XSETID", "x", "5-1")
    assert position(region.xadd("x", {"n": "2"})) > position(entry)


# Sequence overflow: a native sequence of 2**54 or more has no image among the IDs users see.


@pytest.mark.parametrize("sequence", [2**54 - 1, 2**54, 2**63, MAX - 1024, MAX - 1, MAX])
def test_the_id_after_a_huge_sequence_is_valid_and_sorts_after_it(
    liberal: braidstream.Redis, sequence: int
) -> None:
    chosen = liberal.xadd("x", {"n": "1"}, id=f"{FAR}-{sequence}")
    following = [liberal.xadd("x", {"n": str(n)}) for n in range(2, 5)]
    found = [chosen, *following]
    assert found == sorted(set(found), key=position)
    assert all(position(entry)[1] <= MAX and position(entry)[1] % 1024 == 1 for entry in following), following
    assert [entry for entry, _ in liberal.xrange("x")] == found
    assert [liberal.xdel("x", entry) for entry in found] == [1, 1, 1, 1]


@pytest.mark.parametrize("sequence", [2**54, MAX - 1024, MAX])
def test_the_id_after_a_huge_xsetid_is_valid_and_sorts_after_it(
    region: braidstream.Redis, sequence: int
) -> None:
    region.xadd("x", {"n": "1"})
    region.execute_command("XSETID", "x", f"{FAR}-{sequence}")
    assert position(region.xinfo_stream("x")["last-generated-id"]) == (FAR, sequence)
    entry = region.xadd("x", {"n": "2"})
    assert position(entry) > (FAR, sequence)
    assert position(entry)[1] % 1024 == 1
    assert [seen for seen, _ in region.xrange("x")][-1] == entry


def test_after_the_very_last_id_the_stream_is_exhausted(liberal: braidstream.Redis) -> None:
    last = liberal.xadd("x", {"n": "1"}, id=f"{MAX}-{MAX}")
    for entry in ("*", f"{MAX}-*", f"{MAX}-{MAX}"):
        with pytest.raises(redis.ResponseError, match="exhausted the last possible ID"):
            liberal.xadd("x", {"n": "2"}, id=entry)
    assert liberal.xrange("x") == [(last, {"n": "1"})]

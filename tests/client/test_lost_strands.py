"""Strands that are lost (evicted, expired, deleted natively), or would be: no ID is generated twice.

Each test fails without its guard in the code.
"""

from collections.abc import Callable

import pytest
import redis

import braidstream
from braidstream.model import keys
from tests.support.regions import become, client_of, position
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually


def _expire(operator: redis.Redis, key: str) -> None:
    operator.pexpire(key, 1)
    eventually(lambda: not operator.exists(key), within_s=30, why=f"{key} should expire")


@pytest.mark.parametrize("lose", [redis.Redis.delete, _expire], ids=["deleted", "expired"])
def test_a_strand_lost_behind_our_back_never_mints_an_id_again(
    region: braidstream.Redis, engine: Engine, lose: Callable[[redis.Redis, str], object]
) -> None:
    generated = list[str]()
    with engine.client() as operator:
        for _ in range(100 if lose is redis.Redis.delete else 5):
            generated += [region.xadd("x", {"n": "1"}), region.xadd("x", {"n": "2"})]
            lose(operator, "bs:1:s:{x}")
            assert region.xlen("x") == 0
    assert generated == sorted(set(generated), key=position)
    with pytest.raises(redis.ResponseError, match="equal or smaller"):
        region.xadd("x", {"n": "from the past"}, id="110")
    assert region.xadd("x", {"n": "3"}) == region.xrange("x")[-1][0]


def _in_a_pipeline(client: braidstream.Redis, *, multi: bool) -> None:
    client.pipeline(transaction=multi).xadd("x", {"n": "2"}).execute()


WAYS: dict[str, Callable[[braidstream.Redis], object]] = {
    "XADD": lambda client: client.xadd("x", {"n": "2"}),
    "a message": lambda client: client.xadd("x", {"n": "2"}, idmp=("p", b"2")),
    "a pipeline": lambda client: _in_a_pipeline(client, multi=False),
    "MULTI": lambda client: _in_a_pipeline(client, multi=True),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_lost_strand_joins_its_groups_again(
    region: braidstream.Redis, engine: Engine, way: str, known: bool
) -> None:
    region.xadd("x", {"n": "1"})
    region.xgroup_create("x", "g", "$")
    region.xreadgroup("g", "ann", {"x": ">"})
    with engine.client() as behind:
        behind.delete(keys.strand(b"x", "s", 1))
    with client_of(engine, decode_responses=True) as stranger:
        WAYS[way](region if known else stranger)
    [[_, entries]] = region.xreadgroup("g", "ann", {"x": ">"})
    assert [fields for _, fields in entries] == [{"n": "2"}]


def test_a_lost_strand_is_not_reborn_past_its_guard_by_a_chosen_id(
    liberal: braidstream.Redis, engine: Engine
) -> None:
    generated = list[str]()
    with engine.client() as operator:
        for n in range(1, 101):
            generated.append(liberal.xadd("x", {"n": "generated"}))
            operator.delete("bs:1:s:{x}")
            liberal.pipeline(transaction=False).xadd("x", {"n": "chosen"}, id=f"1-{n}").execute(
                raise_on_error=False
            )
    assert generated == sorted(set(generated), key=position)


def test_a_lost_strand_of_chosen_ids_goes_on(liberal: braidstream.Redis, engine: Engine) -> None:
    """Peers have the lost entries. They raised the strand of generated IDs: it refuses smaller ones."""
    liberal.xadd("x", {"n": "lost"}, id="5-5")
    with engine.client() as operator:
        operator.delete("bs:1:c:{x}")
        with pytest.raises(redis.ResponseError, match="equal or smaller"):
            liberal.xadd("x", {"n": "smaller"}, id="4-9")
        liberal.xadd("x", {"n": "new"}, id="5-6")
        assert operator.xlen("bs:1:c:{x}") == 1
    assert liberal.xrange("x") == [("5-6", {"n": "new"})]


def test_a_registry_lost_behind_our_back_is_found_again(region: braidstream.Redis, engine: Engine) -> None:
    before = region.xadd("x", {"n": "1"})
    with engine.client() as operator:
        operator.delete("bs:meta:{x}")
    after = region.xadd("x", {"n": "2"})
    with client_of(engine, decode_responses=True) as other:
        for client in (other, region):
            assert [entry for entry, _ in client.xrange("x")] == [before, after]
            assert (client.exists("x"), client.keys()) == (1, ["x"])


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_a_server_that_may_evict_strands_is_not_made_a_region(flavour: Flavour, policy: str) -> None:
    with Engine(flavour, args=["--maxmemory-policy", policy]) as engine, engine.client() as operator:
        with pytest.raises(braidstream.BraidError, match=rf"maxmemory-policy {policy}.*noeviction"):
            become(engine)
        assert operator.dbsize() == 0
        operator.config_set("maxmemory-policy", "volatile-lru")
        become(engine)

"""Words with the same hash in Lua are found, usual words are not."""

import random
import uuid

import pytest

from braidstream.engine.collisions import collide
from braidstream.model.registry import Registry
from tests.support.collisions import words_that_collide

USUAL = {
    "numbers": [b"%d" % number for number in range(6_000)],
    "padded": [b"%020d" % number for number in range(6_000)],
    "names": [b"field_%d" % number for number in range(6_000)],
    "few different ones": [b"a", b"b"] * 3_000,
    "uuids": [str(uuid.UUID(int=random.getrandbits(128))).encode() for _ in range(6_000)],
    "json": [b'{"id":%d,"name":"customer","v":%d}' % (number, number**2) for number in range(6_000)],
    "long": [b"x" * 2_000 + b"%d" % number for number in range(6_000)],
}


@pytest.mark.parametrize("kind", USUAL)
@pytest.mark.parametrize("count", [257, 2_000, 6_000])
def test_usual_words_do_not_collide(kind: str, count: int) -> None:
    words = USUAL[kind][:count]
    assert not any(collide(count, words.__getitem__) for _ in range(20 if count > 2_000 else 200))


@pytest.mark.parametrize("count", [257, 2_000, 6_000])
@pytest.mark.parametrize("share", [2, 3])
def test_hostile_words_collide(count: int, share: int) -> None:
    """Also if a third of the words is of the usual kind: then of five samples one may miss it."""
    hostile = words_that_collide(6_000)
    words = [hostile[at] if at % share else USUAL["names"][at] for at in range(count)]
    assert any(collide(count, words.__getitem__) for _ in range(5))
    assert collide(count, hostile.__getitem__)


@pytest.mark.parametrize("kind", USUAL)
def test_a_registry_with_many_usual_groups_can_be_read(kind: str) -> None:
    names = {*USUAL[kind][:2_000]}
    reply = [word for name in names for word in (b"g:" + name, b"0-0 0-0 0-0 0", b"k:" + name, b"s1:0 1-1")]
    assert {*Registry.parse(b"a", reply).groups} == names


def test_few_words_are_not_looked_at() -> None:
    assert not collide(256, words_that_collide(6_000).__getitem__)

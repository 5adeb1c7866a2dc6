"""XADD: a plain append, its birth, its refusals."""

import pytest
import redis

import braidstream


def test_an_id_carries_the_region_and_ids_ascend(region: braidstream.Redis) -> None:
    found = [region.xadd("messages", {"text": f"hello {n}"}) for n in range(100)]
    sequences = [int(entry.split("-")[1]) for entry in found]
    assert all(sequence % 1024 == 1 for sequence in sequences)
    assert [entry for entry, _ in region.xrange("messages")] == found


def test_a_plain_key_of_the_name_is_the_wrong_type(region: braidstream.Redis) -> None:
    region.set("messages", "not a stream")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        region.xadd("messages", {"text": "hello"})
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        region.xrange("messages")

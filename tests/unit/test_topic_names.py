"""Names, slots and keys of topics."""

from collections import Counter

import pytest
from redis.crc import key_slot

from braidstream.model import keys
from braidstream.model.topic import (
    MOST_PARTITIONS,
    Topic,
    murmur2,
    parse_stream,
    refusal,
    streams_of,
    topics_of,
)

SLOTS = 16_384


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # Apache Kafka, UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        # librdkafka, unittest_murmur2
        (b"", 275646681),
        (bytes([12, 42, 56, 24, 109, 111]), 274204207),
    ],
)
def test_the_hash_of_a_key_is_that_of_kafka(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32
    assert Topic(b"t", 10).partition_of(key) == (expected & 0x7FFFFFFF) % 10


def largest_of_mean(partitions: int, shards: int, name: bytes) -> float:
    """Slots are given to shards as redis-cli does it: in ranges of one size."""
    found = Counter(key_slot(keys.meta(stream)) * shards // SLOTS for stream in streams_of(name, partitions))
    return max(found.values()) * shards / partitions


@pytest.mark.parametrize("name", [b"orders", b"payments", b"eu/clicks.v2", "Größen".encode()])
def test_ten_thousand_partitions_are_spread_evenly_over_two_hundred_shards(name: bytes) -> None:
    assert largest_of_mean(10_000, 200, name) <= 1.05
    assert largest_of_mean(64, 3, name) <= 1.05


def test_no_two_partitions_share_a_name_and_each_has_all_its_keys_in_one_slot() -> None:
    streams = streams_of(b"orders", MOST_PARTITIONS)
    assert len(set(streams)) == MOST_PARTITIONS
    for number, stream in enumerate(streams):
        assert parse_stream(stream) == (b"orders", number)
    for stream in streams[:50]:
        made = (stream, keys.meta(stream), keys.strand(stream, "s", 1), keys.journal(stream, 3))
        assert len({key_slot(key) for key in made}) == 1


def test_a_partition_keeps_its_stream_if_there_are_more() -> None:
    assert streams_of(b"orders", 12) == streams_of(b"orders", 5_000)[:12]


def test_the_names_never_change() -> None:
    """Streams of users have them."""
    assert streams_of(b"orders", 3) == (b"orders/0.0{78f}", b"orders/0.1{6cc8}", b"orders/0.2{8c79}")


@pytest.mark.parametrize(
    "name", [b"orders", b"orders/0.7", b"/0.7{a}", b"orders/1.7{a}", b"orders/0.07{a}", b"orders/0.7{x}"]
)
def test_other_names_are_of_no_partition(name: bytes) -> None:
    assert parse_stream(name) is None


@pytest.mark.parametrize(
    ("name", "partitions"), [(b"", 1), (b"a{b}", 1), (b"a}", 1), (b"a" * 4_090, 1), (b"a", 0), (b"a", 10_001)]
)
def test_some_topics_cannot_be(name: bytes, partitions: int) -> None:
    assert refusal(name, partitions) is not None


def test_of_two_regions_that_create_a_topic_the_larger_number_counts_and_odd_entries_do_not() -> None:
    def entry(name: bytes, partitions: bytes) -> list[bytes]:
        return [b"topic", name, b"partitions", partitions]

    entries = [entry(b"a", b"8"), entry(b"a", b"16"), entry(b"a", b"12"), entry(b"b", b"1")]
    odd = [entry(b"a", b"x"), entry(b"a", b"99999"), entry(b"{c}", b"3"), [b"topic", b"d"], [b"n", b"1"]]
    expected = {b"a": Topic(b"a", 16), b"b": Topic(b"b", 1)}
    assert topics_of([*entries, *odd]) == topics_of([*odd, *reversed(entries)]) == expected

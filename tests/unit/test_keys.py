"""Keys: no two names share one, all of one name lie in one slot, and each leads back to its name."""

from collections.abc import Iterator

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from braidstream.model import keys

writers = st.integers(1, 1023)
lives = st.one_of(st.just(0), st.integers(1, 10**6))
kinds = st.sampled_from(["s", "c"])
tokens = st.lists(st.integers(0, 10**10), min_size=3, max_size=3).map(lambda n: b"%d.%d.%d" % tuple(n))
places = st.tuples(kinds, writers, lives)

# Braces, our own prefixes and separators, and any bytes at all.
_pieces = st.sampled_from(
    [b"{", b"}", b"{}", b"{a}", b"+", b"!", b"!{!}", b":", b".", b"a", b"0", b"\0", b"\n", b"\xff", b"bs:"]
)
_prefixes = st.sampled_from([b"bs:1:s:", b"bs:1:c.2:", b"bs:meta:", b"bs:copy:1.2.3:", b"bs:config", b""])
names = st.one_of(
    st.binary(max_size=20),
    st.lists(_pieces, max_size=8).map(b"".join),
    st.tuples(_prefixes, st.lists(_pieces, max_size=5).map(b"".join)).map(b"".join),
)


@st.composite
def _neighbours(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two names, often one made of the other by what tagging does."""
    one = draw(names)
    changes = [
        b"{" + one + b"}",
        b"+" + one,
        b"!{!}" + one,
        one[1:],
        one[:-1],
        one[1:-1],
        one[4:],
        keys.tag(one),
        keys.meta(one),
        keys.strand(one, "s", 1),
    ]
    return one, draw(st.one_of(st.sampled_from(changes), names))


def _all_keys(name: bytes, *, token: bytes, place: tuple[keys.Kind, int, int]) -> Iterator[bytes]:
    kind, writer, life = place
    yield keys.meta(name)
    yield keys.copy(name, token)
    yield keys.strand(name, kind, writer, life)
    yield keys.about(name)
    yield from keys.known_messages(name, writer, token)
    yield keys.strand(name, "s", 1)
    yield keys.strand(name, "c", 1)
    yield keys.strand(name, "c", 1, 1)


@given(_neighbours(), tokens, tokens, places, places)
@example((b"", b"!{!}"), b"1.1.1", b"1.1.1", ("s", 1, 0), ("s", 1, 0))
@example((b"a{b}c", b"+a{b}c"), b"1.1.1", b"1.1.1", ("s", 1, 0), ("s", 1, 0))
@example((b"a", b"{a}"), b"1.1.1", b"1.1.1", ("s", 1, 0), ("s", 1, 0))
def test_two_names_share_no_key(
    pair: tuple[bytes, bytes],
    token: bytes,
    other_token: bytes,
    place: tuple[keys.Kind, int, int],
    other_place: tuple[keys.Kind, int, int],
) -> None:
    one, other = pair
    assume(one != other)
    mine = set(_all_keys(one, token=token, place=place))
    assert not mine & set(_all_keys(other, token=other_token, place=other_place))


@given(names, places, places)
def test_two_strands_of_one_name_share_no_key(
    name: bytes, one: tuple[keys.Kind, int, int], other: tuple[keys.Kind, int, int]
) -> None:
    assert (keys.strand(name, *one) == keys.strand(name, *other)) == (one == other)


@given(names, tokens, places)
def test_all_keys_of_a_name_lie_in_one_slot(
    name: bytes, token: bytes, place: tuple[keys.Kind, int, int]
) -> None:
    slots = {key: key_slot(key) for key in _all_keys(name, token=token, place=place)}
    assert len(set(slots.values())) == 1, slots


@given(names)
@example(b"a{tag}b")
@example(b"orders")
@example(b"{")
@example(b"a{}b{c}")
def test_a_name_that_shares_its_slot_with_the_plain_key_says_so(name: bytes) -> None:
    if keys.shares_slot(name):
        assert key_slot(keys.meta(name)) == key_slot(name)


@given(names, names, st.binary(min_size=1, max_size=8))
def test_names_a_user_put_together_by_a_tag_stay_together(before: bytes, after: bytes, tag: bytes) -> None:
    assume(b"{" not in before and b"}" not in tag)
    name = before + b"{" + tag + b"}" + after
    assert keys.shares_slot(name)
    assert key_slot(keys.meta(name)) == key_slot(name) == key_slot(b"{" + tag + b"}")


@given(st.binary(max_size=20))
def test_a_name_without_braces_shares_its_slot(name: bytes) -> None:
    assert keys.shares_slot(name) or name == b"" or b"}" in name


@given(names, tokens, places)
def test_every_key_leads_back_to_its_name_and_is_ours(
    name: bytes, token: bytes, place: tuple[keys.Kind, int, int]
) -> None:
    assert keys.name_of_tag(keys.tag(name)) == name
    assert keys.name_of_meta(keys.meta(name)) == name
    assert keys.parse_strand(keys.strand(name, *place)) == (name, *place)
    assert all(keys.is_ours(key) for key in _all_keys(name, token=token, place=place))


@pytest.mark.parametrize("start", [b"", b"a{tag}", b"}"])
def test_keys_of_a_name_that_is_too_long_are_keys_of_no_stream(start: bytes) -> None:
    longest = start.ljust(keys.NAME_BYTES, b"x")
    for name, is_known in ((longest, True), (longest + b"x", False), (longest * 1_000, False)):
        assert (keys.name_of_meta(keys.meta(name)) == name) is is_known
        assert (keys.parse_strand(keys.strand(name, "s", 1023, 10**19)) is not None) is is_known
        assert (keys.parse_journal(keys.journal(name, 1023)) == (name, 1023)) is is_known
        assert keys.is_ours(keys.meta(name))


@given(names)
def test_a_key_is_one_thing_only(key: bytes) -> None:
    readings = [key == keys.CONFIG, keys.parse_strand(key) is not None, keys.name_of_meta(key) is not None]
    assert sum(readings) <= 1


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"bs",
        b"bs:",
        b"bs:x",
        b"bs:1:s",
        b"bs:1:x:{a}",
        b"bs:0:s:{a}",
        b"bs:1:s:a",
        b"orders",
        b"bs:configs",
    ],
)
def test_keys_of_users_are_not_ours(plain: bytes) -> None:
    assert not keys.is_ours(plain)


def test_who_the_region_is_is_ours() -> None:
    assert keys.is_ours(keys.CONFIG)


# What stands in databases today. To change a line here is to change stored state: CHANGELOG.md, and a way
# to upgrade.
STORED = {
    b"orders": b"{orders}",
    b"a:b.c d": b"{a:b.c d}",
    b"": b"!{!}",
    b"}": b"!{!}}",
    b"}odd": b"!{!}}odd",
    b"{": b"{{}",
    b"{}": b"{{}}",
    b"a}b": b"{a}b}",
    b"a{": b"{a{}",
    b"a{}b": b"{a{}b}",
    b"{tag}": b"+{tag}",
    b"a{tag}b": b"+a{tag}b",
    b"a{{tag}}b": b"+a{{tag}}b",
    b"}{tag}": b"+}{tag}",
    b"+a": b"{+a}",
    b"!a": b"{!a}",
    b"\xff\0\n": b"{\xff\0\n}",
}


@pytest.mark.parametrize(("name", "tag"), STORED.items())
def test_stored_keys_keep_their_form(name: bytes, tag: bytes) -> None:
    assert keys.CONFIG == b"bs:config"
    assert keys.meta(name) == b"bs:meta:" + tag
    assert keys.strand(name, "s", 1) == b"bs:1:s:" + tag
    assert keys.strand(name, "c", 1023) == b"bs:1023:c:" + tag
    assert keys.strand(name, "c", 7, 2) == b"bs:7:c.2:" + tag
    assert keys.copy(name, b"5.17.9") == b"bs:copy:5.17.9:" + tag

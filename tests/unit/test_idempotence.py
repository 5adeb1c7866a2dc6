"""Settings and the ID of a message by its content."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidstream.model.registry import Settings, iid_of

numbers = st.integers(0, 10**9)
pairs = st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), min_size=1, max_size=5)


@given(st.builds(Settings, numbers, numbers, numbers, numbers))
def test_settings_are_read_as_they_are_written(settings: Settings) -> None:
    assert Settings.parse(settings.text) == settings


@pytest.mark.parametrize("text", [b"", b"1:2:3", b"1:2:3:4:5", b"1:2:3:x", b"-1:2:3:4"])
def test_what_is_no_settings_is_none(text: bytes) -> None:
    assert Settings.parse(text) is None


def test_a_change_begins_the_next_era_and_no_change_does_not() -> None:
    now = Settings(era=3, duration_s=5, maxsize=7, since=1)
    assert now.changed(5, None) == now
    assert now.changed(6, None) == Settings(era=4, duration_s=6, maxsize=7, since=1)
    assert now.deleted() == Settings(era=4, since=4)


def flat(message: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [word for pair in message for word in pair]


@given(pairs)
def test_the_order_of_pairs_does_not_matter(message: list[tuple[bytes, bytes]]) -> None:
    other = sorted(message)
    assert iid_of(flat(other)) == iid_of(flat(message))


@given(pairs, pairs)
def test_other_pairs_are_another_message(
    one: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]]
) -> None:
    assert (iid_of(flat(one)) == iid_of(flat(other))) == (sorted(one) == sorted(other))


def test_the_hash_is_part_of_what_is_stored_and_never_changes() -> None:
    assert iid_of([b"b", b"2", b"a", b"1"]).hex() == "346c233e639b6f2b42120946401e0b0f"

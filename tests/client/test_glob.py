"""Patterns: `matcher` says of a stream's name what KEYS says of a plain key."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from braidstream.errors import ReplyError
from braidstream.model.glob import LONGEST, matcher
from tests.support.servers import Engine

_letters = st.sampled_from(
    [b"a", b"b", b"c", b"-", b"^", b"]", b"[", b"\\", b"*", b"?", b"\n", b"\0", b"\xff"]
)
_sets = st.tuples(
    st.sampled_from([b"[", b"[^"]),
    st.lists(st.one_of(_letters, st.sampled_from([b"a-c", b"c-a", b"\\]", b"\\-"])), max_size=4).map(
        b"".join
    ),
    st.sampled_from([b"]", b""]),
).map(b"".join)
_patterns = st.lists(st.one_of(_letters, _sets, st.just(b"*")), max_size=8).map(b"".join)
_names = st.lists(st.lists(_letters, max_size=5).map(b"".join), min_size=1, max_size=8, unique=True)


@given(_names, _patterns)
@example([b"", b"a"], b"*")
@example([b"", b"a"], b"**")
@example([b"", b"a"], b"")
@example([b"a", b"aa"], b"a**")
@example([b"\\", b"a\\"], b"*\\")
@example([b"a", b"b", b"["], b"[")
@example([b"a", b"b", b"^"], b"[^")
@example([b"a", b"b", b"]"], b"[]")
@example([b"a", b"b", b"]"], b"[^]")
@example([b"a", b"-", b"c", b"b"], b"[a-")
@example([b"a", b"-", b"]", b"b"], b"[a-]")
@example([b"b", b"\\"], b"[c-a]")
@example([b"\\", b"a"], b"[\\")
@example([b"\n", b"a\nb"], b"*?")
def test_the_matcher_agrees_with_the_engine(engine: Engine, names: list[bytes], pattern: bytes) -> None:
    with engine.client() as client:
        client.mset(dict.fromkeys(names, b""))
        seen = sorted(client.keys(pattern))
        client.delete(*names)
    matches = matcher(pattern)
    assert sorted(name for name in names if matches(name)) == seen


@pytest.mark.parametrize("part", [b"a", b"?", b"[ab]", b"a*"])
def test_the_time_is_linear_in_the_name_whatever_the_pattern(part: bytes) -> None:
    pattern = b"*" + part * ((LONGEST - 3) // len(part)) + b"c*"
    began = time.perf_counter()
    assert not matcher(pattern)(b"a" * 100_000)
    assert time.perf_counter() - began < 3  # pattern times name: 20 s


def test_a_pattern_that_is_too_long_is_refused() -> None:
    with pytest.raises(ReplyError, match="the pattern has more than 1024 bytes"):
        matcher(b"*" * 1025)

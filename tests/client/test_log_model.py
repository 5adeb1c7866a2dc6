"""Logs against plain models: a list for offsets, and the struct of RCP 11 for groups."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import braidstream
from tests.support.matrix import on_every_engine
from tests.support.servers import Engine

flavour = on_every_engine

WORDS = st.sampled_from(["a", "b", ""])
COUNTS = st.integers(0, 12)
OPERATIONS = st.one_of(
    st.tuples(st.just("write"), WORDS),
    st.tuples(st.just("write many"), st.integers(1, 6)),
    st.tuples(st.just("evict"), COUNTS),
    st.tuples(st.just("keep"), COUNTS),
    st.tuples(st.just("delete entry"), COUNTS),
    st.tuples(st.just("delete"), st.just(0)),
    st.tuples(st.just("flush"), st.just(0)),
)


class Model:
    """A list: element i is offset i + 1, None where it is gone."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, str] | None] = []

    def write(self, tag: str) -> int:
        self.rows.append((len(self.rows) + 1, tag, str(len(self.rows))))
        return len(self.rows)

    def evict(self, upto: int) -> int:
        gone = sum(row is not None for row in self.rows[:upto])
        self.rows[:upto] = [None] * len(self.rows[:upto])
        return gone

    @property
    def extent(self) -> tuple[int, int]:
        there = [row[0] for row in self.rows if row]
        return (there[0] if there else len(self.rows) + 1), len(self.rows)


def _apply(region: braidstream.Redis, model: Model, what: str, value: object) -> None:
    if what == "write":
        entry = str(len(model.rows))
        assert region.twrite("log", str(value), entry) == model.write(str(value))
    elif what == "write many":
        assert isinstance(value, int)
        entries = [("m", str(len(model.rows) + at)) for at in range(value)]
        assert region.twrite("log", entries=entries) == [model.write("m") for _ in range(value)]
    elif what == "evict":
        assert isinstance(value, int)
        assert region.tevict("log", value) == model.evict(value)
    elif what == "keep":
        assert isinstance(value, int)
        there = sum(row is not None for row in model.rows)
        gone = region.tevict("log", keep=value)
        assert there - gone >= min(value, there)
        for row in [row for row in model.rows if row][:gone]:
            model.rows[row[0] - 1] = None
    elif what == "delete entry":
        assert isinstance(value, int)
        there = 0 < value <= len(model.rows) and model.rows[value - 1] is not None
        assert region.xdel("log", f"0-{value}") == there
        if there:
            model.rows[value - 1] = None
    elif what == "delete":
        region.delete("log")
        model.evict(len(model.rows))
    else:
        region.flushdb()
        model.evict(len(model.rows))


@settings(max_examples=40)
@given(operations=st.lists(OPERATIONS, max_size=25), offset=st.integers(0, 15), count=st.integers(0, 15))
def test_a_log_is_a_list_whose_elements_only_go_away(
    region: braidstream.Redis, engine: Engine, operations: list[tuple[str, object]], offset: int, count: int
) -> None:
    name = "bs:meta:{log}", "bs:1:t:{log}"
    with engine.client() as operator:
        operator.delete(*name)  # a log that never was; offsets would go on otherwise
    region.session.cache.forget_all()
    model = Model()
    for what, value in operations:
        _apply(region, model, what, value)
        first = max(offset, 1)
        wanted = model.rows[first - 1 : first - 1 + count]
        assert region.tread("log", offset, count, withinfo=True) == (model.extent, wanted)
        assert region.tread("log", offset, count) == wanted
        skipped = [row for row in model.rows[first - 1 :] if row][:count]
        assert region.tread("log", offset, count, skip=True) == skipped


@pytest.mark.parametrize("seed", range(3))
def test_a_group_is_the_struct_of_the_document(region: braidstream.Redis, seed: int) -> None:
    """retry_time, expire_time and the limit. Times are compared by what the client can know of them."""
    dice, limit = random.Random(seed), 7
    region.tcfgset("log", pending=limit)
    given_ms: dict[int, tuple[float, float]] = {}  # the last delivery: not before, not after
    expires_ms: dict[int, float] = {}  # not after
    retry_of: dict[int, int] = {}
    acked, highest = set[int](), 0
    for _ in range(250):
        action = dice.random()
        if action < 0.3:
            region.twrite("log", entries=[("t", "x")] * dice.randint(1, 3))
        elif action < 0.45 and given_ms:
            offset = dice.choice(sorted(given_ms))
            region.tack("log", "g", offset)
            acked.add(offset)
        elif action < 0.55:
            time.sleep(dice.random() * 0.05)
        else:
            retry, expire = dice.choice([(30, 90), (50, 400), (20, 2_000)])
            before = time.monotonic() * 1000
            rows = region.tread("log", count=dice.randint(1, 4), group="g", retry=(retry, expire))
            after = time.monotonic() * 1000
            for offset, _, _ in rows:
                assert offset not in acked
                if offset in given_ms:
                    assert after - given_ms[offset][0] >= retry_of[offset] - 1, "delivered within retry-ms"
                    assert before <= expires_ms[offset] + 1, "delivered after its expiry"
                else:
                    assert offset == highest + 1, "new entries come in order"
                    highest, expires_ms[offset] = offset, after + expire
                given_ms[offset], retry_of[offset] = (before, after), retry
        if region.xinfo_groups("log"):
            assert region.xpending("log", "g")["pending"] <= limit

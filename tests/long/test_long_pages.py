"""Long pages: ranges that take several rounds, and trimming that compares the heads of many strands."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from braidstream.model import ids
from braidstream.model.ids import ZERO
from braidstream.model.strand import Strand
from tests.oracle.stream import Stream
from tests.support.regions import apply, become, client_of
from tests.support.servers import Engine

_names = itertools.count()


@given(
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=5),
    gap=st.integers(1, 300),
    count=st.integers(1, 300),
    length=st.integers(0, 600),
)
@settings(max_examples=settings.default.max_examples // 8)
def test_a_long_page_of_uneven_strands_is_the_naive_one(
    engine: Engine, sizes: list[int], gap: int, count: int, length: int
) -> None:
    """Strand n starts n gaps later and has its own pace, so they overlap wholly, partly or not at all."""
    name, model = b"long:%d" % next(_names), Stream()
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        for at, size in enumerate(sizes):
            strand = Strand(name, "sc"[at % 2], at + 2)
            natives = [(gap * at + number * (at + 1), 1) for number in range(size)]
            client.run_plan(apply(strand, [(native, [b"v", b""]) for native in natives]))
            for native in natives:
                model.add((strand.user(native), strand.writer, strand.kind), b"")
        position = model.between()[length % len(model.entries)][0] if model.entries else ZERO
        after, until = b"(" + ids.text(position), ids.text(position)
        first = ids.after(position) or ZERO
        assert client.xlen(name) == len(model.entries)
        assert client.xrange(name, after, "+", count) == model.shown(model.between(first, count=count))
        assert client.xrevrange(name, until, "-", count) == model.shown(
            model.between_back(end=position, count=count)
        )
        gone = client.xtrim(name, maxlen=length, approximate=False)
        assert gone == model.trim_to(length)
        assert client.xrange(name) == model.shown(model.between())


def test_the_last_id_of_all_can_be_trimmed(engine: Engine) -> None:
    become(engine, id_mode="liberal")
    with client_of(engine) as client:
        for writer in (2, 3):
            client.run_plan(apply(Strand(b"orders", "c", writer), [(ids.LAST, [b"v", b"%d" % writer])]))
        assert client.xtrim("orders", maxlen=1, approximate=False) == 1
        assert client.xrange("orders") == [(ids.text(ids.LAST), {b"v": b"3"})]
        assert client.xrange("orders", count=50) == client.xrevrange("orders", count=50)

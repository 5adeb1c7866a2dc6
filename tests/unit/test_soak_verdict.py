"""The judge of the soak knows every anomaly when it sees one, and only then."""

import pytest

from tests.faults.soak.traffic import ACKED, REFUSED, STREAMS, UNKNOWN, Delivery, History, Op
from tests.faults.soak.verdict import Final, judge


def add(at: float, text: str, id: str = "", *, stream: str = "keep-0", outcome: str = ACKED) -> Op:
    return Op("add", stream, int(text[0]), text, at, at + 0.1, outcome, id)


def regions(there: dict[str, list[tuple[str, str]]], groups: tuple[str, ...] = ()) -> Final:
    entries = {name: there.get(name, []) for name in STREAMS}
    return Final(entries, {name: list(groups) for name in STREAMS})


def names(history: History, *finals: Final) -> list[str]:
    found = judge(history, dict(enumerate(finals, start=1)))
    return [line.split(":")[0] for line in found]


ONE = ("10-1", "1-1")
TWO = ("20-1", "1-2")


def test_what_was_acknowledged_must_be_there() -> None:
    history = History([add(1, "1-1", "10-1"), add(2, "1-2", "20-1"), add(3, "1-3", outcome=UNKNOWN)])
    assert names(history, regions({"keep-0": [ONE, TWO]})) == []
    assert names(history, regions({"keep-0": [ONE, TWO, ("30-1", "1-3")]})) == []
    assert names(history, regions({"keep-0": [ONE]})) == ["lost"]
    assert names(history, regions({"keep-0": [ONE, TWO, ("30-1", "1-2")]})) == ["duplicated", "reordered"]
    assert names(history, regions({"keep-0": [("10-1", "1-2"), ("20-1", "1-1")]})) == ["reordered"]
    assert names(history, regions({"keep-0": [ONE, TWO, ("40-1", "1-9")]})) == ["invented"]


def test_a_refused_entry_must_not_be_there() -> None:
    history = History([add(1, "1-1", "OOM", outcome=REFUSED)])
    assert names(history, regions({})) == []
    assert names(history, regions({"keep-0": [ONE]})) == ["invented"]


def test_regions_must_agree_on_entries_and_groups() -> None:
    history = History([add(1, "1-1", outcome=UNKNOWN)])
    assert names(history, regions({}), regions({"keep-0": [ONE]})) == ["diverged"]
    assert set(names(history, regions({}), regions({}, ("g",)))) == {"diverged"}


@pytest.mark.parametrize(("outcome", "wrong"), [(ACKED, ["resurrected"]), (UNKNOWN, [])])
def test_a_deleted_entry_must_be_gone_if_the_deletion_was_acknowledged(
    outcome: str, wrong: list[str]
) -> None:
    deletion = Op("xdel", "prune-0", 2, "10-1", 2, 2.1, outcome, "1")
    history = History([add(1, "1-1", "10-1", stream="prune-0"), deletion])
    assert names(history, regions({"prune-0": [ONE]})) == wrong
    assert names(history, regions({})) == []


def test_del_takes_what_its_region_had_and_nothing_that_came_later() -> None:
    early, late = add(1, "1-1", "10-1", stream="drop-0"), add(9, "1-2", "20-1", stream="drop-0")
    apart = add(1, "2-1", "15-2", stream="drop-0")  # in another region: perhaps seen, perhaps not
    history = History([early, late, apart, Op("del", "drop-0", 1, "", 5, 5.1, ACKED, "1")])
    assert names(history, regions({"drop-0": [TWO]})) == []
    assert names(history, regions({"drop-0": [("15-2", "2-1"), TWO]})) == []
    assert names(history, regions({"drop-0": [ONE, TWO]})) == ["resurrected"]
    assert names(history, regions({"drop-0": []})) == ["lost"]


def test_of_a_trimmed_stream_the_newest_must_be_there() -> None:
    ops = [add(at, f"1-{at}", f"{at}-1", stream="trim-0") for at in range(1, 301)]
    entries = [(op.reply, op.subject) for op in ops]
    assert names(History(ops), regions({"trim-0": entries[100:]})) == []
    assert names(History(ops), regions({"trim-0": entries[101:]})) == ["lost"]


def test_a_group_gives_every_entry_to_somebody_and_once_in_a_region() -> None:
    ops = [add(1, "1-1", "10-1", stream="jobs-0"), add(2, "1-2", "20-1", stream="jobs-0")]
    given = [Delivery("jobs-0", 1, "a", "10-1"), Delivery("jobs-0", 2, "b", "20-1")]
    final = regions({"jobs-0": [ONE, TWO]})
    assert names(History(ops, given), final) == []
    assert names(History(ops, given[:1]), final) == ["skipped"]
    assert names(History(ops, [*given, given[0]]), final) == ["duplicated"]

"""The judge of a client log knows every anomaly when it sees one, and only then."""

import pytest

from tests.oracle.client_log import ACKED, REFUSED, UNKNOWN, ClientLog, Delivery, Loss, Op
from tests.oracle.verdict import Final, Rules, judge

STREAMS = ("keep-0", "prune-0", "drop-0", "trim-0", "jobs-0")
RULES = Rules({"trim-0": 200}, consumed=["jobs-0"])


def add(at: float, text: str, id: str = "", *, stream: str = "keep-0", outcome: str = ACKED) -> Op:
    return Op("add", stream, int(text[0]), text, at, at + 0.1, outcome, id)


def regions(there: dict[str, list[tuple[str, str]]], groups: tuple[str, ...] = ()) -> Final:
    entries = {name: there.get(name, []) for name in STREAMS}
    return Final(entries, {name: list(groups) for name in STREAMS})


def names(log: ClientLog, *finals: Final) -> list[str]:
    return list(judge(log, dict(enumerate(finals, start=1)), RULES))


ONE = ("10-1", "1-1")
TWO = ("20-1", "1-2")


def test_what_was_acknowledged_must_be_there() -> None:
    log = ClientLog([add(1, "1-1", "10-1"), add(2, "1-2", "20-1"), add(3, "1-3", outcome=UNKNOWN)])
    assert names(log, regions({"keep-0": [ONE, TWO]})) == []
    assert names(log, regions({"keep-0": [ONE, TWO, ("30-1", "1-3")]})) == []
    assert names(log, regions({"keep-0": [ONE]})) == ["lost"]
    assert names(log, regions({"keep-0": [ONE, TWO, ("30-1", "1-2")]})) == ["duplicated", "reordered"]
    assert names(log, regions({"keep-0": [("10-1", "1-2"), ("20-1", "1-1")]})) == ["reordered"]
    assert names(log, regions({"keep-0": [ONE, TWO, ("40-1", "1-9")]})) == ["invented"]


def test_a_refused_entry_must_not_be_there() -> None:
    log = ClientLog([add(1, "1-1", "OOM", outcome=REFUSED)])
    assert names(log, regions({})) == []
    assert names(log, regions({"keep-0": [ONE]})) == ["invented"]


def test_regions_must_agree_on_entries_and_groups() -> None:
    log = ClientLog([add(1, "1-1", outcome=UNKNOWN)])
    assert names(log, regions({}), regions({"keep-0": [ONE]})) == ["diverged"]
    assert names(log, regions({}), regions({}, ("g",))) == ["diverged"]


@pytest.mark.parametrize(("outcome", "wrong"), [(ACKED, ["resurrected"]), (UNKNOWN, [])])
def test_a_deleted_entry_must_be_gone_if_the_deletion_was_acknowledged(
    outcome: str, wrong: list[str]
) -> None:
    deletion = Op("xdel", "prune-0", 2, "10-1", 2, 2.1, outcome, "1")
    log = ClientLog([add(1, "1-1", "10-1", stream="prune-0"), deletion])
    assert names(log, regions({"prune-0": [ONE]})) == wrong
    assert names(log, regions({})) == []


def test_del_takes_what_its_region_had_and_nothing_that_came_later() -> None:
    early, late = add(1, "1-1", "10-1", stream="drop-0"), add(9, "1-2", "20-1", stream="drop-0")
    apart = add(1, "2-1", "15-2", stream="drop-0")  # in another region: perhaps seen, perhaps not
    log = ClientLog([early, late, apart, Op("del", "drop-0", 1, "", 5, 5.1, ACKED, "1")])
    assert names(log, regions({"drop-0": [TWO]})) == []
    assert names(log, regions({"drop-0": [("15-2", "2-1"), TWO]})) == []
    assert names(log, regions({"drop-0": [ONE, TWO]})) == ["resurrected"]
    assert names(log, regions({"drop-0": []})) == ["lost"]


def test_of_a_trimmed_stream_the_newest_must_be_there() -> None:
    ops = [add(at, f"1-{at}", f"{at}-1", stream="trim-0") for at in range(1, 301)]
    entries = [(op.reply, op.subject) for op in ops]
    assert names(ClientLog(ops), regions({"trim-0": entries[100:]})) == []
    assert names(ClientLog(ops), regions({"trim-0": entries[101:]})) == ["lost"]


def test_a_group_gives_every_entry_to_somebody_and_once_in_a_region() -> None:
    ops = [add(1, "1-1", "10-1", stream="jobs-0"), add(2, "1-2", "20-1", stream="jobs-0")]
    given = [Delivery("jobs-0", 1, "a", "10-1"), Delivery("jobs-0", 2, "b", "20-1")]
    final = regions({"jobs-0": [ONE, TWO]})
    assert names(ClientLog(ops, given), final) == []
    assert names(ClientLog(ops, given[:1]), final) == ["skipped"]
    assert names(ClientLog(ops, [*given, given[0]]), final) == ["duplicated"]


def test_what_a_server_lost_before_a_peer_knew_it_is_excused() -> None:
    log = ClientLog([add(1, "1-1", "10-1"), add(2, "1-2", "20-1")])
    lost = Loss(region=1, since=0.5, upto=3.0, known=frozenset(["1-1"]))
    assert judge(log, {1: regions({"keep-0": [ONE]})}, RULES, [lost]) == {}
    assert list(judge(log, {1: regions({})}, RULES, [lost])) == ["lost"]


def test_a_killed_primary_excuses_only_its_own_streams_and_moment() -> None:
    log = ClientLog([add(1, "1-1", "10-1"), add(2, "1-2", "20-1")])
    killed = Loss(region=1, since=1.5, upto=3.0, known=frozenset(), streams=frozenset(["keep-0"]))
    elsewhere = Loss(region=1, since=0.0, upto=3.0, known=frozenset(), streams=frozenset(["jobs-0"]))
    assert judge(log, {1: regions({"keep-0": [ONE]})}, RULES, [killed]) == {}
    assert list(judge(log, {1: regions({"keep-0": [TWO]})}, RULES, [killed])) == ["lost"]
    assert list(judge(log, {1: regions({"keep-0": [ONE]})}, RULES, [elsewhere])) == ["lost"]


def test_a_killed_primary_excuses_a_second_delivery_only_of_what_it_had_just_given_out() -> None:
    ops = [add(1, "1-1", "10-1", stream="jobs-0")]
    final = {1: regions({"jobs-0": [ONE]})}
    given = [Delivery("jobs-0", 1, who, "10-1", began=at, ended=at + 0.1) for who, at in (("a", 2), ("b", 9))]
    for since, wrong in ((1.5, []), (2.5, ["duplicated"])):
        killed = Loss(1, since, 3.0, frozenset(), streams=frozenset(["jobs-0"]))
        assert list(judge(ClientLog(ops, given), final, RULES, [killed])) == wrong


def test_one_id_for_two_entries_is_minted_twice_unless_the_first_was_lost() -> None:
    log = ClientLog([add(1, "1-1", "10-1"), add(9, "1-2", "10-1")])
    final = {1: regions({"keep-0": [("10-1", "1-2")]})}
    assert set(judge(log, final, RULES)) == {"generated twice", "lost"}
    lost = Loss(region=1, since=0.5, upto=3.0, known=frozenset())
    assert judge(log, final, RULES, [lost]) == {}


def test_what_a_cap_removed_while_a_clock_was_wrong_is_excused() -> None:
    log = ClientLog([add(1, "1-1", "10-1", stream="trim-0"), add(5, "1-2", "20-1", stream="trim-0")])
    assert judge(log, {1: regions({"trim-0": [TWO]})}, RULES, stepped_until=3.0) == {}
    assert list(judge(log, {1: regions({"trim-0": [ONE]})}, RULES, stepped_until=3.0)) == ["lost"]
    assert names(log, regions({"trim-0": [TWO]})) == ["lost"]


def test_what_only_a_server_had_that_then_lost_it_is_excused() -> None:
    log = ClientLog([add(1, "1-1", "10-1"), add(2, "1-2", "20-1")])
    emptied = Loss(region=2, since=0.0, upto=9.0, known=frozenset(), alone=frozenset(["1-1"]))
    assert judge(log, {1: regions({"keep-0": [TWO]})}, RULES, [emptied]) == {}
    assert list(judge(log, {1: regions({"keep-0": [ONE]})}, RULES, [emptied])) == ["lost"]

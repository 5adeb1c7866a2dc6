"""Where the commands of a batch go in a cluster, and what is sent again. Without servers."""

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import AskError, ClusterDownError, MovedError, NoPermissionError, ResponseError

from braidstream.clusters import redirects as clusters_deliver
from braidstream.clusters.redirects import Patience, Round, deliver
from braidstream.plan.plan import Batch, Exchange

MOVED = MovedError("1 127.0.0.1:7001")
ASK = AskError("1 127.0.0.1:7001")
DOWN = ClusterDownError("Hash slot not served")
Answer = Callable[[Round], list[list[Any]]]


def run(batch: Batch, *answers: Answer, watching: bool = False) -> tuple[list[Round], Any]:
    """The rounds of a batch, and its replies."""
    delivery, rounds = deliver(batch, lambda _: (), Patience(), watching=watching), list[Round]()
    turn = next(delivery)
    for answer in answers:
        rounds.append(turn)
        try:
            turn = delivery.send(answer(turn))
        except StopIteration as stop:
            return rounds, stop.value
    raise AssertionError(f"{turn} is sent too")


def each(*replies: Any) -> Answer:
    """One reply for each leg."""
    return lambda turn: [[reply] for reply in replies]


def whole(*replies: Any) -> Answer:
    """All replies of the only leg."""
    return lambda turn: [list(replies)]


def test_a_multi_of_ours_does_not_end_the_watch_of_the_user() -> None:
    batch = Batch([("DEL", "{t}a", "{t}b"), ("XLEN", "{t}c")])
    [sent], _ = run(batch, whole(b"OK", b"QUEUED", b"QUEUED", [1, 2]))
    assert sent.legs[0].commands[0] == ("MULTI",)
    [sent], replies = run(batch, whole(1, 2), watching=True)
    assert sent.legs[0].commands == list(batch.commands)
    assert replies == [1, 2]


def test_replies_of_a_multi_within_a_multi_of_ours_that_was_refused_are_kept() -> None:
    batch = Batch([("DEL", "{t}a", "{t}b"), ("MULTI",), ("XADD", "{t}c", "*", "n", "1"), ("EXEC",)])
    refused, ended = NoPermissionError("no MULTI"), ResponseError("EXEC without MULTI")
    _, replies = run(batch, whole(refused, 2, b"1-1", ended))
    assert replies == [2, refused, b"1-1", ended]


def test_commands_of_a_multi_that_was_refused_follow_one_by_one_after_the_last_that_ran() -> None:
    sent = [("XADD", "a", "*", "n", str(n)) for n in range(4)]
    refused, ended = NoPermissionError("no MULTI"), ResponseError("EXEC without MULTI")
    first = whole(refused, DOWN, b"1-0", ASK, ASK, ended)
    batch = Batch(sent, atomic=True, attempt=True)
    rounds, replies = run(batch, first, whole(ASK), whole(b"", b"2-0"), whole(b"3-0"))
    assert [turn.legs[0].wire() for turn in rounds[1:]] == [[sent[2]], [("ASKING",), sent[2]], [sent[3]]]
    assert replies == [refused, DOWN, b"1-0", b"2-0", b"3-0", ended]


@pytest.mark.parametrize(
    "batch", [Batch([("XLEN", "a")], atomic=True), Exchange([("XLEN", "a")], atomic=True)]
)
def test_a_multi_that_must_be_one_does_not_follow_without_it(batch: Batch) -> None:
    refused, ended = NoPermissionError("no MULTI"), ResponseError("EXEC without MULTI")
    _, replies = run(batch, whole(refused, MOVED, ended))
    assert replies == [refused, MOVED, ended]


def test_a_command_that_is_refused_is_not_sent_after_a_later_one_that_ran() -> None:
    batch = Batch([("XADD", "a", "*", "n", "1"), ("XADD", "a", "*", "n", "2"), ("XADD", "a", "*", "n", "3")])
    rounds, replies = run(batch, whole(DOWN, b"2-0", DOWN), whole(b"3-0"))
    assert [leg.at for leg in rounds[1].legs] == [[2]]
    assert replies == [DOWN, b"2-0", b"3-0"]


def test_a_slot_may_move_after_a_long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clusters_deliver.time, "monotonic", lambda: now[0])

    def waits(reply: Any) -> Answer:
        def answer(turn: Round) -> list[list[Any]]:
            now[0] += 60
            return [[reply]]

        return answer

    batch = Batch([("XREAD", "BLOCK", "0", "STREAMS", "a", "$")], block_ms=60_000)
    rounds, replies = run(batch, waits(MOVED), waits(MOVED), waits([[b"a", []]]))
    assert [turn.moved for turn in rounds] == [[], [MOVED], [MOVED]]
    assert replies == [[[b"a", []]]]


def test_a_wait_in_several_slots_pauses_while_one_of_them_moves() -> None:
    batch = Batch([("XREAD", "BLOCK", "0", "STREAMS", "a", "b", "$", "$")], block_ms=60_000)
    rounds, _ = run(batch, each(None, ASK), each(None, [[b"b", []]]))
    assert rounds[1].is_race
    assert rounds[1].pause_s > 0


def test_patience_counts_from_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clusters_deliver.time, "monotonic", lambda: now[0])
    patience = Patience()
    now[0] = 100
    assert not patience.runs_out()
    now[0] = 114
    assert not patience.runs_out()
    now[0] = 116
    assert patience.runs_out()
    patience.start_over()
    assert not patience.runs_out()

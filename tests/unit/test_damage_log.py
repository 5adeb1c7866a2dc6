"""How often damaged streams are logged: whoever may write a stream can damage it again and again."""

import logging

import pytest

from braidstream.errors import DamagedError
from braidstream.replication.daemon.reporting import EVERY_S, DamageLog


def damaged(*names: str, field: str = "s1") -> list[DamagedError]:
    return [DamagedError(name.encode(), b"bs:meta:{x}", field.encode()) for name in names]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage().removeprefix("stream.damaged ") for record in caplog.records]
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


def test_a_damaged_stream_is_named_once_while_it_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    log = DamageLog()
    for number in range(1_000):
        log.log(damaged("a"), number * EVERY_S)
    assert lines(caplog) == ["stream=a field=s1"]


def test_many_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    DamageLog().log(damaged(*map(str, range(1_000))), 0.0)
    *named, more = lines(caplog)
    assert (len(named), more) == (20, "more=980")


def test_new_names_in_every_round_are_a_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    log, rounds = DamageLog(), 200
    for number in range(rounds):
        log.log(damaged(*(f"{number}-{each}" for each in range(50))), number * EVERY_S)
    assert len(lines(caplog)) <= 20 + rounds * EVERY_S / 60 + 1


def test_one_stream_that_is_damaged_and_mended_in_turns_is_named_once_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = DamageLog()
    for number in range(481):  # two hours
        log.log(damaged("a", field=f"s{number}") if number % 2 == 0 else [], number * EVERY_S)
    assert [line for line in lines(caplog) if "field" in line] == [
        "stream=a field=s0",
        "stream=a field=s240",
        "stream=a field=s480",
    ]

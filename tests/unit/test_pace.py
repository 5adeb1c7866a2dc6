"""How many entries a consumer takes ahead."""

from braidstream.consumers.lifecycle import Pace


def test_it_grows_with_every_entry_of_the_first_tenth_of_a_second() -> None:
    pace = Pace(0.0)
    seen = list[int]()
    for now in (0.001, 0.002, 0.004):
        pace.note(8 + pace.ahead, now)
        seen.append(pace.ahead)
    assert seen == [8, 24, 56]


def test_slow_handlers_that_end_at_the_same_moment_do_not_look_fast() -> None:
    pace = Pace(0.0)
    for second in (1.0, 2.0, 3.0):
        for _ in range(8):
            pace.note(1, second)
    assert pace.ahead <= 8


def test_it_shrinks_when_handlers_become_slow() -> None:
    pace = Pace(0.0)
    pace.note(1000, 0.1)
    for window in range(2, 20):
        pace.note(1, window / 10)
    assert pace.ahead <= 2

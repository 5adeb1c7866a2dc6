"""How a write follows the home of its log."""

import pytest

from braidstream.errors import HomeError, ReplyError
from braidstream.plan.lookup import FOLLOW_S, HomeSearch, is_elsewhere


def test_it_goes_where_it_is_told_and_waits_when_it_goes_round() -> None:
    search = HomeSearch(3, now_s=0)
    assert search.follow(HomeError("log", 1), 0) == (1, 0)
    assert search.follow(HomeError("log", 2), 0) == (2, 0)
    assert search.follow(HomeError("log", 1), 0) == (1, 0.01)
    assert search.follow(HomeError("log", 2), 1) == (2, 0)


def test_it_stays_while_a_log_is_sealed() -> None:
    search, sealed = HomeSearch(1, now_s=0), ReplyError("SEALED log 'log' is moving")
    assert is_elsewhere(sealed)
    assert search.follow(sealed, 0) == (1, 0.01)


def test_it_gives_up_with_the_error() -> None:
    search = HomeSearch(1, now_s=10)
    with pytest.raises(HomeError, match="HOME 2 log 'log' is written in region 2"):
        search.follow(HomeError("log", 2), 10 + FOLLOW_S + 0.1)

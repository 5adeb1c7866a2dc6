"""Bounded attempts: plan/retries.py."""

import pytest

from braidstream.errors import LibraryError, ReplyError
from braidstream.plan.retries import Retries


def attempts(retries: Retries) -> int:
    count = 0
    try:
        while True:
            retries.count()
            count += 1
    except ReplyError:
        return count


def test_after_so_many_attempts_comes_an_error_that_says_what_to_do() -> None:
    retries = Retries("others kept deleting it", most=3)
    assert [retries.count() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ReplyError, match=r"^ERR others kept deleting it\. Try again\.$"):
        retries.count()


def test_progress_starts_the_count_over() -> None:
    retries = Retries("it is stuck", most=3)
    retries.count()
    retries.count()
    retries.reset()
    assert attempts(retries) == 3


def test_the_error_can_be_another_one() -> None:
    retries = Retries("others kept changing it", most=0, error=LibraryError)
    with pytest.raises(LibraryError, match="others kept changing it"):
        retries.count()

"""When a link compares a stream after new entries: soon if few streams wait for that, else spaced."""

from braidstream.replication.daemon.carrier import CHECKS, spacing_s
from braidstream.replication.daemon.queue import AT_ONCE


def test_as_many_streams_as_a_link_works_on_at_once_wait_no_longer() -> None:
    assert spacing_s(0) == spacing_s(AT_ONCE) == 0.0


def test_a_link_makes_no_more_checks_in_a_second_however_many_streams_wait() -> None:
    """If so many streams wait so long each, that many are due in a second."""
    for waiting in (2 * AT_ONCE, 200, 1_000):
        assert (waiting - AT_ONCE) / spacing_s(waiting) == CHECKS

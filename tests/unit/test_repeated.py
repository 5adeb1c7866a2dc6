"""Trouble that goes on fills no log."""

import asyncio
import logging
from typing import Any

import pytest

from braidstream.errors import ReplyError
from braidstream.observability.events import Repeated
from braidstream.replication.daemon.peer import Peer


def test_the_same_trouble_is_one_line_a_minute_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "braidstream")
    trouble = Repeated()
    for second in range(125):
        trouble.log("link.lost", 1000.0 + second, peer="eu", why=f"127.0.0.1:{40000 + second} refused")
    assert caplog.messages == [
        'link.lost peer=eu why="127.0.0.1:40000 refused"',
        'link.lost peer=eu why="127.0.0.1:40060 refused" times=61 down_s=60',
        'link.lost peer=eu why="127.0.0.1:40120 refused" times=121 down_s=120',
    ]
    assert trouble.over(1130.0) == {"times": 125, "down_s": 130.0}
    assert trouble.over(1131.0) == {}


def test_another_reason_is_logged_at_once_but_not_more_than_one_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "braidstream")
    trouble = Repeated()
    for tenth in range(20):
        trouble.log("link.refused", 1000.0 + tenth / 10, peer="eu", why="OOM" if tenth % 2 else "NOPERM")
    assert len(caplog.messages) == 2


def test_reasons_that_take_turns_are_logged_once_a_minute_each_and_only_a_few(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trouble = Repeated()
    with caplog.at_level(logging.INFO, logger="braidstream"):
        for second in range(50):
            trouble.log("link.lost", second, why="reset" if second % 2 else "no answer")
        assert len(caplog.records) == 2
        for second in range(50, 59):
            trouble.log("link.refused", second, why="stream-" + chr(65 + second))
        assert len(caplog.records) == 3
        trouble.log("link.lost", 120, why="reset")
        assert len(caplog.records) == 4


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("LOADING Redis is loading the dataset in memory", ("link.lost", logging.WARNING)),
        ("MASTERDOWN Link with MASTER is down", ("link.lost", logging.WARNING)),
        ("ERR an unexpected reply", ("link.failed", logging.ERROR)),
    ],
)
def test_a_peer_that_restarts_is_no_error(
    caplog: pytest.LogCaptureFixture, reply: str, told: tuple[str, int]
) -> None:
    caplog.set_level(logging.INFO, "braidstream")
    nowhere: Any = None

    async def answered() -> None:
        Peer(2, "eu", nowhere).down(ReplyError(reply), nowhere)

    asyncio.run(answered())
    [record] = caplog.records
    assert (record.getMessage().split()[0], record.levelno) == told

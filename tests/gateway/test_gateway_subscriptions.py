"""SUBSCRIBE at an engine that refuses other commands at the moment."""

import shutil

import pytest

from tests.support.gateways import Line, Served
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("sound")


def test_a_client_subscribes_while_the_disk_is_broken(flavour: Flavour) -> None:
    with Engine(flavour) as engine, engine.client() as operator:
        become(engine)
        shutil.rmtree(engine.directory)
        operator.config_set("save", "1 1")
        operator.set("plain", 1)
        with Served(engine.url) as gateway, Line(gateway.port) as old, Line(gateway.port) as new:
            new.say("HELLO 3")
            eventually(
                lambda: old.say("PING").startswith(b"-MISCONF"), within_s=30, why="a snapshot should fail"
            )
            for line in (old, new):
                assert b"$9\r\nsubscribe\r\n$1\r\na\r\n" in line.say("SUBSCRIBE a b")
                assert b"$9\r\nsubscribe\r\n$1\r\nb\r\n" in line.read()
                assert line.say("PING").startswith(b"-MISCONF")
                assert b"$11\r\nunsubscribe\r\n" in line.say("UNSUBSCRIBE b")
            assert operator.publish("a", "news") == 2
            for line in (old, new):
                assert b"$7\r\nmessage\r\n$1\r\na\r\n$4\r\nnews\r\n" in line.read()


def test_a_client_that_subscribes_while_a_script_runs_gets_one_error_and_goes_on(engine: Engine) -> None:
    become(engine)
    with (
        engine.client() as operator,
        Served(engine.url) as gateway,
        Line(gateway.port) as line,
        Line(engine.port) as other,
        Line(engine.port) as judge,
    ):
        assert line.say("PING") == b"+PONG\r\n"
        operator.config_set("busy-reply-threshold", 1)
        other.send("EVAL", "while true do end", 0)
        try:
            eventually(
                lambda: judge.say("PING").startswith(b"-BUSY"), within_s=20, why="the script should run"
            )
            assert line.say("SUBSCRIBE a").startswith(b"-BUSY")
        finally:
            assert judge.say("SCRIPT KILL") == b"+OK\r\n"
            assert other.read().startswith(b"-")
            operator.config_set("busy-reply-threshold", 5_000)
        assert line.say("PING") == b"+PONG\r\n"
        assert b"$9\r\nsubscribe\r\n" in line.say("SUBSCRIBE a")

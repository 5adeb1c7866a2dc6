"""An engine killed and started again under load: errors, never another client's reply, nothing lost."""

import threading
import time
from collections import Counter

import pytest

from tests.support.gateways import Line, Served, value_of
from tests.support.regions import become
from tests.support.servers import Engine, Flavour
from tests.support.waiting import eventually

pytestmark = pytest.mark.long

CLIENTS = 12
RESTARTS = 2


class Worker:
    """Appends and echoes unique values, and records the replies."""

    def __init__(self, port: int, who: int) -> None:
        self.port, self.who, self.number = port, who, 0
        self.acknowledged, self.wrong, self.told = list[bytes](), list[bytes](), Counter[str]()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with Line(self.port) as line:
                    while not self.stop.is_set() and self.talk(line):
                        pass
            except OSError:
                self.told["disconnected"] += 1
                time.sleep(0.01)

    def talk(self, line: Line) -> bool:
        self.number += 1
        token = f"{self.who}-{self.number}"
        if self.number % 3 == 0:
            reply = line.say("ECHO", token)
            right = reply == b"$%d\r\n%b\r\n" % (len(token), token.encode())
        else:
            reply = line.say("XADD", "s", "*", "token", token)
            right = reply.startswith(b"$")
            if right:
                self.acknowledged.append(value_of(reply))
        if reply.startswith(b"-"):
            self.told["error"] += 1
        elif reply and not right:
            self.wrong.append(reply)
        return bool(reply)


def test_an_engine_restarted_under_load_mixes_nothing_up_and_loses_nothing(flavour: Flavour) -> None:
    with Engine(flavour, args=["--appendonly", "yes", "--appendfsync", "always"]) as engine:
        become(engine)
        with Served(engine.url) as gateway:
            workers = [Worker(gateway.port, who) for who in range(CLIENTS)]
            for worker in workers:
                worker.thread.start()
            for _ in range(RESTARTS):
                before = [len(worker.acknowledged) for worker in workers]
                eventually(
                    lambda before=before: all(
                        len(worker.acknowledged) > count + 20
                        for worker, count in zip(workers, before, strict=True)
                    ),
                    within_s=30,
                    why="every client should append again",
                )
                engine.kill()
                engine.start()
            for worker in workers:
                worker.stop.set()
                worker.thread.join(20)
            assert [worker.wrong for worker in workers] == [[]] * CLIENTS
            assert sum(worker.told.total() for worker in workers) > 0, "nobody noticed the restart"
            with Line(gateway.port) as line:
                stored = {entry: fields for entry, fields in value_of(line.say("XRANGE s - +"))}
            for worker in workers:
                for entry in worker.acknowledged:
                    assert stored[entry][1].startswith(b"%d-" % worker.who)

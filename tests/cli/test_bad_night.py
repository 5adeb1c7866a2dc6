"""One fault after the other in two regions: the first `braid status` names it, with what to type.

Faults that other tests have: a cut link, a hung daemon, a clock, full memory, no daemon, a replica, an empty
server (test_status.py, test_sick_regions.py).
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from braidstream.errors import BraidError
from tests.cli.test_probes import metrics
from tests.support.cli import braid
from tests.support.daemons import Daemon, numbered, write_config
from tests.support.limited_rights import OWN, PEER
from tests.support.matrix import installed
from tests.support.regions import client_of
from tests.support.servers import NEWEST, Engine
from tests.support.waiting import eventually

WITHIN_S = 60
RIGHTS = [*dict.fromkeys([*OWN, *PEER])]


class Night:
    """Two regions. Each has a file of its own, and a daemon whose user `link` has the guide's rights."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.engines = [stack.enter_context(Engine(installed(NEWEST[0]))) for _ in range(2)]
        self.urls = numbered(self.engines)
        for engine in self.engines:
            self.acl(engine, "on", ">secret", *RIGHTS)
        link = {number: url.replace("//", "//link:secret@", 1) for number, url in self.urls.items()}
        self.status_file = write_config(folder / "status.toml", link)
        self.files = [write_config(folder / f"braid-{number}.toml", link) for number in link]
        self.daemons = [
            stack.enter_context(Daemon(file, f"region-{number}", "--listen", "0"))
            for number, file in enumerate(self.files, start=1)
        ]
        for daemon in self.daemons:
            daemon.tells("daemon.ready", within_s=WITHIN_S)

    def acl(self, engine: Engine, *words: str) -> None:
        with engine.client() as operator:
            operator.execute_command("ACL", "SETUSER", "link", *words)

    def type(self, number: int, *words: str) -> None:
        with self.engines[number - 1].client() as operator:
            operator.execute_command(*words)

    def write(self) -> None:
        """Something to replicate, and acknowledgements, in both regions."""
        for engine in self.engines:
            with client_of(engine) as client:
                client.xadd("orders", {"n": 1})

    def write_if_possible(self) -> None:
        with suppress(redis.RedisError, BraidError):
            self.write()

    def problems(self) -> list[dict[str, Any]]:
        done = braid("status", "--config", str(self.status_file), "--json")
        found: list[dict[str, Any]] = json.loads(done.stdout)["problems"]
        assert done.returncode == bool(found)
        return found

    def metrics(self, number: int) -> dict[str, float]:
        return metrics(self.listens(number))

    def listens(self, number: int) -> str:
        return re.findall(r"daemon.listening .*metrics=(\S+)", self.daemons[number - 1].text)[-1]


@pytest.fixture
def night(tmp_path: Path) -> Iterator[Night]:
    with ExitStack() as stack:
        yield Night(stack, tmp_path)


@dataclass(frozen=True)
class Fault:
    """kind, where, fix: what status says; fix is a part of the advice. alone: it says nothing else."""

    what: str
    do: Callable[[Night], None]
    undo: Callable[[Night], None]
    kind: str
    where: str
    fix: str
    alone: bool = True


def include(night: Night) -> None:
    path = night.files[0]
    path.write_text(
        path.read_text().replace('name = "region-1"', 'name = "region-1"\ninclude = ["payment*"]')
    )


def change_password(night: Night) -> None:
    night.acl(night.engines[1], ">new", "<secret")
    night.type(2, "CLIENT", "KILL", "USER", "link")


def restore_files(night: Night) -> None:
    for path in night.files:
        path.write_text(night.status_file.read_text())


FAULTS = (
    Fault(
        "a right is taken away",
        lambda night: night.acl(night.engines[1], "-xadd"),
        lambda night: night.acl(night.engines[1], "+xadd"),
        "refused",
        "region-1 -> region-2",
        "ACL SETUSER USER +xadd",
    ),
    Fault(
        "include in one file",
        include,
        restore_files,
        "files",
        "region-1",
        "Copy one file to all hosts",
    ),
    Fault(
        "a file that is no TOML",
        lambda night: night.files[0].write_text("[[region]"),  # type: ignore[arg-type, return-value]
        restore_files,
        "file",
        "region-1",
        "Correct the file on that host",
    ),
    Fault(
        "FUNCTION FLUSH",
        lambda night: night.type(2, "FUNCTION", "FLUSH"),
        lambda night: braid("init", "--url", night.urls[2], "--region", "2", "--name", "region-2"),  # type: ignore[arg-type, return-value]
        "functions",
        "region-2",
        "braid init --url URL --region 2 --name region-2",
    ),
    Fault(
        "too few replicas",
        lambda night: night.type(2, "CONFIG", "SET", "min-replicas-to-write", "1"),
        lambda night: night.type(2, "CONFIG", "SET", "min-replicas-to-write", "0"),
        "noreplicas",
        "region-2",
        "CONFIG SET min-replicas-to-write 0",
        alone=False,
    ),
    Fault(
        "the password is changed",
        change_password,
        lambda night: night.acl(night.engines[1], ">secret"),
        "misconfigured",
        "region-1 -> region-2",
        "ACL SETUSER USER >PASSWORD",
        alone=False,
    ),
    Fault(
        "FLUSHALL",  # the last one: nothing puts it right here
        lambda night: night.type(2, "FLUSHALL"),
        lambda night: night.daemons[1].tells("region.lost"),  # type: ignore[arg-type, return-value]
        "noregion",
        "region-2",
        "braid region rejoin region-2",
        alone=False,
    ),
)  # fmt: skip


@pytest.mark.timeout(6 * WITHIN_S)
def test_each_fault_of_a_bad_night_is_named_with_what_to_type(night: Night) -> None:
    for fault in FAULTS:
        night.write()
        eventually(lambda: not night.problems(), within_s=WITHIN_S, why=f"all is well before {fault.what!r}")
        fault.do(night)
        seen = list[dict[str, Any]]()

        def is_named(fault: Fault = fault, seen: list[dict[str, Any]] = seen) -> bool:
            night.write_if_possible()
            seen[:] = night.problems()
            return (fault.kind, fault.where) in {(each["kind"], each["where"]) for each in seen}

        eventually(is_named, within_s=WITHIN_S, why=f"status names {fault.what!r}")
        [named] = [each for each in seen if (each["kind"], each["where"]) == (fault.kind, fault.where)]
        assert fault.fix in named["fix"], fault.what
        assert len(seen) == 1 or not fault.alone, (fault.what, seen)
        fault.undo(night)

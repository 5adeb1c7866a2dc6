"""One fault after the other in two regions: the first `braid status` that finds anything names it.

It also says what to type.
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
from tests.support.daemons import IMPATIENT, Daemon, numbered, write_config
from tests.support.limited_rights import OWN, PEER
from tests.support.matrix import installed
from tests.support.proxy import Proxy
from tests.support.regions import client_of
from tests.support.servers import NEWEST, Engine
from tests.support.waiting import eventually

WITHIN_S = 60
RIGHTS = [*dict.fromkeys([*OWN, *PEER])]


class Night:
    """Two regions. Each has a file of its own, and a daemon whose user `link` has the guide's rights."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.engines = [stack.enter_context(Engine(installed(NEWEST[0]), clock_s=0)) for _ in range(2)]
        self.line = stack.enter_context(
            Proxy(self.engines[1].port)
        )  # from the daemon of region 1 to region 2
        self.urls = numbered(self.engines)
        for engine in self.engines:
            self.acl(engine, "on", ">secret", *RIGHTS)
        link = {number: url.replace("//", "//link:secret@", 1) for number, url in self.urls.items()}
        self.status_file = write_config(folder / "status.toml", link)
        through = {**link, 2: link[2].replace(f":{self.engines[1].port}", f":{self.line.port}")}
        self.files = [
            write_config(folder / "braid-1.toml", through),
            write_config(folder / "braid-2.toml", link),
        ]
        self.texts = [path.read_text() for path in self.files]
        self.daemons = [
            stack.enter_context(Daemon(file, f"region-{number}", "--listen", "0", env=IMPATIENT))
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
    for path, text in zip(night.files, night.texts, strict=True):
        path.write_text(text)


def fill_disk(night: Night) -> None:
    """As a full disk: the server cannot write its file, and accepts nothing."""
    (night.engines[1].directory / "dump.rdb").mkdir()
    night.type(2, "CONFIG", "SET", "save", "3600 1000000")
    night.type(2, "BGSAVE")


def free_disk(night: Night) -> None:
    (night.engines[1].directory / "dump.rdb").rmdir()
    with night.engines[1].client() as operator:
        operator.bgsave()
        eventually(
            lambda: operator.info("persistence")["rdb_last_bgsave_status"] == "ok",
            within_s=WITHIN_S,
            why="the disk is free",
        )


def cut_line(night: Night) -> None:
    night.line.cut_off()


def mix_up_urls(night: Night) -> None:
    """The url of region 2 leads to region 1."""
    path, port = night.files[0], night.engines[0].port
    path.write_text(path.read_text().replace(f":{night.line.port}", f":{port}"))


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
        "unreachable",
        "region-2",
        "ACL SETUSER USER >PASSWORD",
        alone=False,
    ),
    Fault(
        "memory is full",
        lambda night: night.type(2, "CONFIG", "SET", "maxmemory", "1mb"),
        lambda night: night.type(2, "CONFIG", "SET", "maxmemory", "0"),
        "full",
        "region-2",
        "CONFIG SET maxmemory",
        alone=False,
    ),
    Fault(
        "the disk is full",
        fill_disk,
        free_disk,
        "disk",
        "region-2",
        "df -h",
        alone=False,
    ),
    Fault(
        "a server hangs",
        lambda night: night.engines[1].pause(),
        lambda night: night.engines[1].resume(),
        "unreachable",
        "region-2",
        "redis-cli -u URL ping",
        alone=False,
    ),
    Fault(
        "the network is cut in one direction",
        cut_line,
        lambda night: night.line.open(),
        "link",
        "region-1 -> region-2",
        "redis-cli -u URL ping",
    ),
    Fault(
        "a clock is 90 s ahead",
        lambda night: night.engines[1].set_clock(90),
        lambda night: night.engines[1].set_clock(0),
        "clock",
        "region-2",
        "chronyc tracking",
        alone=False,
    ),
    Fault(
        "a daemon does not start",
        lambda night: night.daemons[0].kill(),
        lambda night: night.daemons[0].start(),
        "daemon",
        "region-1",
        "braid replicate --region region-1",
    ),
    Fault(
        "a url in one file leads to another region",
        mix_up_urls,
        restore_files,
        "misconfigured",
        "region-1 -> region-2",
        "Correct the file",
    ),
    Fault(
        "a server became a replica",
        lambda night: night.type(2, "REPLICAOF", "127.0.0.1", "1"),
        lambda night: night.type(2, "REPLICAOF", "NO", "ONE"),
        "replica",
        "region-2",
        "REPLICAOF NO ONE",
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

        def is_found(seen: list[dict[str, Any]] = seen) -> bool:
            night.write_if_possible()
            seen[:] = night.problems()
            return any("Wait a few seconds" not in each["fix"] for each in seen)  # then one looks again

        eventually(is_found, within_s=WITHIN_S, why=f"status finds {fault.what!r}")
        named = next(
            (each for each in seen if (each["kind"], each["where"]) == (fault.kind, fault.where)), None
        )
        assert named is not None, (fault.what, seen)
        assert fault.fix in named["fix"], fault.what
        assert len(seen) == 1 or not fault.alone, (fault.what, seen)
        fault.undo(night)

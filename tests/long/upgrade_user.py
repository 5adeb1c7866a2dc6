"""A program that uses a region during an upgrade, with the braidstream of its PYTHONPATH, until STOP exists.

    append URL NAME LOG STOP     NAME-1, NAME-2, ...: each acknowledged one is a line of the log
    gateway URL NAME LOG STOP    the same by redis-py at a gateway, sent again until it is there
    consume URL NAME LOG STOP    as the group NAME: each entry is a line of the log

An error that its user must handle is a line that begins with ERROR.
"""

import sys
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import braidstream

STREAM = "orders"


def main() -> None:
    role, url, name, log, stop = sys.argv[1:]
    work = {"append": append, "gateway": through_gateway, "consume": consume}[role]
    kind = redis.Redis if role == "gateway" else braidstream.Redis
    with (
        kind.from_url(url, decode_responses=True, protocol=2) as client,
        open(log, "a", buffering=1) as out,
    ):
        for each in work(client, name, Path(stop)):
            print(each, file=out)


def append(client: Any, name: str, stop: Path) -> Any:
    number = 0
    while not stop.exists():
        number += 1
        try:
            client.xadd(STREAM, {"n": f"{name}-{number}"})
            yield f"{name}-{number}"
        except Exception as error:
            yield f"ERROR {error!r}"
        time.sleep(0.005)


def through_gateway(client: Any, name: str, stop: Path) -> Any:
    client.set_retry(Retry(NoBackoff(), 0))
    number = 0
    while not stop.exists():
        number += 1
        words = ("XADD", STREAM, "IDMP", name, number, "*", "n", f"{name}-{number}")
        while True:
            try:
                client.execute_command(*words)
                yield f"{name}-{number}"
                break
            except redis.ConnectionError:
                time.sleep(0.02)
            except Exception as error:
                yield f"ERROR {error!r}"
                return
        time.sleep(0.005)


def consume(client: Any, name: str, stop: Path) -> Any:
    client.xgroup_create(STREAM, name, id="0", mkstream=True)
    while True:
        try:
            found = client.xreadgroup(name, "c", {STREAM: ">"}, count=50, block=200)
            if not found and stop.exists():
                return
            entries = [entry for _, some in found for entry in some]
            for _, fields in entries:
                yield fields["n"]
            if entries:
                client.xack(STREAM, name, *(entry for entry, _ in entries))
        except Exception as error:
            yield f"ERROR {error!r}"
            return


if __name__ == "__main__":
    main()

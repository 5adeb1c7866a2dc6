"""A consumer of a group by hand, with the commands of redis-py only. worker.py does more with less.

- Lost connection: it waits and reconnects.
- Crashed consumer: it takes over entries that have been pending for a minute.
- Entry that cannot be handled: after five deliveries it moves the entry to example:orders:failed.
- SIGTERM or Ctrl-C: it finishes the current entry and stops.
"""

import os
import signal
import sys
import time
from typing import Any

import braidstream as redis

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
STREAM, GROUP, FAILED = "example:orders", "example:billing", "example:orders:failed"
NAME = f"worker-{os.getpid()}"
ABANDONED_MS = int(os.environ.get("ABANDONED_MS", "60000"))
DELIVERIES = 5

stopping = False


def stop(*_: Any) -> None:
    global stopping
    stopping = True


def handle(fields: dict[str, str]) -> None:
    """Your work. It may run twice for one entry: after a crash, and after a lost acknowledgement."""
    print(f"order {fields['order']}: {int(fields['amount'])} charged", flush=True)


def take(client: redis.Redis) -> list[Any]:
    """Return entries that others left pending, else new ones. Wait at most a second, to react to signals."""
    _, abandoned, *_ = client.xautoclaim(STREAM, GROUP, NAME, min_idle_time=ABANDONED_MS, count=10)
    if abandoned:
        return abandoned
    found = client.xreadgroup(GROUP, NAME, {STREAM: ">"}, count=10, block=1000)
    return found[0][1] if found else []


def deliveries(client: redis.Redis, entry: str) -> int:
    [pending] = client.xpending_range(STREAM, GROUP, entry, entry, 1)
    return int(pending["times_delivered"])


def work(client: redis.Redis) -> None:
    for entry, fields in take(client):
        if stopping:
            return  # another consumer will take over the rest
        try:
            handle(fields)
        except Exception as error:
            if deliveries(client, entry) < DELIVERIES:
                print(f"{entry} failed, will be retried: {error!r}", file=sys.stderr)
                continue  # it stays pending until a consumer takes it over
            with client.pipeline() as pipe:  # both or neither
                pipe.xadd(FAILED, {**fields, "why": repr(error)})
                pipe.xack(STREAM, GROUP, entry)
                pipe.execute()
            print(f"{entry} moved to {FAILED}: {error!r}", file=sys.stderr)
        else:
            client.xack(STREAM, GROUP, entry)


def main() -> None:
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with redis.from_url(URL, decode_responses=True) as client:
        try:
            client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):  # the group exists already
                raise
        while not stopping:
            try:
                work(client)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                print(f"no connection, retrying: {error}", file=sys.stderr)
                time.sleep(1)
    print("stopped", flush=True)


if __name__ == "__main__":
    main()

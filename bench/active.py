"""Part of `make bench-many`: many streams that get an entry now and then, at one of RATES a second in all.

writer   XADD stream 17   XADD stream 80,311   XADD stream 4,012 ...    one entry each, with its time
reader   blocked in XREAD on SAMPLE of the streams, in another region: how old are the entries?
"""

import random
import statistics
import threading
import time
from collections.abc import Iterable, Iterator

from redis import Redis

from braidstream.model import keys

SAMPLE = 500
RATES = (2_000, 10_000)
SECONDS = 20.0
PAUSE_S = 0.005


def write_once(writer: Redis, numbers: Iterable[int]) -> None:
    """One entry for each of these streams, by a client, as users do: 500 in one pipeline."""
    pipe = writer.pipeline(transaction=False)
    for number in numbers:
        pipe.xadd(f"stream-{number}", {"field": "value-0123456789"})
        if len(pipe) == 500:
            pipe.execute()
    pipe.execute()


def ages(writer: Redis, target: Redis, streams: int, rate: int) -> tuple[float, float]:
    """p50 and p99 in milliseconds, from before XADD until a reader has the entry.

    writer: our client in the first region. target: a bare one in another.
    """
    watched = random.sample(range(streams), min(SAMPLE, streams))
    last = {_strand(number): b"0-0" for number in watched}
    found, done = list[float](), threading.Event()

    def read() -> None:
        while not done.is_set():
            reply = target.execute_command("XREAD", "BLOCK", 200, "STREAMS", *last, *last.values())
            now = time.time()
            for key, entries in _by_stream(reply):
                last[key] = entries[-1][0]
                found.extend(now - float(fields[b"t"]) for _, fields in entries if b"t" in fields)

    for key in last:  # start after the present last entry
        tail = target.execute_command("XREVRANGE", key, "+", "-", "COUNT", 1)
        last[key] = tail[0][0] if tail else last[key]
    reader = threading.Thread(target=read)
    reader.start()
    try:
        wanted = _write(writer, streams, rate, {*watched})
        until = time.monotonic() + 120
        while len(found) < wanted:
            if time.monotonic() > until:
                raise TimeoutError(f"{wanted - len(found)} of {wanted} entries have not arrived")
            time.sleep(0.05)
    finally:
        done.set()
        reader.join()
    cuts = statistics.quantiles(found, n=100)
    return cuts[49] * 1000, cuts[98] * 1000


def _write(writer: Redis, streams: int, rate: int, watched: set[int]) -> int:
    """Returns how many entries the watched streams got."""
    began, sent, wanted = time.monotonic(), 0, 0
    while (passed := time.monotonic() - began) < SECONDS:
        pipe = writer.pipeline(transaction=False)
        for number in random.choices(range(streams), k=int(passed * rate) - sent):
            pipe.xadd(f"stream-{number}", {"t": repr(time.time())})
            if number in watched:
                wanted += 1
        sent += len(pipe.execute())
        time.sleep(PAUSE_S)
    return wanted


def _strand(number: int) -> bytes:
    """Of the first region's writer."""
    return keys.strand(f"stream-{number}".encode(), keys.GENERATED, 1)


def _by_stream(reply: object) -> Iterator[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    pairs: Iterable = reply.items() if isinstance(reply, dict) else reply or ()  # type: ignore[type-arg]
    for key, entries in pairs:
        yield key, entries[0] if isinstance(reply, dict) else entries

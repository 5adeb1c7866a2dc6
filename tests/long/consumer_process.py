"""A worker that tests kill: `python -m tests.long.consumer_process URL LOG concurrency=1 ...`.

What happens to an entry is written in it: "raise 2" raises in its first two attempts, "hang 1" hangs in its
first, "kill 1" kills the process with SIGKILL. Each start and each success is one line of the log.
"""

import os
import signal
import sys
import threading
import time

import braidstream

STREAM, GROUP, RETRIES = "work", "workers", 4
TIMEOUT_S, CLAIM_AFTER_S = 1.0, 3.0


def main() -> None:
    url, log, *options = sys.argv[1:]
    chosen = {name: int(value) for name, value in (option.split("=") for option in options)}
    key = "key" if chosen.pop("ordered") else None
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(what: str, message: braidstream.Message) -> None:
        line = f"{time.monotonic_ns()} {what} {message.id} {message.attempt} {message['key']}\n"
        os.write(out, line.encode())

    with braidstream.Redis.from_url(url) as client:
        consumer = braidstream.Consumer(
            client,
            STREAM,
            group=GROUP,
            attempts=RETRIES,
            key=key,
            timeout=TIMEOUT_S,
            claim_after=CLAIM_AFTER_S,
            backoff=0.05,
            max_backoff=0.5,
            concurrency=chosen["concurrency"],
            prefetch=chosen["prefetch"],
        )

        @consumer.handler
        def handle(message: braidstream.Message) -> None:
            note("start", message)
            fate, times = message["fate"].split()
            if message.attempt <= int(times):
                if fate == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if fate == "hang":
                    threading.Event().wait()
                raise ValueError(fate)
            note("ok", message)

        consumer.run()


if __name__ == "__main__":
    main()

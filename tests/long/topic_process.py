"""A consumer of a topic that tests kill and freeze: `python -m tests.long.topic_process URL LOG SESSION`.

Each start and each success of a handler is one line of the log.
"""

import os
import random
import sys
import time

import braidstream
from braidstream.consumers import team

TOPIC, GROUP = "orders", "billing"


def main() -> None:
    url, log, session = sys.argv[1:]
    team.SESSION_S = float(session)  # type: ignore[misc]
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    kind = braidstream.RedisCluster if url.endswith("?cluster") else braidstream.Redis

    def note(what: str, message: braidstream.Message) -> None:
        line = f"{time.monotonic()} {os.getpid()} {what} {message.stream} {message['n']}\n"
        os.write(out, line.encode())

    with kind.from_url(url.removesuffix("?cluster"), decode_responses=True) as client:
        consumer = braidstream.Consumer(
            client, topic=TOPIC, group=GROUP, concurrency=4, stop_timeout=5, backoff=0.05
        )

        @consumer.handler
        def handle(message: braidstream.Message) -> None:
            note("start", message)
            time.sleep(random.random() * 0.02)
            if random.random() < 0.01:
                note("fail", message)
                raise ValueError("now and then")
            note("ok", message)

        consumer.run()


if __name__ == "__main__":
    main()

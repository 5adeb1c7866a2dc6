"""Append orders. With `idempotent=True` the client retries when a reply is lost, without duplicates."""

import os
import sys

import braidstream as redis
from braidstream.backoff import ExponentialBackoff
from braidstream.retry import Retry

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    client = redis.from_url(
        URL,
        decode_responses=True,
        idempotent=True,
        producer=f"shop-{os.getpid()}",  # two producers that run at once need two names
        retry=Retry(ExponentialBackoff(base=0.05, cap=1), retries=5),
    )
    with client:
        for number in range(1, count + 1):
            client.xadd("example:orders", {"order": number, "amount": 10 * number}, maxlen=100_000)
            print(f"sent order {number}")


if __name__ == "__main__":
    main()

"""Append while a region dies: the client goes to the other one, and each message is there once."""

import os
import time

import braidstream

URLS = os.environ.get("REGION_URLS", "redis://localhost:7001 redis://localhost:7002").split()
ORDERS = int(os.environ.get("ORDERS", "300"))
STREAM = "example:orders"


def main() -> None:
    client = braidstream.MultiRegion(
        URLS,
        producer="shop-1",
        failback_after=5,
        on_change=lambda old, new, why: print(old, "->", new, flush=True),
        decode_responses=True,
    )
    with client:
        client.delete(STREAM)
        for order in range(1, ORDERS + 1):
            client.xadd(STREAM, {"order": order})
            time.sleep(0.1)
        found = [int(fields["order"]) for _, fields in client.xrange(STREAM)]
        print("all there, each once:", sorted(found) == list(range(1, ORDERS + 1)))


if __name__ == "__main__":
    main()

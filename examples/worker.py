"""A worker: handles orders of a stream, several at once.

- An order that fails is tried again, later and later. After five attempts it goes to example:orders:failed.
- An order with a wrong amount goes there at once: the annotation of the handler says what an order is.
- Orders of a worker that crashed are taken over by the others.
- SIGTERM or Ctrl-C: it finishes the orders that it works on, and stops.
"""

import os
from dataclasses import dataclass

import braidstream

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")

client = braidstream.from_url(URL)
consumer = braidstream.Consumer(
    client,
    "example:orders",
    group="example:billing",
    concurrency=8,
    attempts=5,
    dead_letter="example:orders:failed",
    timeout=30,
    claim_after=float(os.environ.get("CLAIM_AFTER", "60")),
)


@dataclass
class Order:
    order: int
    amount: int


@consumer.handler
def charge(order: Order, message: braidstream.Message) -> None:
    """Your work. It may run twice for one order: after a crash, and after a lost acknowledgement."""
    print(f"order {order.order}: {order.amount} charged", flush=True)


if __name__ == "__main__":
    with client:
        consumer.run()
    print("stopped", flush=True)

"""Connect with backoff, and send a message again when its reply is lost: it is added once."""

import os

import braidstream as redis
from braidstream.backoff import ExponentialBackoff
from braidstream.retry import Retry

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
STREAM = "example:payments"


def pay(client: redis.Redis, payment: str, attempts: int = 5) -> str:
    """Return the ID of the entry. The server recognizes the message and adds it once."""
    words = ["XADD", STREAM, "IDMP", "cashier-1", payment, "*", "payment", payment]
    for attempt in range(1, attempts + 1):
        try:
            return str(client.execute_command(*words))  # with redis-py 7.2: xadd(..., idmp=(producer, name))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            print(f"attempt {attempt}: {type(error).__name__}")
    raise SystemExit("the server does not answer")


def main() -> None:
    client = redis.from_url(
        URL,
        decode_responses=True,
        socket_connect_timeout=2,
        socket_timeout=2,
        retry=Retry(ExponentialBackoff(base=0.05, cap=1), retries=3),
    )
    with client:
        client.delete(STREAM)
        first, again = pay(client, "4711"), pay(client, "4711")
        print("the same entry:", first == again)
        print("payments:", client.xlen(STREAM))


if __name__ == "__main__":
    main()

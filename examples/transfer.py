"""A pipeline, and a MULTI that changes a plain key and a stream together or not at all."""

import os

import braidstream as redis

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
BALANCE, HISTORY = "example:balance", "example:history"


def withdraw(client: redis.Redis, amount: int) -> int:
    """Return the new balance. Retry if another client changed it meanwhile."""
    while True:
        with client.pipeline() as pipe:
            try:
                pipe.watch(BALANCE)
                left = int(pipe.get(BALANCE) or 0) - amount
                if left < 0:
                    raise ValueError(f"{amount} is more than there is")
                pipe.multi()
                pipe.set(BALANCE, left)
                pipe.xadd(HISTORY, {"withdrawn": amount, "left": left})
                pipe.execute()
                return left
            except redis.WatchError:
                continue


def main() -> None:
    with redis.from_url(URL, decode_responses=True) as client:
        client.delete(HISTORY)
        client.set(BALANCE, 100)
        print("left:", withdraw(client, 30))
        try:
            withdraw(client, 100)
        except ValueError as error:
            print("refused:", error)
        with client.pipeline(transaction=False) as pipe:  # one round trip
            pipe.get(BALANCE)
            pipe.xlen(HISTORY)
            balance, length = pipe.execute()
        print(f"balance {balance}, {length} entry")


if __name__ == "__main__":
    main()

"""Two writers and a reader in one event loop."""

import asyncio
import os

import braidstream.asyncio as redis

URL = os.environ.get("REDIS_URL", "redis://localhost:6379")
STREAM = "example:feed"


async def write(client: redis.Redis, author: str) -> None:
    for number in range(1, 4):
        await client.xadd(STREAM, {"author": author, "text": f"post {number}"}, maxlen=1000)
        await asyncio.sleep(0)


async def read(client: redis.Redis, start: str, count: int) -> list[str]:
    seen: list[str] = []
    last = start
    while len(seen) < count:
        for _, entries in await client.xread({STREAM: last}, block=1000):
            seen += [f"{fields['author']}: {fields['text']}" for _, fields in entries]
            last = entries[-1][0]
    return seen


async def main() -> None:
    async with redis.from_url(URL, decode_responses=True) as client:
        newest = await client.xrevrange(STREAM, count=1)
        start = newest[0][0] if newest else "0"
        *_, seen = await asyncio.gather(
            write(client, "ada"), write(client, "grace"), read(client, start, count=6)
        )
    print("\n".join(sorted(seen)))


if __name__ == "__main__":
    asyncio.run(main())

"""Lines as they stand in real programs give the same with redis-py and with `import braidstream as redis`.

redis-py works in database 9 of the same server, which is not a region. Entry IDs differ: they are not shown.
"""

import importlib
import re
import textwrap
from typing import Any

import pytest

from tests.support.regions import become
from tests.support.servers import Engine

SNIPPETS = {
    "a client by its URL": """
        r = redis.from_url(f"redis://localhost:{PORT}/{DB}", decode_responses=True)
        r.set("k", "v")
        seen = r.get("k")
    """,
    "StrictRedis": """
        r = redis.StrictRedis("localhost", PORT, DB)
        seen = r.ping()
    """,
    "a shared pool": """
        pool = redis.ConnectionPool(host="localhost", port=PORT, db=DB, max_connections=2)
        a, b = redis.Redis(connection_pool=pool), redis.StrictRedis(connection_pool=pool)
        a.xadd("s", {"n": 1})
        seen = b.xlen("s"), isinstance(a, redis.Redis), isinstance(b, redis.client.Redis)
    """,
    "a pool that blocks": """
        pool = redis.BlockingConnectionPool(max_connections=1, timeout=5, host="localhost", port=PORT, db=DB)
        r = redis.Redis.from_pool(pool)
        seen = r.incr("n"), r.xadd("s", {"n": 1}) is not None
    """,
    "retries by modules": """
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry
        from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError
        retry = Retry(ExponentialBackoff(), 3)
        errors = [BusyLoadingError, ConnectionError, TimeoutError]
        r = redis.Redis(port=PORT, db=DB, retry=retry, retry_on_error=errors)
        seen = r.xadd("s", {"n": 1}) is not None
    """,
    "errors that are caught": """
        r = redis.Redis(port=PORT, db=DB)
        r.lpush("l", 1)
        try:
            r.xadd("l", {"n": 1})
        except redis.exceptions.ResponseError as error:
            seen = type(error).__name__, str(error)
    """,
    "a server that is not there": """
        try:
            redis.Redis(port=1, retry=None).xadd("s", {"n": 1})
        except redis.exceptions.ConnectionError as error:
            seen = isinstance(error, redis.RedisError)
    """,
    "a group that is there already": """
        r = redis.Redis(port=PORT, db=DB, decode_responses=True)
        seen = []
        for _ in range(2):
            try:
                seen.append(r.xgroup_create("s", "g", id="0", mkstream=True))
            except redis.ResponseError as error:
                seen.append(str(error).startswith("BUSYGROUP"))
    """,
    "a loop over a group": """
        r = redis.Redis(port=PORT, db=DB, decode_responses=True)
        r.xgroup_create("s", "g", mkstream=True)
        for n in range(3):
            r.xadd("s", {"n": n}, maxlen=1000, approximate=True)
        seen = []
        for stream, messages in r.xreadgroup("g", "c", {"s": ">"}, count=2, block=100):
            for message_id, data in messages:
                seen.append((stream, data, r.xack("s", "g", message_id)))
        seen.append(r.xinfo_stream("s")["length"])
    """,
    "a lock": """
        r = redis.Redis(port=PORT, db=DB)
        with r.lock("lock", timeout=5):
            seen = r.exists("lock")
    """,
    "a script": """
        r = redis.Redis(port=PORT, db=DB)
        double = r.register_script("return 2 * redis.call('INCR', KEYS[1])")
        seen = double(keys=["n"]), double(keys=["n"])
    """,
    "a transaction by a function": """
        r = redis.Redis(port=PORT, db=DB, decode_responses=True)
        def add(pipe):
            count = int(pipe.get("count") or 0)
            pipe.multi()
            pipe.set("count", count + 1)
            pipe.xlen("s")
        r.xadd("s", {"n": 1})
        seen = r.transaction(add, "count")
    """,
    "pub/sub in a thread": """
        import queue
        r, got = redis.Redis(port=PORT, db=DB, decode_responses=True), queue.Queue()
        p = r.pubsub(ignore_subscribe_messages=True)
        p.subscribe(**{f"news-{DB}": lambda message: got.put(message["data"])})
        thread = p.run_in_thread(sleep_time=0.01)
        while not r.publish(f"news-{DB}", "hello"):
            pass
        seen = got.get(timeout=5)
        thread.stop()
        thread.join()
        p.close()
    """,
    "scanning": """
        r = redis.Redis(port=PORT, db=DB, decode_responses=True)
        r.mset({"a1": 1, "a2": 2})
        r.xadd("a3", {"n": 1})
        seen = sorted(r.scan_iter("a*", count=10)), r.type("a3"), r.delete("a3"), r.exists("a3")
    """,
    "credentials": """
        provider = redis.UsernamePasswordCredentialProvider("default", "")
        seen = redis.credentials.CredentialProvider in type(provider).__mro__
    """,
    "asyncio": """
        import asyncio
        async def main():
            async with aioredis.from_url(f"redis://localhost:{PORT}/{DB}", decode_responses=True) as r:
                async with r.pipeline(transaction=True) as pipe:
                    await (pipe.set("k", "v").xadd("s", {"n": 1}).get("k").execute())
                return await r.get("k"), await r.xlen("s"), [d async for d in r.scan_iter("k")]
        seen = asyncio.run(main())
    """,
    "asyncio with a pool and retries": """
        import asyncio
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        async def main():
            pool = aioredis.ConnectionPool.from_url(f"redis://localhost:{PORT}/{DB}")
            r = aioredis.Redis.from_pool(pool)
            await r.xadd("s", {"n": 1})
            try:
                await r.execute_command("XADD", "s")
            except aioredis.ResponseError as error:
                return str(error), isinstance(Retry(NoBackoff(), 1), Retry)
            finally:
                await r.aclose()
        seen = asyncio.run(main())
    """,
}


def run(package: str, code: str, engine: Engine, db: int) -> Any:
    code = re.sub(r"\b(from|import) redis\b", rf"\1 {package}", textwrap.dedent(code))
    asyncio_half = importlib.import_module(f"{package}.asyncio")
    names = {
        "redis": importlib.import_module(package),
        "aioredis": asyncio_half,
        "PORT": engine.port,
        "DB": db,
    }
    exec(compile(code, package, "exec"), names)
    for client in (names.get("r"), names.get("a"), names.get("b")):
        if client is not None:
            client.close()
    if "pool" in names:
        names["pool"].disconnect()
    return names["seen"]


@pytest.mark.parametrize("what", SNIPPETS)
def test_a_snippet_gives_what_it_gives_with_redis_py(engine: Engine, what: str) -> None:
    become(engine)
    theirs = run("redis", SNIPPETS[what], engine, db=9)
    assert run("braidstream", SNIPPETS[what], engine, db=0) == theirs

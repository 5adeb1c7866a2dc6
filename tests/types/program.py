"""What mypy says of a program that uses braidstream. `# E:` marks a line that must be an error.

Not run: `test_types.py` gives it to mypy --strict.
"""

import braidstream as redis
import braidstream.asyncio as aredis
from braidstream.asyncio.retry import Retry as AsyncioRetry
from braidstream.backoff import ExponentialBackoff
from braidstream.exceptions import ConnectionError as Lost
from braidstream.retry import Retry

client = redis.Redis(host="localhost", port=6379, decode_responses=True)
redis.Redis("localhost", 6379, 0, "secret")
redis.Redis(prot=6379)  # E: Unexpected keyword argument "prot"
redis.Redis(port="6379")  # E: incompatible type "str"
redis.Redis(idempotent=True, producer="web-1", retry=Retry(ExponentialBackoff(), 3))
redis.Redis(idempotent="yes")  # E: incompatible type "str"
redis.StrictRedis(prot=6379)  # E: Unexpected keyword argument "prot"
redis.Redis(connection_pool=redis.ConnectionPool(host="localhost"))
aredis.Redis(port=6379, producer="web-1", idempotent=True, retry=AsyncioRetry(ExponentialBackoff(), 3))
aredis.Redis(prot=6379)  # E: Unexpected keyword argument "prot"

by_url: redis.Redis = redis.from_url("redis://localhost", decode_responses=True)
by_url_later: aredis.Redis = aredis.from_url("redis://localhost")

client.xcfgset("orders", idmp_duration=60)
client.xcfgset("orders", idmp_duration="60")  # E: incompatible type "str"
client.xcfgset("orders", duration=60)  # E: Unexpected keyword argument "duration"

several = redis.MultiRegion(["redis://localhost"])
inner = (  # what our own layers call is not offered
    client.run_plan,  # E: has no attribute "run_plan"
    client.session,  # E: has no attribute "session"
    aredis.Redis().converse,  # E: has no attribute "converse"
    redis.RedisCluster(host="localhost").nodes,  # E: has no attribute "nodes"
    several.run_plan,  # E: has no attribute "run_plan"
    several.leave,  # E: has no attribute "leave"
)
region: str = several.region

length: int = client.execute_command("XLEN", "orders")
elsewhere: int = several.execute_command("XLEN", "orders")

with client.pipeline() as pipe:
    pipe.xadd("orders", {"order": 1})

try:
    client.xadd("orders", {"order": 1})
except redis.RefusedError as refused:
    why: str = refused.text
except (redis.NotARegionError, redis.WatchError, Lost, redis.exceptions.TimeoutError):
    pass

redis.Rediss()  # E: has no attribute "Rediss"

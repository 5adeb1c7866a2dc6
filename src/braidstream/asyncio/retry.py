"""`redis.asyncio.retry` under our name."""

from redis.asyncio.retry import *  # noqa: F403

"""`redis.asyncio.connection` under our name."""

from redis.asyncio.connection import *  # noqa: F403

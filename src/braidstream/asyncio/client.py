"""`redis.asyncio.client`, with our clients in it."""

from typing import TYPE_CHECKING

import redis.asyncio.client
from redis.asyncio.client import (
    Monitor as Monitor,
    PubSub as PubSub,
    PubsubWorkerExceptionHandler as PubsubWorkerExceptionHandler,
)

from braidstream.clients.aio import Pipeline as Pipeline, Redis as Redis
from braidstream.engine.redis_py import fall_back_to

StrictRedis = Redis

if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.asyncio.client)

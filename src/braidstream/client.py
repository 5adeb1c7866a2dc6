"""`redis.client`, with our clients in it."""

from typing import TYPE_CHECKING

import redis.client
from redis.client import (
    EMPTY_RESPONSE as EMPTY_RESPONSE,
    NEVER_DECODE as NEVER_DECODE,
    AbstractRedis as AbstractRedis,
    Monitor as Monitor,
    PubSub as PubSub,
    PubSubWorkerThread as PubSubWorkerThread,
)

from braidstream.engine.redis_py import fall_back_to
from braidstream.clients.sync import Pipeline as Pipeline, Redis as Redis

StrictRedis = Redis

if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.client)

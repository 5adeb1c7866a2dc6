"""`redis.utils`, with our `from_url` in it."""

from typing import TYPE_CHECKING

import redis.utils
from redis.utils import pipeline as pipeline

from braidstream.clients.sync import Redis
from braidstream.engine.redis_py import fall_back_to

from_url = Redis.from_url

if not TYPE_CHECKING:
    __getattr__ = fall_back_to(redis.utils)

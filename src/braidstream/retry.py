"""`redis.retry` under our name."""

from redis.retry import *  # noqa: F403

"""`redis.connection` under our name."""

from redis.connection import *  # noqa: F403

"""`redis.credentials` under our name."""

from redis.credentials import *  # noqa: F403

"""`redis.backoff` under our name."""

from redis.backoff import *  # noqa: F403

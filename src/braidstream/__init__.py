"""braidstream: active-active event streams on the Redis or Valkey servers you already run."""

from braidstream.drivers.sync import Redis
from braidstream.errors import (
    BraidError,
    LibraryError,
    NotARegionError,
    RefusedError,
    RegionTakenError,
    ReplyError,
)

__all__ = [
    "BraidError",
    "LibraryError",
    "NotARegionError",
    "Redis",
    "RefusedError",
    "RegionTakenError",
    "ReplyError",
]

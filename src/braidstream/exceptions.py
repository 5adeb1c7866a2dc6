"""`redis.exceptions`, and what braidstream's clients raise besides: see `clients/raised.py`."""

from redis.exceptions import *  # noqa: F403

from braidstream.clients.raised import (
    BraidError as BraidError,
    HomeError as HomeError,
    LibraryError as LibraryError,
    NotARegionError as NotARegionError,
    RefusedError as RefusedError,
    RegionTakenError as RegionTakenError,
)

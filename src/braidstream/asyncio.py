"""The asyncio half of the public names."""

from braidstream.drivers.aio import Redis

__all__ = ["Redis"]

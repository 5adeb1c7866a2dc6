"""The event loop of gateways and daemons."""

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, as by the extras `gateway` and `replication` (docs/benchmarks.md)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop

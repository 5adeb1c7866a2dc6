"""uvicorn's protocol, which waits for a request for ever: a connection that sends none is closed here.

Only so many connections are served at once. Without this, anybody who reaches the port could take them all,
before any password.
"""

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_WITHIN_S: Final = 10.0


class Impatient(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_later()

    def _look_later(self) -> None:
        before = self.cycle
        self.loop.call_later(REQUEST_WITHIN_S, lambda: self._look(before))

    def _look(self, before: object) -> None:
        """Close if no request has come since the last look, and none is being answered."""
        if self.transport.is_closing():
            return
        if self.cycle is before and (before is None or self.cycle.response_complete):
            self.transport.close()
        else:
            self._look_later()

"""One command of a consumer, as the plan of its reply in bytes."""

from collections.abc import Callable
from typing import Any

from braidstream.commands.table import TABLE
from braidstream.protocol.carry import Carriage
from braidstream.protocol.plan import Plan
from braidstream.protocol.stream_view import View

# The streams as one command sees them.
ViewOf = Callable[[Carriage | None], View]


def command(view_of: ViewOf, *words: bytes | str | int) -> Plan[Any]:
    argv = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return TABLE[argv[0]].plan(view_of(None), argv)

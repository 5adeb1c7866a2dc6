"""How often each event was logged while a block ran."""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class _Counting(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[record.getMessage().partition(" ")[0]] += 1


@contextmanager
def counted_events() -> Iterator[Counter[str]]:
    handler, log = _Counting(), logging.getLogger("braidstream")
    log.addHandler(handler)
    try:
        yield handler.counts
    finally:
        log.removeHandler(handler)

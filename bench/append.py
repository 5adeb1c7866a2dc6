"""XADD: one by one, by asyncio, in pipelines, and with chosen IDs."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from bench.bed import Bed
from bench.measure import Case, Turn

# Both sides use a stream name of the same length, as a user would give it. Our key is longer by
# `bs:1:s:{}`: that is a cost of ours and stays in.
OURS, BARE = "orders-ours", "orders-bare"
ENTRY = {"order": "0123456789abcdef", "customer": "c-4711-0815", "amount": "129.90", "currency": "EUR"}

ONE_BY_ONE = 400
PIPELINE = 500
PIPELINES = 3


def control(bed: Bed) -> Case:
    """How far the figures can be trusted: all three should be 1.00."""
    return Case("control: XADD by redis-py against itself", _adds(bed.bare(), OURS), _adds(bed.bare(), BARE))


def one_by_one(bed: Bed) -> Case:
    return Case(
        "XADD one by one",
        _adds(bed.ours(), OURS),
        _adds(bed.bare(), BARE),
        {"rate": 0.94, "engine CPU": 1.10},
    )


def by_asyncio(bed: Bed) -> Case:
    def adds(client: Any, name: str) -> Turn:
        async def all_of_them() -> None:
            for _ in range(ONE_BY_ONE):
                await client.xadd(name, ENTRY)

        return lambda: bed.loop.run(all_of_them())

    ours, bare = adds(bed.ours_async(), OURS), adds(bed.bare_async(), BARE)
    return Case("XADD one by one, asyncio", ours, bare, {"rate": 1.0})


def in_pipelines(bed: Bed) -> Case:
    return Case(
        f"XADD in pipelines of {PIPELINE}",
        _pipelines(bed.ours(), OURS, transaction=False),
        _pipelines(bed.bare(), BARE, transaction=False),
        {"rate": 0.80, "engine CPU": 1.10},
    )


def in_transactions(bed: Bed) -> Case:
    return Case(
        f"XADD in MULTI of {PIPELINE}",
        _pipelines(bed.ours(), OURS, transaction=True),
        _pipelines(bed.bare(), BARE, transaction=True),
    )


def chosen_ids(bed: Bed) -> Case:
    """Ours is an engine function, so it costs more on both sides: only generated IDs are the hot path."""
    return Case("XADD with chosen IDs", _chosen(bed.ours(), OURS), _chosen(bed.bare(), BARE))


CASES = (control, one_by_one, by_asyncio, in_pipelines, in_transactions, chosen_ids)


def _adds(client: Any, name: str) -> Turn:
    def turn() -> None:
        for _ in range(ONE_BY_ONE):
            client.xadd(name, ENTRY)

    return turn


def _pipelines(client: Any, name: str, *, transaction: bool) -> Turn:
    def turn() -> None:
        for _ in range(PIPELINES):
            pipe = client.pipeline(transaction=transaction)
            for _ in range(PIPELINE):
                pipe.xadd(name, ENTRY)
            pipe.execute()

    return turn


def _chosen(client: Any, name: str) -> Turn:
    numbers: Iterator[int] = count(1_700_000_000_000)

    def turn() -> None:
        for _ in range(ONE_BY_ONE):
            client.xadd(name, ENTRY, id=f"{next(numbers)}-7")

    return turn

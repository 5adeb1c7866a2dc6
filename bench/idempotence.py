"""XADD of messages that the stream knows, against plain XADD of the same client; and what they weigh.

`python -m bench.idempotence [ENTRIES]` prints the memory: a stream of a million entries with and without.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from bench.append import BARE, ENTRY, ONE_BY_ONE, OURS, PIPELINE, PIPELINES
from bench.bed import NEWEST, Bed
from bench.measure import Case, Turn
from tests.support.servers import Engine, Flavour

SHORT = 40
# As long as a UUID. The last digits count.
IID = b"5f3c9a1e-7b2d-4c1f-9e0a-%012d"


def known_by_id(bed: Bed) -> Case:
    numbers, client = count(), bed.ours()
    return _one_by_one(
        bed, "XADD IDMP", lambda: client.xadd(OURS, ENTRY, idmp=("checkout-1", IID % next(numbers)))
    )


def known_with_a_peer(bed: Bed) -> Case:
    """The usual case: with peers braidstream keeps the messages, and writes a journal of them."""
    bed.meet_a_peer()
    numbers, client = count(), bed.ours()
    return _one_by_one(
        bed,
        "XADD IDMP with a peer,",
        lambda: client.xadd(OURS, ENTRY, idmp=("checkout-1", IID % next(numbers))),
    )


def known_by_content(bed: Bed) -> Case:
    numbers, client = count(), bed.ours()
    return _one_by_one(
        bed, "XADD IDMPAUTO", lambda: client.xadd(OURS, {**ENTRY, "n": next(numbers)}, idmpauto="checkout-1")
    )


def idempotent_client(bed: Bed) -> Case:
    client = bed.ours(idempotent=True, producer="checkout-1")
    return _one_by_one(bed, "XADD of an idempotent client", lambda: client.xadd(OURS, ENTRY))


def idempotent_pipelines(bed: Bed) -> Case:
    return Case(
        f"XADD of an idempotent client in pipelines of {PIPELINE}, against its plain XADD",
        _pipelines(bed.ours(idempotent=True), OURS),
        _pipelines(bed.ours(), BARE),
    )


def named_pipelines(bed: Bed) -> Case:
    """The user names each message."""
    numbers = count()
    return Case(
        f"XADD IDMP in pipelines of {PIPELINE}, against plain XADD of the same client",
        _pipelines(bed.ours(), OURS, lambda: {"idmp": ("checkout-1", IID % next(numbers))}),
        _pipelines(bed.ours(), BARE),
        {"rate": 0.65},
    )


def against_the_engine(bed: Bed) -> Case | None:
    """One region without peers, against the engine's own IDMP, where it has one."""
    if not _knows_messages(bed):
        return None
    numbers, ours, bare = count(), bed.ours(), bed.bare()

    def adds(client: Any, name: str) -> Turn:
        return _repeated(lambda: client.xadd(name, ENTRY, idmp=("checkout-1", IID % next(numbers))))

    return Case(
        "XADD IDMP one by one, against the engine's own", adds(ours, OURS), adds(bare, BARE), {"rate": 0.95}
    )


def pipelines_against_the_engine(bed: Bed) -> Case | None:
    if not _knows_messages(bed):
        return None
    numbers = count()

    def message() -> dict[str, Any]:
        return {"idmp": ("checkout-1", IID % next(numbers))}

    return Case(
        f"XADD IDMP in pipelines of {PIPELINE}, against the engine's own",
        _pipelines(bed.ours(), OURS, message),
        _pipelines(bed.bare(), BARE, message),
        {"rate": 0.95},
    )


def several_regions(bed: Bed) -> Case:
    """What MultiRegion adds to a client of one region. Turns are short: it is some microseconds."""
    bed.meet_a_peer()
    several, one = bed.several(), bed.ours(idempotent=True)

    def adds(client: Any, name: str) -> Turn:
        def turn() -> None:
            for _ in range(SHORT):
                client.xadd(name, ENTRY)

        return turn

    return Case("XADD of MultiRegion, against Redis", adds(several, OURS), adds(one, BARE), {"rate": 0.93})


def several_regions_async(bed: Bed) -> Case:
    bed.meet_a_peer()
    several, one = bed.several_async(), bed.ours_async(idempotent=True)

    def adds(client: Any, name: str) -> Turn:
        async def all_of_them() -> None:
            for _ in range(SHORT):
                await client.xadd(name, ENTRY)

        return lambda: bed.loop.run(all_of_them())

    name = "XADD of MultiRegion, against Redis, asyncio"
    return Case(name, adds(several, OURS), adds(one, BARE), {"rate": 0.93})


def _knows_messages(bed: Bed) -> bool:
    return b"xcfgset" in bed.bare().command_list()


CASES = (
    known_by_id,
    known_with_a_peer,
    known_by_content,
    idempotent_client,
    idempotent_pipelines,
    named_pipelines,
    against_the_engine,
    pipelines_against_the_engine,
    several_regions,
    several_regions_async,
)


def _repeated(what: Turn) -> Turn:
    def turn() -> None:
        for _ in range(ONE_BY_ONE):
            what()

    return turn


def _one_by_one(bed: Bed, name: str, add: Turn) -> Case:
    plain = bed.ours()
    return Case(
        f"{name} one by one, against plain XADD of the same client",
        _repeated(add),
        _repeated(lambda: plain.xadd(BARE, ENTRY)),
        {"rate": 0.95},
    )


def _pipelines(client: Any, name: str, options: Callable[[], dict[str, Any]] = dict) -> Turn:
    def turn() -> None:
        for _ in range(PIPELINES):
            pipe = client.pipeline(transaction=False)
            for _ in range(PIPELINE):
                pipe.xadd(name, ENTRY, **options())
            pipe.execute()

    return turn


def weigh(flavour: Flavour, entries: int, *, known: bool) -> tuple[int, int, int]:
    """Fill a stream; (bytes the strand has, bytes that known messages have, how many are known)."""
    with Bed(flavour) as bed:
        client, numbers = bed.ours(), count()
        for _ in range(entries // 1000):
            pipe = client.pipeline(transaction=False)
            for _ in range(1000):
                message = {"idmp": ("checkout-1", IID % next(numbers))} if known else {}
                pipe.xadd("orders", ENTRY, **message)
            pipe.execute()
        return _weights(bed.engine)


def _weights(engine: Engine) -> tuple[int, int, int]:
    with engine.client() as operator:
        mine = [key for key in operator.keys("bs:*") if b"{orders}" in key]
        weight = {key: operator.memory_usage(key, samples=0) or 0 for key in mine}
        known = [key for key in mine if key.startswith((b"bs:i.", b"bs:q.", b"bs:idmp:"))]
        held = sum(operator.llen(key) for key in known if key.startswith(b"bs:q."))
    return weight[b"bs:1:s:{orders}"], sum(weight[key] for key in known), held


def lines(entries: int) -> Iterator[str]:
    for flavour in NEWEST:
        plain, _, _ = weigh(flavour, entries, known=False)
        strand, known, held = weigh(flavour, entries, known=True)
        yield (
            f"{flavour}: {entries} entries {plain} bytes; with IDMP {strand} and {known} for {held} of them, "
            f"{known / held:.0f} each: {100 * known / strand:.3f} % more"
        )


if __name__ == "__main__":
    for line in lines(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000):
        print(line)

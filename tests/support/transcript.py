"""Play a plan without a server: left what it says, right what it hears, one dict for each round trip.

    entries = replay(read_range(remembering(S1), argv), {
        "XRANGE bs:1:s:{orders} 0-0 ...": [[b"1-0", [b"v", b"a"]]],
        "HGETALL bs:meta:{orders}": registry(S1),
    })

The plan must say exactly these words, in this order. `Atomic({...})` is a round trip in one MULTI.
"""

from typing import Any, TypeVar

from braidstream.model.region import Region
from braidstream.model.strand import Command, Strand
from braidstream.plan.plan import Batch, Plan, Replies, run
from braidstream.plan.view import View

T = TypeVar("T")


class Atomic(dict[str, Any]):
    """A round trip that nothing of others may come between."""


def registry(*strands: Strand) -> list[bytes]:
    """What the registry of a stream answers that has these strands, never cut."""
    return [word for strand in strands for word in (strand.label, b"%d:+:0-0" % strand.life)]


def remembering(*strands: Strand, id_mode: str = "strict") -> View:
    """A client of region 1 that remembers these strands, all of one stream."""
    view = View(Region(1, "us-east", 1, id_mode))
    if strands:
        view.learn(strands[0].name, registry(*strands))
    return view


def replay(plan: Plan[T], *round_trips: dict[str, Any]) -> T:
    """The plan's result, once it has said and heard every round trip."""
    left = list(round_trips)

    def send(batch: Batch) -> Replies:
        said = [text(command) for command in batch.commands]
        assert left, f"the plan should be done, but says {said}"
        expected = left.pop(0)
        assert said == list(expected), "\n".join(["the plan says", *said, "and should say", *expected])
        assert batch.atomic == isinstance(expected, Atomic), f"in one MULTI: {batch.atomic}, for {said}"
        return list(expected.values())

    result = run(plan, send)
    assert not left, f"the plan is done without saying {list(left[0])}"
    return result


def text(command: Command) -> str:
    """A command as one would type it."""
    words = (word.decode("latin-1") if isinstance(word, bytes) else str(word) for word in command)
    return " ".join(word or "''" for word in words)

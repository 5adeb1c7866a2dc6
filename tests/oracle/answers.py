"""What regions answer in the end, compared with each other and with ID order."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

SHOWN: Final = 5


def difference(answers: Mapping[int, Any]) -> str:
    """How the regions' answers to one question differ; empty if they do not."""
    (first, said), *others = sorted(answers.items())
    for other, answer in others:
        if answer == said:
            continue
        if isinstance(said, list) and isinstance(answer, list) and set(said) != set(answer):
            here, there = sorted(set(said) - set(answer)), sorted(set(answer) - set(said))
            return f"only region {first} has {_some(here)}, only region {other} has {_some(there)}"
        return f"region {first} answers {said}, region {other} {answer}"
    return ""


def _some(items: Sequence[Any]) -> str:
    return str(items) if len(items) <= SHOWN else f"{items[:SHOWN]} and {len(items) - SHOWN} more"


def ascends(ids: Iterable[str]) -> bool:
    """Whether IDs stand in their order. One ID may stand twice: regions may have chosen the same."""
    order = [id_order(each) for each in ids]
    return order == sorted(order)


def id_order(id: str) -> tuple[int, int]:
    ms, _, seq = id.partition("-")
    return int(ms), int(seq)


def times_over(items: Iterable[Hashable], allowed: Mapping[Any, int]) -> dict[Any, int]:
    """What stands more often than it may, and how often."""
    return {item: times for item, times in Counter(items).items() if times > allowed[item]}

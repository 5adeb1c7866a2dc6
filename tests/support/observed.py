"""Plans that are watched: something happens before one of their round trips."""

from collections.abc import Callable
from typing import TypeVar

from braidstream.plan.plan import Batch, Plan, altered

T = TypeVar("T")


def observed(plan: Plan[T], before: Callable[[Batch], object]) -> Plan[T]:
    """The same plan; `before` is called with each of its batches, before it is sent."""

    def see(batch: Batch) -> Batch:
        before(batch)
        return batch

    return altered(plan, see)

"""braidstream's errors as Spark shows them: one sentence, without the traceback of Spark's Python worker.

Spark sends an exception of a Python source to the driver as text. By default that is a traceback of a dozen
lines, with the sentence at its end. Spark leaves the traceback out if SPARK_HIDE_TRACEBACK is set in the
worker; a worker ends after an error, so nothing else is hidden.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from braidstream.errors import BraidError

P = ParamSpec("P")
T = TypeVar("T")


def plain_errors(function: Callable[P, T]) -> Callable[P, T]:
    """For functions that Spark calls in a worker."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BraidError:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise

    return call

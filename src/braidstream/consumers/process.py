"""One process of `braid worker`: imports consumers, runs them, and tells its parent how they are.

    python -m braidstream.consumers.process REPORTS shop.workers:consumer ...      by braid worker only

REPORTS is a pipe: twice a second "+" if all consumers are ready, else "-".
If the parent is gone, the consumers stop.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from braidstream.consumers import tasks, threads
from braidstream.consumers.base import observers_of
from braidstream.consumers.run import run
from braidstream.consumers.settings import has_own_name
from braidstream.errors import ConfigError

EVERY_S: Final = 0.5
# The exit code if there is nothing to run.
MISUSED: Final = 2
_KINDS: Final = threads.Consumer | tasks.Consumer


def find(targets: Sequence[str]) -> list[Any]:
    """The consumers of targets like `shop.workers:consumer`; of a module alone, all that it has.

    ConfigError if there are none.
    """
    found = dict[int, Any]()
    for target in targets:
        path, _, name = target.partition(":")
        module = import_module(path)
        named = {key: each for key, each in vars(module).items() if isinstance(each, _KINDS)}
        if name and name not in named:
            raise ConfigError(f"{path} has no consumer {name!r}. It has: {', '.join(named) or 'none'}.")
        for each in [named[name]] if name else named.values():
            found[id(each)] = each
    if not found:
        raise ConfigError(f"{', '.join(targets)}: no consumer there. Name one: shop.workers:consumer")
    return [*found.values()]


def _measured(consumer: Any) -> None:
    """For /metrics: a consumer that has no metrics of its own."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return
    consumer._observers += [] if consumer._has_metrics else observers_of(consumer._settings, REGISTRY, None)


def _report(pipe: int, consumers: Sequence[Any]) -> None:
    while True:
        try:
            os.write(pipe, b"+" if all(each.is_ready for each in consumers) else b"-")
        except BrokenPipeError:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(EVERY_S)


def main(pipe: int, targets: Sequence[str], *, is_one_of_many: bool, is_measured: bool) -> int:
    sys.path.insert(0, os.getcwd())
    try:
        consumers = find(targets)
        for each in consumers:
            if is_one_of_many and not has_own_name(each._settings.name):
                raise ConfigError(
                    f"a consumer has the name {each._settings.name!r}, and each process needs another one. "
                    "Take name= away, or --processes."
                )
    except (ConfigError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in _parents(targets):
            raise
        print(f"error {error}", file=sys.stderr)
        return MISUSED
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S%z")
        logging.getLogger("braidstream").setLevel(logging.INFO)
    for each in consumers if is_measured else ():
        _measured(each)
    threading.Thread(target=_report, args=(pipe, consumers), daemon=True).start()
    run(*consumers)
    return 0


def _parents(targets: Sequence[str]) -> set[str]:
    """The modules of targets, and the packages that they are in."""
    paths = [target.partition(":")[0].split(".") for target in targets]
    return {".".join(path[:count]) for path in paths for count in range(1, len(path) + 1)}


if __name__ == "__main__":
    _, _pipe, _many, _metrics, *_targets = sys.argv
    sys.exit(main(int(_pipe), _targets, is_one_of_many=_many == "1", is_measured=_metrics == "1"))

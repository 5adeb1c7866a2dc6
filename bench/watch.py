"""`make bench-watch`: what this tree costs, against an older one, in alternation. Fails if CPU grew by 10 %.

    round 1   old  new          each tree runs its own cases in a process of its own, on the same engine
    round 2   new  old          version. A turn costs CPU of the client and of the engine, not time

The older tree is the latest tag, or the commit of a day ago if there is none. WATCH="--base COMMIT" names it.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MOST: Final = 1.10
ROUNDS: Final = 15


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.watch", description=__doc__)
    parser.add_argument("--base", default="", help="the older tree: a tag or commit")
    parser.add_argument("--engine", default="redis-8.10")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--side", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.side:
        return _take_turns(chosen.engine, chosen.only)
    base = chosen.base or base_commit()
    print(f"{_git('rev-parse', '--short', 'HEAD')} against {base}, {chosen.engine}, {chosen.rounds} rounds")
    lost = 0
    with older_tree(base) as tree, _side(tree, chosen) as old, _side(ROOT, chosen) as new:
        known = old.case()
        while name := new.case():
            if name != known:  # the older tree has no such case
                continue
            lost += _compare(name, old, new, chosen.rounds)
            known = old.case()
    if known:
        print(f"  {known}: not compared, and those after it: this tree has no such case")
    return 1 if lost or known else 0


class _Side:
    """One tree, in a process that runs a turn for each line it gets."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def case(self) -> str:
        """The name of the next case; empty after the last one."""
        return self._asked("case")

    def turn(self) -> dict[str, float]:
        found: dict[str, float] = json.loads(self._asked("turn"))
        return found

    def _asked(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


def _compare(name: str, old: _Side, new: _Side, rounds: int) -> bool:
    """Whether the new tree costs too much."""
    found = []
    for number in range(rounds):
        if number % 2:
            before = old.turn()
            found.append((before, new.turn()))
        else:
            after = new.turn()
            found.append((old.turn(), after))
    is_lost = False
    for figure in ("client", "engine"):
        low, middle, high = statistics.quantiles([after[figure] / before[figure] for before, after in found])
        is_more = middle > MOST and low > 1  # most rounds show it
        is_lost = is_lost or is_more
        shown = f"{name}: {figure} CPU {middle:.2f} [{low:.2f}..{high:.2f}]"
        print(f"  {shown}{'  MORE' if is_more else ''}", flush=True)
    return is_lost


@contextmanager
def _side(tree: Path, chosen: argparse.Namespace) -> Iterator[_Side]:
    words = [sys.executable, __file__, "--side", "--engine", chosen.engine, "--only", chosen.only]
    env = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}"}
    with subprocess.Popen(
        words, env=env, cwd=tree, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        try:
            yield _Side(process)
        finally:
            process.stdin.close()


def _take_turns(engine: str, only: str) -> int:
    """The process of one side. What it imports from `bench` is that of its tree."""
    from bench import append, consumer, groups, idempotence, logs, read
    from bench.bed import Bed

    sys.stdin.readline()
    for build in (
        *append.CASES,
        *idempotence.CASES,
        *read.CASES,
        *groups.CASES,
        *consumer.CASES,
        *logs.CASES,
    ):
        with Bed(engine) as bed:  # type: ignore[arg-type]
            case = build(bed)
            if case is None or only not in case.name:
                continue
            case.ours()
            gc.freeze()
            print(case.name, flush=True)  # the answer to "case"
            while (word := sys.stdin.readline()) == "turn\n":
                gc.collect()
                used, client = bed.engine_cpu(), time.process_time()
                case.ours()
                client = time.process_time() - client
                print(json.dumps({"client": client, "engine": bed.engine_cpu() - used}), flush=True)
            if not word:  # the other process has ended
                return 0
    print(flush=True)
    return 0


def base_commit() -> str:
    """The latest tag, or the commit of a day ago."""
    tags = _git("tag", "--sort=-creatordate", "--merged", "HEAD").split()
    return tags[0] if tags else _git("rev-list", "-1", "--before=1 day ago", "HEAD")


@contextmanager
def older_tree(base: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="braid-watch-") as folder:
        tree = Path(folder) / "old"
        _git("worktree", "add", "--detach", str(tree), base)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

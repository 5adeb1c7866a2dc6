"""Write the blocking half of the clients from their asyncio half: `make sync-half`.

`make check` fails if a file is not what this would write. It removes `async` and `await`, and changes what
the tables below name. What differs by more is in a module of its own for each half, with the same names in
both: engine/awaiting.py and engine/blocking.py.
"""

import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "braidstream"
# The blocking file -> the one that it is made from.
HALVES = {
    PACKAGE / "clients" / "sync.py": PACKAGE / "clients" / "aio.py",
    PACKAGE / "clients" / "sync_multi_region.py": PACKAGE / "clients" / "aio_multi_region.py",
    PACKAGE / "clients" / "sync_topic.py": PACKAGE / "clients" / "aio_topic.py",
    PACKAGE / "engine" / "sender.py": PACKAGE / "engine" / "aio_sender.py",
}

TEXTS = {
    "redis.asyncio": "redis",
    "braidstream.asyncio": "braidstream",
    "asyncio.sleep": "time.sleep",
    "import asyncio\n": "import time\n",
    "disconnect(nowait=True)": "disconnect()",
    "aclose(self, close_connection_pool: bool | None = None)": "close(self)",
    "aclose(close_connection_pool)": "close()",
    # redis-py takes these by position too, but not in asyncio.
    "__init__(\n            self,\n            *,\n": """__init__(
            self,
            host: str = "localhost",
            port: int = 6379,
            db: int = 0,
            password: str | None = None,
            *,
""",
}
NAMES = {
    "AsyncLater": "Later",
    "AsyncReading": "Reading",
    "AsyncSender": "Sender",
    "AsyncTopic": "Topic",
    "AsyncTopics": "Topics",
    "AsyncioOptions": "SyncOptions",
    "aclose": "close",
    "aio": "sync",
    "aio_cluster": "cluster_client",
    "aio_sender": "sender",
    "aio_topic": "sync_topic",
    "arun": "run",
    "awaiting": "blocking",
}
# `awaited(x)` and `Awaitable[x]` become x.
WRAPPERS = {"Awaitable", "awaited", "awaited_all", "uncancelled"}


def blocking(source: str) -> str:
    for old, new in TEXTS.items():
        source = source.replace(old, new)
    return "".join(_rewritten(source))


def _rewritten(source: str) -> Iterator[str]:
    """The text of each token, and what stands before it."""
    starts = [0, *(line.end() for line in re.finditer("\n", source))]
    open_brackets = list[bool]()  # whether each is a wrapper's
    at, is_wrapper = 0, False
    for token, after in pairwise(tokenize.generate_tokens(StringIO(source).readline)):
        begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
        text, space = source[begin:end], source[at:begin]
        at = end
        if text in ("async", "await"):
            at = starts[after.start[0] - 1] + after.start[1]
            text = ""
        elif text in WRAPPERS and after.string in ("(", "["):
            is_wrapper, text = True, ""
        elif token.type == tokenize.OP and text in "([{":
            open_brackets.append(is_wrapper)
            text, is_wrapper = "" if is_wrapper else text, False
        elif token.type == tokenize.OP and text in ")]}":
            text = "" if open_brackets.pop() else text
        yield space + NAMES.get(text, text)


def page(path: Path) -> str:
    """What a generated file says."""
    source = HALVES[path]
    text = blocking(source.read_text(encoding="utf-8"))
    # Imports that are used no more, and the order of those that have another name.
    for words in (["check", "--fix-only", "--select", "F401,I,SIM117"], ["format"]):
        command = [sys.executable, "-m", "ruff", *words, "--quiet", "--stdin-filename", str(path), "-"]
        done = subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.PIPE, cwd=ROOT)
        text = done.stdout
    return f"# Generated from {source.name} by scripts/sync_half.py (make sync-half). Do not edit.\n{text}"


def main() -> int:
    pages = {path: page(path) for path in HALVES}
    if "--check" not in sys.argv:
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not what {HALVES[path].name} says. Type: make sync-half")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

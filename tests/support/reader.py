"""A reader who types a page, block after block, and compares what is printed there with what comes.

    ```sh        typed into bash; `braid up` and others that serve run until the reader is done with the page,
                 or a line begins with `# Ctrl-C`
    ```python    typed into one Python for the page; `expression  # -> value` says what the line gives
    ```text      what the block before it prints, or the end of it
    ```python title="worker.py"    saved under that name; `python worker.py` runs until the end of the page
    ```toml title="braid.toml"     saved under that name

Entry IDs and versions differ from run to run, so any stands for any. Three things are not typed as printed:
ports (other programs of this machine may have them), the name of the server program, and the options of
`braid up` that choose these. Lines that install something are left out.
"""

import ast
import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import redis

from tests.support.forked import braid_process
from tests.support.servers import Flavour
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
_KINDS = r'sh|text|python|(?:python|toml) title="[\w.]+"'
_BLOCK = re.compile(rf"^```({_KINDS})\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INSTALLS = re.compile(r"^(git clone|cd |python3 -m venv|pip install|\. )")
_EXPORTS = re.compile(r"^export (\w+)=(\S+)$")
_SHOWN = re.compile(r"  # -> (.*)$")
_STAYS = re.compile(r"^(braid (up|gateway|replicate)|python \w+\.py)\b")
# A person is slower than a server that starts.
_STARTED = re.compile(r"^\S+-server --port (\d+)")
_WITHIN_S = 60
_QUOTED = re.compile(r"'[^']*'|\"[^\"$`]*\"")
_SYNTAX = re.compile(r"[][|;&<>$`*?(){}~#\\]")


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page that a reader types or sees, with their kind."""
    return _BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


def alike(text: str) -> str:
    """Without what differs from run to run."""
    text = re.sub(r"\b\d{13}-\d+\b", "ID", text)
    return re.sub(r"version \d+", "version N", text).strip()


class Reader:
    """Types pages on this machine, in one folder. ports: those of the docs, and which to use instead."""

    def __init__(self, folder: Path, flavour: Flavour, ports: Mapping[int, int]) -> None:
        self.folder, self.flavour, self.ports = folder, flavour, ports
        self.names: dict[str, Any] = {}
        self.exported = dict[str, str]()
        self._printed = ""
        self._staying: list[subprocess.Popen[str]] = []

    def types(self, page: str, most: int | None = None) -> None:
        """The whole page, or its first blocks. Python starts afresh; what is in the servers stays."""
        self.names = {"__name__": "__main__"}
        try:
            for kind, text in blocks(page)[:most]:
                if kind == "sh":
                    self._shell(self._here(text))
                elif kind == "text":
                    seen, wanted = alike(self._printed), alike(self._here(text))
                    assert seen.endswith(wanted), f"{page} shows:\n{wanted}\nprinted was:\n{seen}"
                elif kind == "python":
                    self._python(self._here(text), page)
                else:
                    (self.folder / kind.split('"')[1]).write_text(self._here(text), encoding="utf-8")
        finally:
            self._stop_all()
            for value in self.names.values():
                if isinstance(value, redis.Redis):
                    value.close()

    def _stop_all(self) -> None:
        for process in self._staying:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=_WITHIN_S)
        self._staying.clear()

    def _here(self, text: str) -> str:
        ports = re.compile(r"\b(" + "|".join(map(str, self.ports)) + r")\b")
        return ports.sub(lambda found: str(self.ports[int(found[0])]), text)

    def _shell(self, text: str) -> None:
        self._printed = ""
        for line in text.replace("\\\n", "").splitlines():
            line = line.partition("  # ")[0].rstrip()
            if line.startswith("# Ctrl-C"):
                self._stop_all()
            if not line or line.startswith("#") or _INSTALLS.match(line):
                continue
            if exported := _EXPORTS.match(line):
                self.exported[exported[1]] = exported[2]
                continue
            line = re.sub(r"^redis-server\b", f"{self.flavour}-server", line)
            if _STAYS.match(line):
                self._stay(line)
            else:
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
                with self._start(line, **pipes) as process:
                    printed, errors = process.communicate(timeout=_WITHIN_S)
                assert process.returncode == 0, f"{line}\n{printed}{errors}"
                if started := _STARTED.match(line):
                    eventually(partial(_answers, int(started[1])), within_s=_WITHIN_S, why=line)
                self._printed += printed

    def _stay(self, line: str) -> None:
        """A program that stays in the foreground: it is ready when it has printed something."""
        if line.startswith("braid up"):
            line += f" --engine {self.flavour} --port {self.ports[7001]}"
        process = self._start(line, "exec ", stdout=subprocess.PIPE, text=True)
        self._staying.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), f"{line} printed nothing"

    def _start(self, line: str, before: str = "", **options: Any) -> "subprocess.Popen[str]":
        """By bash, unless it is a plain call of braid: that is forked from one that has imported it."""
        options |= {"cwd": self.folder, "env": _env() | self.exported}
        if line.startswith("braid ") and not _SYNTAX.search(_QUOTED.sub("", line)):
            return braid_process(shlex.split(line)[1:], **options)
        return subprocess.Popen(["bash", "-c", before + line], **options)

    def _python(self, text: str, page: str) -> None:
        output = io.StringIO()
        for statement in ast.parse(text).body:
            decorators = [each.lineno for each in getattr(statement, "decorator_list", [])]
            first = min([statement.lineno, *decorators])
            source = "\n".join(text.splitlines()[first - 1 : statement.end_lineno])
            shown = _SHOWN.search(source)
            with contextlib.redirect_stdout(output):
                if shown is None:
                    exec(compile(source, page, "exec"), self.names)
                    continue
                assert isinstance(statement, ast.Expr), (
                    f"{page}: only an expression gives something: {source}"
                )
                given = repr(eval(compile(source, page, "eval"), self.names))
            assert alike(given) == alike(shown[1]), f"{page}: {source}\ngave: {given}"
        self._printed = output.getvalue()


def _answers(port: int) -> bool:
    with contextlib.suppress(redis.ConnectionError), redis.Redis(port=port) as client:
        return bool(client.ping())
    return False


def _env() -> dict[str, str]:
    """FAKETTY: redis-cli prints as on a terminal."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
        "FAKETTY": "1",
    }

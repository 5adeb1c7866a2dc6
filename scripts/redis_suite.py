"""Redis's own tests against the gateway of a region in liberal mode, and against the bare engine.

They are not part of this repository: unpack the source of Redis or Valkey, install tclsh, and give the
folder (make redis-suite SUITE=...).
What fails before the gateway and not before the bare engine is ours, and docs/tested-on.md says why.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

# Where make setup puts engines.
PROGRAMS = Path(os.environ.get("BRAID_ENGINES", "~/.cache/braidstream/engines")).expanduser() / "bin"
UNITS = ("unit/type/stream", "unit/type/stream-cgroups")
# It fails by how many keys INFO says that clients wait for, and leaves clients waiting: all later tests that
# count such clients would fail too.
SKIPPED = ("Blocking XREADGROUP for stream key that has clients blocked on list",)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINE = re.compile(r"^\[(ok|err|ignore|exception)\]: (.*?)(?: in tests/.*| \(\d+ ms\))?$", re.MULTILINE)


def run(suite: Path, port: str, units: list[str]) -> list[tuple[str, str]]:
    """Verdicts and tests. Everything in one database: the gateway's region is one."""
    command = ["./runtest", "--host", "127.0.0.1", "--port", port, "--singledb", "--durable", "--dont-clean"]
    for unit in units:
        command += ["--single", unit]
    for test in SKIPPED:
        command += ["--skiptest", test]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=3600, check=False)
    said = _COLOUR.sub("", done.stdout)
    verdicts = _LINE.findall(said)
    if not verdicts:
        sys.exit(f"{' '.join(command)} told nothing:\n{said[-2000:]}{done.stderr[-2000:]}")
    return verdicts


def link_programs(suite: Path, engine: str) -> None:
    """The suite expects programs where a build would put them: redis-8.10-server as redis-server."""
    kind = engine.split("-")[0]
    for tool in ("server", "cli", "benchmark", "check-aof", "check-rdb", "sentinel"):
        program = shutil.which(f"{engine}-{tool}") or shutil.which(f"{kind}-{tool}")
        wanted = suite / "src" / f"{kind}-{tool}"
        if program and not (wanted.exists() and not wanted.is_symlink()):
            wanted.unlink(missing_ok=True)
            wanted.symlink_to(program)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, required=True, help="the unpacked source of Redis or Valkey")
    parser.add_argument(
        "--engine", default="redis", help="redis, valkey, or one that make setup brought: redis-8.10"
    )
    parser.add_argument("units", nargs="*", default=UNITS)
    wanted = parser.parse_args()
    if not (wanted.suite / "runtest").exists():
        sys.exit(
            f"{wanted.suite} has no runtest. Unpack the source of Redis there: SUITE=/path/to/redis-7.0.15"
        )
    os.environ["PATH"] = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    if shutil.which(f"{wanted.engine}-server") is None:
        sys.exit(f"{wanted.engine}-server is not here. Run make setup, or give another --engine.")
    for engine in ("redis", "valkey", wanted.engine):
        link_programs(wanted.suite, engine)
    up = [sys.executable, "-m", "braidstream.cli.main", "up", "--regions", "1", "--engine", wanted.engine]
    up += ["--port", "0"]
    with subprocess.Popen(
        [*up, "--port", "0", "--id-mode", "liberal", "--json"], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            [region] = json.loads(process.stdout.readline())["regions"]
            ours = run(wanted.suite, region["gateway"].rpartition(":")[2], list(wanted.units))
            bare = run(wanted.suite, region["url"].rpartition(":")[2], list(wanted.units))
        finally:
            process.send_signal(signal.SIGTERM)
    for who, verdicts in (("gateway", ours), ("bare engine", bare)):
        counts = Counter(verdict for verdict, _ in verdicts)
        print(f"{who}: " + ", ".join(f"{count} {each}" for each, count in counts.items()))
    fine = {test for verdict, test in bare if verdict == "ok"}
    for verdict, test in ours:
        if verdict in ("err", "exception"):
            print(f"  {test}" + ("" if test in fine else "  (the bare engine fails too)"))
    print("not run: " + ", ".join(SKIPPED))


if __name__ == "__main__":
    main()

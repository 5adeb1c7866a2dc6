"""`make release-rehearsal`: a release of HEAD without its last push, in dist/, and a user who installs it.

    build      wheel and sdist, twice: the same digests. twine check, check-wheel-contents
    bill       what the wheel brings with its extras (without Spark), as CycloneDX
    chart      deploy/helm/braidstream, linted and packaged
    site       the documentation, with every link checked
    user       pip install dist/*.whl in a clean environment; README and two regions, typed as printed
    upgrade    two regions of the release before, upgraded one after the other, rolled back, uninstalled

Only what is committed is built. It needs what `make setup` installs. STEPS="build user" runs some of them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.watch import base_commit
from scripts.release import version
from tests.support.servers import Engine

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
VENV: Final = ROOT / ".venv/bin"
TOOLS: Final = ("twine==7.0.0", "check-wheel-contents==0.6.3")
EXTRAS: Final = "compression,console,gateway,metrics,otel,replication"
FLAVOUR: Final = "redis-8.6"
APPEND: Final = """
import sys, braidstream
with braidstream.from_url(sys.argv[1], decode_responses=True) as client:
    client.xadd("orders", {"n": sys.argv[2]})
"""
SHOW: Final = """
import sys, time, braidstream
with braidstream.from_url(sys.argv[1], decode_responses=True) as client:
    for _ in range(200):
        seen = sorted(fields["n"] for _, fields in client.xrange("orders"))
        if seen == sorted(sys.argv[2].split(",")):
            break
        time.sleep(0.1)
    print(",".join(seen))
"""


def main() -> int:
    steps: dict[str, Callable[[Path], None]] = {
        "build": build,
        "bill": bill,
        "chart": chart,
        "site": site,
        "user": new_user,
        "upgrade": upgrade,
    }
    wanted = os.environ.get("STEPS", "").split() or [*steps]
    if _git("status", "--porcelain", "--untracked-files=no"):
        print("note: there are changes that are not committed. They are not in this release.")
    with tempfile.TemporaryDirectory(prefix="braid-rehearsal-") as folder:
        for name in wanted:
            began = time.monotonic()
            print(f"== {name}", flush=True)
            steps[name](Path(folder))
            print(f"== {name} took {time.monotonic() - began:.0f} s", flush=True)
    for path in sorted(DIST.iterdir()):
        print(
            f"{path.stat().st_size:>12,}  {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}  {path.name}"
        )
    return 0


def build(folder: Path) -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    digests = []
    for name in ("one", "two"):
        out = _built(folder / name, "HEAD")
        digests.append({each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in out.iterdir()})
    assert digests[0] == digests[1], f"two builds differ: {digests}"
    shutil.copytree(folder / "one" / "dist", DIST)
    tools = _venv(folder / "tools")
    _run("bash", ROOT / "scripts/packages.sh", tools / "python", *TOOLS)
    _run(tools / "twine", "check", "--strict", *DIST.iterdir())
    # W009: two packages. Spark finds the second by its name.
    packages = ("--ignore", "W009", "--toplevel", "braidstream,pyspark_braidstream")
    _run(tools / "check-wheel-contents", *packages, *DIST.glob("*.whl"))


def bill(folder: Path) -> None:
    bin_ = _venv(folder / "bill")
    wheel = f"{_wheel()}[{EXTRAS}]"
    _run("bash", ROOT / "scripts/packages.sh", bin_ / "python", "-c", ROOT / "constraints.txt", wheel)
    (DIST / "braidstream.cdx.json").write_text(_run(bin_ / "python", ROOT / "scripts/sbom.py"))


def chart(folder: Path) -> None:
    where = ROOT / "deploy/helm/braidstream"
    _run(VENV / "helm", "lint", "--strict", where)
    _run(VENV / "helm", "package", where, "--destination", DIST)


def site(folder: Path) -> None:
    _run(VENV / "mkdocs", "build", "--strict", "--site-dir", folder / "site", cwd=ROOT)
    with tarfile.open(DIST / "braidstream-site.tar.gz", "w:gz") as archive:
        archive.add(folder / "site", "site")


def new_user(folder: Path) -> None:
    """By pip alone, as a user has it."""
    bin_ = _venv(folder / "user")
    _run(bin_ / "python", "-m", "pip", "install", f"{_wheel()}[cli]")
    _run(bin_ / "braid", "--version")
    env = {"PYTHONPATH": str(ROOT)}  # for the typist; braidstream is the installed one
    _run(bin_ / "python", ROOT / "scripts/new_user.py", FLAVOUR, folder / "user", env=env)


def upgrade(folder: Path) -> None:
    """Each release in an environment of its own: a running process imports some modules later."""
    commit = base_commit()
    print(f"from {commit}")
    _built(folder / "before", commit)
    [wheel] = (folder / "before/dist").glob("*.whl")
    old, new = _venv(folder / "old"), _venv(folder / "new")
    for bin_, each in ((old, wheel), (new, _wheel())):
        _run(bin_ / "python", "-m", "pip", "install", f"{each}[cli,replication]")
    lines, seen = [], list[str]()
    with Engine(FLAVOUR) as one, Engine(FLAVOUR) as two:
        engines = {"us-east": one, "eu-west": two}
        for number, (name, engine) in enumerate(engines.items(), 1):
            _run(old / "braid", "init", "--url", engine.url, "--region", number, "--name", name)
            lines += ["[[region]]", f"id = {number}", f'name = "{name}"', f'url = "{engine.url}"']
        config = folder / "braid.toml"
        config.write_text("\n".join([*lines, ""]))

        def work(bin_: Path, what: str) -> None:
            """Appends in each region, and waits until both regions have everything once."""
            for name, engine in engines.items():
                seen.append(f"{what}-{name}")
                _run(bin_ / "python", "-c", APPEND, engine.url, seen[-1])
            for engine in engines.values():
                shown = _run(bin_ / "python", "-c", SHOW, engine.url, ",".join(seen)).strip()
                assert shown == ",".join(sorted(seen)), shown

        daemons = {name: _daemon(old, config, name) for name in engines}
        try:
            work(old, "before")
            for name in engines:
                _run(new / "braid", "upgrade", "--config", config, "--region", name)
                _stopped(daemons[name])
                daemons[name] = _daemon(new, config, name)
            work(old, "old-client")
            work(new, "new-client")
            _run(new / "braid", "upgrade", "--check", "--config", config)
            for name in engines:
                _stopped(daemons[name])
                daemons[name] = _daemon(old, config, name)
            work(old, "rolled-back")
        finally:
            for each in daemons.values():
                _stopped(each)
    _run(new / "python", "-m", "pip", "uninstall", "--yes", "braidstream")
    assert not (new / "braid").exists()
    gone = subprocess.run(
        [new / "python", "-c", "import braidstream"], capture_output=True, cwd="/", env=_env()
    )
    assert gone.returncode == 1, "braidstream is still there"


def _daemon(bin_: Path, config: Path, name: str) -> "subprocess.Popen[bytes]":
    words = [bin_ / "braid", "replicate", "--config", config, "--region", name]
    with config.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(words, cwd="/", env=_env(), stdout=log, stderr=log)


def _stopped(daemon: "subprocess.Popen[bytes]") -> None:
    daemon.terminate()
    assert daemon.wait(30) == 0


def _built(folder: Path, commit: str) -> Path:
    """Wheel and sdist of a commit, from a tree without anything else, dated as the commit."""
    folder.mkdir()
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
    env = {"SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct", commit)}
    _run(VENV / "python", "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder, env=env)
    return folder / "dist"


def _wheel() -> Path:
    return DIST / f"braidstream-{version()}-py3-none-any.whl"


def _venv(folder: Path) -> Path:
    _run(sys.executable, "-m", "venv", folder)
    return folder / "bin"


def _env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "BRAID_URL")}


def _run(*words: object, cwd: Path | str = "/", env: dict[str, str] | None = None) -> str:
    """Outside of the tree, so that nothing is imported from it."""
    given = [str(word) for word in words]
    done = subprocess.run(given, cwd=cwd, env=_env() | (env or {}), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(given)}\n{done.stdout}{done.stderr}")
    return done.stdout


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

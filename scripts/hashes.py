"""Write constraints.hashes: every package of constraints.txt with the SHA-256 of its files. `make hashes`.

`make setup` installs from it with --require-hashes, so a file that the index has replaced is refused. The
hashes are those that pip's index states on the day this runs: read the diff before you commit it. Wheels are
listed for Linux on x86-64 and ARM and the Pythons of CI; a package without such a wheel has its source.
"""

import html
import re
import ssl
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version
from pip._internal.models.index import PyPI

ROOT: Final = Path(__file__).parent.parent
_FILE: Final = re.compile(r'href="[^"]*#sha256=([0-9a-f]{64})"[^>]*>([^<]+)</a>')
_PYTHONS: Final = ("cp311", "cp312", "cp313", "cp314")
_MACHINES: Final = ("x86_64", "aarch64")
_HEAD: Final = "# Written by `make hashes` from constraints.txt. Do not edit.\n"


def main() -> None:
    pins = [line.split("==") for line in (ROOT / "constraints.txt").read_text().split()]
    setting("cert"), setting("index-url")  # asked once, before the threads
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pin: hashes_of(*pin), pins))
    lines = [
        f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{each}" for each in hashes)
        for (name, version), hashes in zip(pins, found, strict=True)
    ]
    (ROOT / "constraints.hashes").write_text(_HEAD + "\n".join(lines) + "\n")


def hashes_of(name: str, version: str) -> list[str]:
    context = ssl.create_default_context(cafile=setting("cert") or None)
    where = f"{setting('index-url') or PyPI.simple_url}/{canonicalize_name(name)}/"
    with urllib.request.urlopen(where, timeout=60, context=context) as reply:
        page = reply.read().decode()
    wheels, sources = set[str](), set[str]()
    for digest, text in _FILE.findall(page):
        file = html.unescape(text)
        if file.endswith(".whl") and is_wanted(file, Version(version)):
            wheels.add(digest)
        elif file.endswith((".tar.gz", ".zip")) and is_source(file, name, Version(version)):
            sources.add(digest)
    if not wheels | sources:
        sys.exit(f"the index has no file of {name}=={version} for Linux, or does not state its SHA-256")
    return sorted(wheels or sources)


def is_wanted(file: str, version: Version) -> bool:
    """Whether this is a wheel of the version that CI could install."""
    if f"-{version}" not in file.replace("_", "-") and str(version) not in file:
        return False
    _, found, _, tags = parse_wheel_filename(file)
    return found == version and any(
        (tag.platform == "any" or ("manylinux" in tag.platform and tag.platform.endswith(_MACHINES)))
        and (tag.interpreter in (*_PYTHONS, "py3") or tag.abi == "abi3")
        for tag in tags
    )


def is_source(file: str, name: str, version: Version) -> bool:
    try:
        return parse_sdist_filename(file) == (canonicalize_name(name), version)
    except ValueError:  # names of old releases
        return False


@cache
def setting(name: str) -> str:
    """Of pip's own configuration, files and environment."""
    asked = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in said.stdout.splitlines())
    return next((found[each].strip("'") for each in (f":env:.{name}", f"global.{name}") if each in found), "")


if __name__ == "__main__":
    main()

"""A new user types the README and the tutorial for two regions, in an environment that has only the wheel.

CLEAN/bin/python scripts/new_user.py FLAVOUR FOLDER      PYTHONPATH: the root of the repository
"""

import sys
from pathlib import Path

import redis

import braidstream
from tests.support.reader import Reader
from tests.support.servers import UP_ABOVE, free_port

PAGES = ("README.md", "docs/tutorial-regions.md")


def main() -> None:
    flavour, folder = sys.argv[1], Path(sys.argv[2])
    installed = Path(braidstream.__file__)
    assert installed.is_relative_to(folder), f"{installed} is not what pip installed"
    first = free_port(*UP_ABOVE)
    ports = {
        7001: first,
        7002: first + 1,
        7101: first + 100,
        7102: first + 101,
        6379: free_port(),
        6390: free_port(),
    }
    home = folder / "home"
    home.mkdir()
    reader = Reader(home, flavour, ports)  # type: ignore[arg-type]
    try:
        for page in PAGES:
            reader.types(page)
            print(f"typed {page}", flush=True)
    finally:
        with redis.Redis(port=ports[6379]) as operator:
            operator.shutdown(nosave=True)


if __name__ == "__main__":
    main()

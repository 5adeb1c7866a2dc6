"""The README as the package's page shows it, with links into the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
AT = f"{PROJECT['urls']['Repository']}/blob/v{PROJECT['version']}/"

# [text](docs/tutorial.md), but neither [text](https://...) nor [text](#part)
RELATIVE = re.compile(r"\]\((?![a-z]+:|#)")

setup(
    long_description=RELATIVE.sub(f"]({AT}", (ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)

"""The bill of materials of this Python's environment, as CycloneDX 1.5 on stdout.

The release installs the wheel with its extras, pinned, in an environment of its own, and runs this there. It
is ours because the tools on PyPI would bring ten packages into that environment for these lines.
"""

import json
from importlib.metadata import Distribution, distribution, distributions
from typing import Any, Final

NAME: Final = "braidstream"
# They install, and are not needed afterwards.
_TOOLS: Final = ("pip", "setuptools", "wheel")


def component(found: Distribution) -> dict[str, Any]:
    about, purl = found.metadata, f"pkg:pypi/{found.name.lower().replace('_', '-')}@{found.version}"
    stated = about.get("License-Expression")
    licenses = {"licenses": [{"expression": stated}]} if stated else {}
    return {
        "type": "library",
        "bom-ref": purl,
        "name": found.name,
        "version": found.version,
        "purl": purl,
        **licenses,
    }


def bill() -> dict[str, Any]:
    parts = [component(each) for each in distributions() if each.name not in (NAME, *_TOOLS)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(distribution(NAME))},
        "components": sorted(parts, key=lambda part: str(part["purl"])),
    }


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))

"""The README as the page of the package shows it, with links into the repository; an sdist without times."""

import gzip
import os
import re
import tarfile
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
AT = f"{PROJECT['urls']['Repository']}/blob/v{PROJECT['version']}/"

# [text](docs/tutorial.md), but neither [text](https://...) nor [text](#part)
RELATIVE = re.compile(r"\]\((?![a-z]+:|#)")


class ReproducibleSdist(sdist):
    """With SOURCE_DATE_EPOCH, as the wheel: no time, user or order of this machine is in the archive."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        when = os.environ.get("SOURCE_DATE_EPOCH")
        if when is None or format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)

        def plain(member):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = int(when)
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=int(when)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted(Path(base_dir).rglob("*")):
                archive.add(path, recursive=False, filter=plain)
        return name


setup(
    cmdclass={"sdist": ReproducibleSdist},
    long_description=RELATIVE.sub(f"]({AT}", (ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)

"""Where a lake is: a folder that every Spark node has at the same path, or s3://, gs://, abfss://.

Credentials come from the usual environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL and so on.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from pyarrow import fs

HIDDEN: Final = "_braid"  # a folder that readers and Delta's vacuum skip
PROBE: Final = "probe-"  # how tables in it begin that probes make


class Store:
    """Files of one lake, named by their path below its root."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        self.is_local = "://" not in root
        self.fs, self.base = (
            (fs.LocalFileSystem(), os.path.abspath(self.root)) if self.is_local else _remote(self.root)
        )

    @property
    def options(self) -> dict[str, str]:
        """What delta-rs needs beside the environment."""
        if not self.root.startswith("s3"):
            return {}
        http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        return {"aws_conditional_put": "etag", **({"AWS_ALLOW_HTTP": "true"} if http else {})}

    def uri(self, folder: str) -> str:
        return "/".join(filter(None, [self.base if self.is_local else self.root, folder]))

    def path(self, path: str) -> str:
        return f"{self.base}/{path}"

    def open(self, path: str) -> Any:
        return self.fs.open_input_file(self.path(path))

    def create(self, path: str) -> Any:
        """A stream to a new file, to be closed and then synced."""
        if self.is_local:
            os.makedirs(os.path.dirname(self.path(path)), exist_ok=True)
        return self.fs.open_output_stream(self.path(path))

    def sync(self, path: str) -> int:
        """Sync a closed file and its folder to disk; an object store has done so. Returns its size."""
        if self.is_local:
            for place in (self.path(path), os.path.dirname(self.path(path))):
                handle = os.open(place, os.O_RDONLY)
                os.fsync(handle)
                os.close(handle)
        return int(self.fs.get_file_info(self.path(path)).size)

    def missing(self, paths: Sequence[str]) -> list[str]:
        found = self.fs.get_file_info([self.path(each) for each in paths])
        return [path for path, info in zip(paths, found, strict=True) if info.type != fs.FileType.File]

    def list(self, folder: str = "") -> list[Any]:
        """Files and folders in a folder; empty if there is none."""
        return list(self.fs.get_file_info(fs.FileSelector(self.path(folder), allow_not_found=True)))

    def delete(self, paths: Iterable[str]) -> int:
        gone = 0
        for path in paths:
            try:
                self.fs.delete_file(self.path(path))
                gone += 1
            except FileNotFoundError:  # another job has deleted it
                continue
        return gone

    def delete_folder(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another job has deleted it
            self.fs.delete_dir(self.path(folder))


def _remote(root: str) -> tuple[Any, str]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    if not root.startswith("s3") or not endpoint:
        found, base = fs.FileSystem.from_uri(root)
        return found, base
    scheme, _, host = endpoint.partition("://")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return fs.S3FileSystem(endpoint_override=host, scheme=scheme, region=region), root.partition("://")[2]


@lru_cache(maxsize=32)
def store_of(root: str) -> Store:
    return Store(root)

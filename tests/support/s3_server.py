"""An S3 server in a process of its own: moto, in one thread, because then its conditional writes are atomic.

`python -m tests.support.s3_server PORT [--ignore-conditions]`: with the option it ignores If-None-Match, as
some stores do, and answers in several threads. `GET /_age/60/3600` makes objects that are older than 60 s
an hour older, but no commits of Delta tables.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.servers import free_port
from tests.support.waiting import eventually

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@contextmanager
def s3_server(*options: str) -> Iterator[dict[str, str]]:
    """The environment in which clients find a server."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [sys.executable, "-m", "tests.support.s3_server", str(port), *options]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        assert process.poll() is None, "the S3 server has ended"
        try:
            with urlopen(url, timeout=5):
                return True
        except (URLError, OSError):
            return False

    try:
        eventually(answers, within_s=240, why="the S3 server should answer")
        yield {**KEYS, "AWS_ENDPOINT_URL": url}
    finally:
        process.kill()
        process.wait()


def make_bucket(env: dict[str, str], name: str) -> None:
    from pyarrow import fs

    found = fs.S3FileSystem(
        access_key=env["AWS_ACCESS_KEY_ID"],
        secret_key=env["AWS_SECRET_ACCESS_KEY"],
        region=env["AWS_REGION"],
        endpoint_override=env["AWS_ENDPOINT_URL"].partition("://")[2],
        scheme="http",
        allow_bucket_creation=True,
    )
    found.create_dir(name)


def age(env: dict[str, str], older_s: float, by_s: float) -> None:
    """Make objects that are older than `older_s` older, as if a job had written them long ago."""
    with urlopen(f"{env['AWS_ENDPOINT_URL']}/_age/{older_s:g}/{by_s:g}", timeout=60):
        pass


def _age(older_s: float, by_s: float) -> None:
    from moto.s3.models import s3_backends

    before = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=older_s)
    for account in s3_backends.values():
        for backend in account.values():
            for bucket in backend.buckets.values():
                for key in bucket.keys.values():
                    is_commit = "/_delta_log/" in key.name and "/probe-" not in key.name
                    if not is_commit and key.last_modified.replace(tzinfo=None) < before:
                        key.last_modified -= timedelta(seconds=by_s)


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    port, is_careless = int(sys.argv[1]), "--ignore-conditions" in sys.argv
    app = DomainDispatcherApplication(create_backend_app)

    def aging(environ: dict[str, Any], start: Any) -> Any:
        if not environ["PATH_INFO"].startswith("/_age/"):
            return app(environ, start)
        _age(*map(float, environ["PATH_INFO"].split("/")[2:]))
        start("200 OK", [])
        return [b""]

    def careless(environ: dict[str, Any], start: Any) -> Any:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return app(environ, start)

    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    run_simple("127.0.0.1", port, careless if is_careless else aging, threaded=is_careless)


if __name__ == "__main__":
    main()

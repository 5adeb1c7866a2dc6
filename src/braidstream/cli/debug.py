"""`braid debug bundle`: one archive with what a report of a problem needs, without passwords."""

import asyncio
import io
import json
import os
import platform
import re
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import typer

from braidstream import lua
from braidstream.cli.frame import Verbs
from braidstream.cli.reach import ConfigFile, Json, report, trouble
from braidstream.cli.regions import OneUrl, choose_regions
from braidstream.config import Config
from braidstream.engine.address import shown
from braidstream.errors import BraidError
from braidstream.operations.checkup import check_file, check_up
from braidstream.operations.open_region import CLIENT_ERRORS, open_region
from braidstream.operations.read_regions import look
from braidstream.operations.status import as_json as status_facts
from braidstream.operations.status import overview
from braidstream.operations.upgrade import OURS, check_upgrade, fetch_metrics
from braidstream.plan.lookup import read_info

_LOG_BYTES: Final = 2_000_000
_HIDDEN: Final = "***"
# In what others wrote: the user and password of a URL, and passwords that options give.
_IN_URL: Final = re.compile(r"://[^\s/\"'@]*@")
_OPTION: Final = re.compile(r"((?:password|passwd|secret|token)=|(?:requirepass|masterauth) )[^\s\"&]+", re.I)
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")

app = Verbs("Collect what a report of a problem needs.")


@app.command("bundle")
def bundle(
    ctx: typer.Context,
    url: OneUrl = None,
    config: ConfigFile = Path("braid.toml"),
    logs: Annotated[
        list[Path] | None,
        typer.Option("--log", help="Also the end of this log file of a daemon or gateway. May be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The archive to write. Default: braid-debug-TIME.tar.gz.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write status, doctor, versions, the file, INFO, metrics and logs into one archive, mode 0600.

    Passwords are removed: those of the file, of its variables, and what looks like one. Names of streams,
    groups, users and hosts are in it, entries are not. Look into it before you send it to anyone.

    Example: braid debug bundle --config braid.toml --log /var/log/braid.log
    """
    place = out or Path(time.strftime("braid-debug-%Y%m%d-%H%M%S.tar.gz"))
    secrets = _Secrets()
    with trouble(url or config, as_json):
        if url is not None:
            secrets.learn_url(url)
        parts = dict(_parts(ctx, url, config, logs or [], secrets))
    with trouble(place, as_json):
        _write(place, {name: secrets.removed(text) for name, text in parts.items()})
    text = f"{place}: {', '.join(parts)}. Look into it before you send it to anyone: tar -xzf {place}"
    report(as_json, {"file": str(place), "parts": [*parts]}, text)


class _Secrets:
    """What must not be in the archive. Values of less than four characters are not searched for."""

    def __init__(self) -> None:
        self._found = set[str]()
        for name, value in os.environ.items():
            if "://" in value:
                self.learn_url(value)
            elif re.search(r"PASS|SECRET|TOKEN|KEY", name):
                self.learn(value)

    def learn(self, value: str) -> None:
        self._found |= {each for each in (value, unquote(value)) if len(each) >= 4}

    def learn_url(self, url: str) -> None:
        for each in (*re.findall(r"password=([^&\s]+)", url), urlsplit(url).password or ""):
            self.learn(each)
        for name in _VARIABLE.findall(url):
            self.learn(os.environ.get(name, ""))

    def removed(self, text: str) -> str:
        for each in sorted(self._found, key=len, reverse=True):
            text = text.replace(each, _HIDDEN).replace(json.dumps(each)[1:-1], _HIDDEN)
        return _OPTION.sub(rf"\1{_HIDDEN}", _IN_URL.sub(f"://{_HIDDEN}@", text))


def _parts(
    ctx: typer.Context, url: str | None, config: Path, logs: Iterable[Path], secrets: _Secrets
) -> Iterator[tuple[str, str]]:
    """Each part by its name. What fails is its error: a bundle is made when things fail."""
    yield "versions.json", _json(_versions())
    if url is None:
        yield "config.json", _tried(_file, config, secrets)
    for at, log in enumerate(logs, 1):
        yield f"log-{at}-{log.name}", _tried(_end_of, log)
    try:
        regions = choose_regions(ctx, url, config)
    except (BraidError, OSError, *CLIENT_ERRORS) as error:
        yield "error.txt", str(error)
        return
    for region in regions.region:
        for each in (region.url, region.receiver):
            if each:
                secrets.learn_url(each)
    views = asyncio.run(look(regions))
    yield "status.json", _json(status_facts(overview(views, has_file=url is None)))
    yield "doctor.json", _tried(_doctor, regions, None if url else config)
    for region in regions.region:
        if not next(view for view in views if view.name == region.name).error:
            yield f"upgrade-{region.id}.json", _json(asdict(check_upgrade(region, views)))
            yield f"info-{region.id}.json", _tried(_info, region.url)
        for kind, address in (("daemon", region.listen), ("gateway", region.gateway_metrics)):
            if address and (found := fetch_metrics(address)):
                yield f"metrics-{region.id}-{kind}.txt", found


def _tried(make: Callable[..., str], *args: Any) -> str:
    try:
        return make(*args)
    except (BraidError, OSError, ValueError, *CLIENT_ERRORS) as error:
        return f"could not be read: {error}"


def _json(facts: Any) -> str:
    return json.dumps(facts, indent=1, default=str) + "\n"


def _versions() -> dict[str, Any]:
    return {
        "braidstream": OURS,
        "functions": lua.VERSION,
        "python": sys.version,
        "platform": platform.platform(),
        "packages": {each.name: each.version for each in distributions()},
        "made": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _file(config: Path, secrets: _Secrets) -> str:
    """The file as it is read, so without comments; URLs only with host and port."""
    found = tomllib.loads(config.read_text(encoding="utf-8"))
    for region in found.get("region", []):
        for name in {"url", "receiver"} & region.keys():
            secrets.learn_url(str(region[name]))
            region[name] = shown(str(region[name]))
    return _json(found)


def _end_of(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        return file.read(_LOG_BYTES).decode("utf-8", "replace")


def _doctor(regions: Config, config: Path | None) -> str:
    names = {each.name for each in regions.region}
    found = asyncio.run(check_up(regions, names, has_file=config is not None))
    return _json([asdict(each) for each in [*found, *(check_file(config) if config else [])]])


def _info(url: str) -> str:
    """Of each primary."""
    with closing(open_region(url, socket_timeout=5)) as client:
        found = client.run_on_primaries(read_info)
    return _json(
        [{name.decode(): value.decode("utf-8", "replace") for name, value in each.items()} for each in found]
    )


def _write(place: Path, parts: dict[str, str]) -> None:
    """Readable by its owner alone from the first byte on; an existing file is not overwritten."""
    number = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(number, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in parts.items():
            data = text.encode("utf-8", "replace")
            about = tarfile.TarInfo(f"braid-debug/{name}")
            about.size, about.mode, about.mtime = len(data), 0o600, int(time.time())
            archive.addfile(about, io.BytesIO(data))

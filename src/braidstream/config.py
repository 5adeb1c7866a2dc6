"""braid.toml: the regions, where each of them is, and what its daemons use.

    [[region]]
    id = 1
    name = "us-east"
    url = "rediss://link:${LINK_PASSWORD}@redis.us-east.example:6379"
    gateway = "127.0.0.1:6390"         # where `braid gateway --config` listens; may be left out
    listen = "127.0.0.1:9290"          # where `braid replicate` serves /metrics, /healthz, /readyz
    gateway_metrics = "127.0.0.1:9291" # the same for `braid gateway`
    durability = "replicas:1"          # when an entry may go to the peers; chosen by itself if left out
    durability_timeout_s = 300         # then it goes there all the same; without limit if left out
    include = ["orders*"]              # exchange only these streams with other regions; all if left out
    exclude = ["*.tmp"]                # and not these; they stay local
    compression = "zstd"               # peers send compressed, to the receiver; not compressed if left out
    receiver = "tls://braid.us-east.example:6395"  # where peers reach `braid replicate --receive`

    [groups]
    takeover_after_s = 60              # scope ONCE: take over from a region that is silent for this time

    [[schedule]]
    name = "nightly"
    stream = "jobs"
    cron = "0 3 * * *"                 # or every = "15m"
    timezone = "Europe/Berlin"
    fields = { job = "report" }

`${NAME}` in a URL is taken from the environment, so that the file need not hold a password.
"""

import contextlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from braidstream.errors import ConfigError
from braidstream.model.glob import matcher
from braidstream.model.ids import LAST_WRITER
from braidstream.model.later import stream_of
from braidstream.model.region import DURABILITY
from braidstream.model.retention_policy import seconds

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# HOST:PORT, or PORT on loopback.
_HTTP = r"^([^:/ ]+:|\[[0-9a-fA-F:.]+\]:)?[0-9]{1,5}$"


@dataclass(frozen=True, slots=True)
class Selection:
    """The streams that a region exchanges with others: those that match `include`, all of them if that is
    empty, without those that match `exclude`. The others stay local. Entries that wait for later are where
    their stream is."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def takes(self, name: bytes) -> bool:
        stream = stream_of(name) or name
        is_included = not self.include or any(matches(stream) for matches in _matchers(self.include))
        return is_included and not any(matches(stream) for matches in _matchers(self.exclude))

    def __str__(self) -> str:
        """In words, after "exchanges"."""
        found = f"only {', '.join(self.include)}" if self.include else "all streams"
        return f"{found}, without {', '.join(self.exclude)}" if self.exclude else found


def is_exchanged(stream: bytes, selections: Iterable[Selection]) -> bool:
    """Whether regions with these selections exchange a stream: each of them must take it."""
    return all(each.takes(stream) for each in selections)


@lru_cache(maxsize=256)
def _matchers(patterns: tuple[str, ...]) -> tuple[Callable[[bytes], bool], ...]:
    return tuple(matcher(pattern.encode()) for pattern in patterns)


_Patterns = tuple[Annotated[str, Field(min_length=1, max_length=1_000)], ...]


class RegionConfig(BaseModel):
    """One region."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[
        int,
        Field(
            ge=1,
            le=LAST_WRITER,
            description=f"A number from 1 to {LAST_WRITER}. Never reuse the number of another region, even "
            "of a removed one: entry IDs contain it.",
        ),
    ]
    name: Annotated[
        str, Field(min_length=1, max_length=64, description="The region's name for `--region` and in logs.")
    ]
    url: Annotated[
        str,
        Field(
            pattern=r"^(rediss?(\+sentinel)?|unix)://",
            repr=False,
            description="The region's server, as all other regions reach it. `${NAME}` is replaced by the "
            "environment variable.",
        ),
    ]
    durability: Annotated[
        str | None,
        Field(
            pattern=DURABILITY,
            description="When an entry may go to the peers: `replicas:N`, `aof` or `none`. Left out: `none` "
            "until a replica was seen, then `replicas:1`; with sentinels, all replicas.",
        ),
    ] = None
    durability_timeout_s: Annotated[
        float | None,
        Field(
            ge=1,
            le=86_400,
            description="If links have waited this many seconds for `durability`, they go on without it, "
            "until the region has its replicas again. Left out: they wait for as long as it takes.",
        ),
    ] = None
    gateway: Annotated[
        str | None,
        Field(
            pattern=r"^(unix:.+|.+:[0-9]{1,5})$",
            description="Where `braid gateway --config` listens for clients: `HOST:PORT` or `unix:/path`. "
            "Left out: `127.0.0.1:6390`.",
        ),
    ] = None
    listen: Annotated[
        str | None,
        Field(
            pattern=_HTTP,
            description="Where `braid replicate` serves `/metrics`, `/healthz` and `/readyz`: `HOST:PORT`, "
            "or `PORT` on loopback. Left out: not at all.",
        ),
    ] = None
    gateway_metrics: Annotated[
        str | None, Field(pattern=_HTTP, description="The same for `braid gateway`. Left out: not at all.")
    ] = None
    include: Annotated[
        _Patterns,
        Field(
            description="Globs of streams, as KEYS takes them. Only these are exchanged with other regions. "
            "Left out: all.",
        ),
    ] = ()
    exclude: Annotated[
        _Patterns, Field(description="Globs of streams that stay local. It goes before `include`.")
    ] = ()
    compression: Annotated[
        Literal["zstd"] | None,
        Field(
            description="`zstd`: the daemons of other regions send compressed to this one, through its "
            "`receiver`. Left out: not compressed, straight to `url`.",
        ),
    ] = None
    receiver: Annotated[
        str | None,
        Field(
            pattern=r"^(tcp|tls)://",
            description="Where the daemons of other regions reach `braid replicate --receive` of this one: "
            "`tls://host:port` with redis-py's `ssl_*` options, or `tcp://host:port`. `${NAME}` is replaced "
            "as in `url`. Used only with `compression`.",
            repr=False,
        ),
    ] = None

    @property
    def selection(self) -> Selection:
        return Selection(self.include, self.exclude)


class GroupsConfig(BaseModel):
    """Consumer groups, in all regions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    takeover_after_s: Annotated[
        float | None,
        Field(
            ge=5,
            le=86_400,
            description="Groups of scope ONCE: if a region's heartbeat has stopped for this many seconds, "
            "another region delivers for it, and gives back when the region has been back for as long. Left "
            "out: never.",
        ),
    ] = None


class ScheduleConfig(BaseModel):
    """An entry that is appended to a stream again and again, in one region."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[
        str,
        Field(min_length=1, max_length=100, description="Its own name: by it, regions agree what is sent."),
    ]
    stream: Annotated[str, Field(min_length=1, max_length=1_000, description="The stream of its entries.")]
    fields: Annotated[
        dict[str, str], Field(min_length=1, max_length=1_000, description="The fields of each entry.")
    ]
    every: Annotated[
        str | None,
        Field(description="`90s`, `15m`, `12h` or `7d`, counted from 1970. Either this or `cron`."),
    ] = None
    cron: Annotated[
        str | None,
        Field(
            max_length=1_000,
            description="Five fields as in crontab: minute, hour, day, month, day of the week.",
        ),
    ] = None
    timezone: Annotated[str, Field(description="Of `cron`, as in `Europe/Berlin`. Left out: UTC.")] = "UTC"

    @property
    def every_s(self) -> int:
        return seconds((self.every or "").encode())

    @property
    def fault(self) -> str:
        """What is wrong with when it is due; empty if nothing is."""
        if (self.every is None) == (self.cron is None):
            return "it needs either every or cron."
        try:
            now = datetime.now(ZoneInfo(self.timezone))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            why = "If it knows none at all: pip install tzdata"
            return f"this machine knows no timezone {self.timezone!r}. {why}"
        try:
            if self.cron is None:
                seconds((self.every or "").encode())
            elif len(self.cron.split()) != 5:
                return f"cron {self.cron!r} has not five fields, as in crontab."
            else:
                next(CronSim(self.cron, now))
        except StopIteration:
            return f"cron {self.cron!r} is never due."
        except (CronSimError, ValueError) as error:
            return f"{self.cron or 'every'}: {error}."
        return ""


class Config(BaseModel):
    """All regions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    region: Annotated[tuple[RegionConfig, ...], Field(min_length=1)]
    groups: GroupsConfig = GroupsConfig()
    schedule: tuple[ScheduleConfig, ...] = ()

    def named(self, name: str) -> RegionConfig:
        """A region by its name, or by its number as text."""
        for region in self.region:
            if name in (region.name, str(region.id)):
                return region
        names = ", ".join(region.name for region in self.region)
        raise ConfigError(f"there is no region {name!r}. The file has: {names}.")

    def peers_of(self, name: str) -> tuple[RegionConfig, ...]:
        here = self.named(name)
        return tuple(region for region in self.region if region is not here)

    def local_to(self, stream: bytes) -> list[str]:
        """The regions in which a stream stays local."""
        return [region.name for region in self.region if not region.selection.takes(stream)]

    @property
    def shared(self) -> dict[str, str]:
        """What must be the same in the files of all regions, by name. URLs may differ."""
        return {each.name: f"number {each.id}, exchanges {each.selection}" for each in self.region}


def changes(before: Config, after: Config) -> str:
    """What changed, for a log. Values of URLs are not shown: they may hold a password."""
    old, new = ({each.name: each for each in config.region} for config in (before, after))
    words = [f"{name} added" for name in new if name not in old]
    words += [f"{name} removed" for name in old if name not in new]
    for name in old.keys() & new.keys():
        one, two = old[name].model_dump(), new[name].model_dump()
        for field in [field for field in one if one[field] != two[field]]:
            is_secret = field in ("url", "receiver")
            values = "" if is_secret else f" {_toml(one[field])} -> {_toml(two[field])}"
            words.append(f"{name} {field}{values}")
    if before.groups != after.groups:
        was, now = before.groups.takeover_after_s, after.groups.takeover_after_s
        words.append(f"takeover_after_s {_toml(was)} -> {_toml(now)}")
    was_due, now_due = ({each.name: each for each in config.schedule} for config in (before, after))
    words += [f"schedule {name} added" for name in now_due if name not in was_due]
    words += [f"schedule {name} removed" for name in was_due if name not in now_due]
    words += [
        f"schedule {name} changed" for name in now_due if was_due.get(name, now_due[name]) != now_due[name]
    ]
    return "; ".join(words) or "nothing"


def load(path: Path, environment: Mapping[str, str] | None = None) -> Config:
    """Read the file. Errors name the field, never a value, which may be a secret."""
    try:
        words = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}. Name the file that lists your regions with --config."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}.") from None
    return parse(words, str(path), os.environ if environment is None else environment)


def parse(words: dict[str, Any], where: str, environment: Mapping[str, str]) -> Config:
    try:
        config = Config.model_validate(words)
    except ValidationError as error:
        # Regions with faults are not counted, so pydantic adds that there are too few.
        faults = dict.fromkeys(
            _fault(each["type"], each["loc"], words)
            for each in error.errors()
            if each["type"] != "too_short" or each["loc"] != ("region",) or not words["region"]
        )
        raise ConfigError(f"{where}: {' '.join(faults)}") from None
    for field in ("id", "name"):
        seen = [getattr(region, field) for region in config.region]
        twice = next((value for value in seen if seen.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"{where}: two regions have the {field} {twice!r}. Each needs its own.")
    for schedule in config.schedule:
        if schedule.fault:
            raise ConfigError(f"{where}: schedule {schedule.name!r}: {schedule.fault}")
    due = [each.name for each in config.schedule]
    if (doubled := next((name for name in due if due.count(name) > 1), None)) is not None:
        raise ConfigError(f"{where}: two schedules have the name {doubled!r}. Each needs its own.")
    for region in config.region:
        if region.compression and not region.receiver:
            raise ConfigError(
                f"{where}: region {region.name!r} has compression, but no receiver. Add where its peers "
                'reach `braid replicate --receive`, as in: receiver = "tls://host:6395"'
            )
    regions = [_filled(region, where, environment) for region in config.region]
    return config.model_copy(update={"region": tuple(regions)})


# What each key takes, after "must be".
TAKES: Final = {
    "id": f"a number from 1 to {LAST_WRITER}",
    "name": "a text of 1 to 64 characters",
    "url": "redis://, rediss://, redis+sentinel://, rediss+sentinel:// or unix://, and what follows",
    "durability": "replicas:N, aof or none",
    "durability_timeout_s": "a number of seconds from 1 to 86,400",
    "gateway": "HOST:PORT or unix:/path",
    "listen": "HOST:PORT, or PORT on loopback",
    "gateway_metrics": "HOST:PORT, or PORT on loopback",
    "include": 'a list of patterns, like ["orders*"]',
    "exclude": 'a list of patterns, like ["*.tmp"]',
    "compression": '"zstd"',
    "receiver": "tls://HOST:PORT or tcp://HOST:PORT",
    "takeover_after_s": "a number of seconds from 5 to 86,400",
    "region": "one table for each region: [[region]]",
    "groups": "a table: [groups]",
    "schedule": "one table for each schedule: [[schedule]]",
    "stream": "the name of a stream",
    "fields": 'texts, as in { job = "report" }',
    "every": '"90s", "15m", "12h" or "7d"',
    "cron": 'a text like "0 3 * * *"',
    "timezone": 'a text like "Europe/Berlin"',
}


def _fault(kind: str, path: tuple[int | str, ...], words: dict[str, Any]) -> str:
    """A fault in one sentence. kind, path: of pydantic, whose own words are those of its types."""
    place, key = "", str(path[0])
    known: Iterable[str] = Config.model_fields
    if path[0] == "region" and len(path) > 1:
        assert isinstance(path[1], int)
        region = words["region"][path[1]]
        name = region.get("name") if isinstance(region, dict) else None
        place = f"region {name!r}: " if isinstance(name, str) and name else f"region number {path[1] + 1}: "
        key, known = str(path[2]) if len(path) > 2 else "region", RegionConfig.model_fields
    elif path[0] == "groups" and len(path) > 1:
        place, key, known = "groups: ", str(path[1]), GroupsConfig.model_fields
    elif path[0] == "schedule" and len(path) > 1:
        place, known = f"schedule number {int(path[1]) + 1}: ", ScheduleConfig.model_fields
        key = str(path[2]) if len(path) > 2 else "schedule"
    if kind == "missing" and key == "region":
        return "it lists no region. Each begins with a line [[region]]."
    if kind == "missing":
        return f"{place}{key} is missing."
    if kind == "extra_forbidden":
        near = get_close_matches(key, known, 1)
        return f"{place}there is no key {key!r}." + (f" Did you mean {near[0]}?" if near else "")
    return f"{place}{key} must be {TAKES[key]}."


def _filled(region: RegionConfig, where: str, environment: Mapping[str, str]) -> RegionConfig:
    def value(key: str, found: re.Match[str]) -> str:
        if found[1] not in environment:
            raise ConfigError(
                f"{where}: the {key} of region {region.name!r} wants ${{{found[1]}}}, and the environment "
                "has no such variable. Export it before starting braid."
            )
        return environment[found[1]]

    given = {"url": region.url, "receiver": region.receiver if region.compression else None}
    urls = {key: _VARIABLE.sub(partial(value, key), url) for key, url in given.items() if url is not None}
    return region.model_copy(update=urls)


def with_region(text: str, region: RegionConfig) -> str:
    """The file with one more region at its end; what stands there stays as it is."""
    fields = {name: value for name, value in region.model_dump().items() if value not in (None, ())}
    lines = [f"{name} = {_toml(value)}" for name, value in fields.items()]
    longer = "\n".join([text.rstrip("\n"), "", "[[region]]", *lines, ""])
    return _with_numbers(longer, [*_numbers(text), region.id])


def _toml(value: Any) -> str:
    """Numbers, texts and lists of texts, as TOML. It has no surrogate pairs, and no DEL as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def without_region(text: str, number: int) -> str:
    """The file without one region; what stands elsewhere stays as it is."""
    blocks = re.split(r"(?m)^(?=[ \t]*\[\[?)", text)
    kept = [block for block in blocks if not _is_region(block, number)]
    return _with_numbers("".join(kept), [each for each in _numbers(text) if each != number])


def write(path: Path, text: str) -> None:
    """Replace the file in one step: a reader gets the old or the new text, also after a crash."""
    path = path.resolve()
    about = path.stat()
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), stat.S_IMODE(about.st_mode))
            with contextlib.suppress(PermissionError):
                os.fchown(file.fileno(), about.st_uid, about.st_gid)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _numbers(text: str) -> list[int]:
    return [each["id"] for each in tomllib.loads(text).get("region", [])]


def _with_numbers(text: str, numbers: list[int]) -> str:
    """The same text; an error if it does not list exactly these regions."""
    try:
        if _numbers(text) == numbers:
            return text
    except tomllib.TOMLDecodeError:
        pass
    raise ConfigError(
        "this command cannot change the file: it does not begin every region with [[region]]. Write it so, "
        "and run the command again. Nothing was changed."
    )


def _is_region(block: str, number: int) -> bool:
    try:
        found = tomllib.loads(block).get("region")
    except tomllib.TOMLDecodeError:
        return False
    return isinstance(found, list) and any(
        isinstance(each, dict) and each.get("id") == number for each in found
    )

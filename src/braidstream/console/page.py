"""What every page shares: the state of the console, the words of a query, how templates become answers."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from braidstream.config import Config
from braidstream.console.access import RegionAccess
from braidstream.console.samples import LatestFindings, Sampler, StreamRates
from braidstream.console.visitors import Visitors
from braidstream.errors import BraidError
from braidstream.model.frontier import name_of_text, name_text
from braidstream.operations.words import age, printable, short, size_text

_FOLDER: Final = Path(__file__).parent / "templates"
PAGES: Final = (
    ("map", "/", "Regions"),
    ("streams", "/streams", "Streams"),
    ("groups", "/groups", "Groups"),
    ("dead", "/dead", "Dead letters"),
    ("logs", "/logs", "Logs"),
    ("doctor", "/doctor", "Doctor"),
    ("audit", "/audit", "Audit"),
)
# A longer word of a query is refused.
_MOST_WORD: Final = 2_000


class QueryError(BraidError):
    """A page was called with words that it cannot use."""

    code = "QUERY"


class MissingPageError(BraidError):
    """There is no such page, region, stream or group."""

    code = "MISSING"


@dataclass(frozen=True, slots=True)
class Console:
    """The state of one console, shared by all requests."""

    regions: Config
    access: dict[str, RegionAccess]
    sampler: Sampler
    visitors: Visitors
    allow_write: bool = False
    audit_file: Path | None = None
    findings: LatestFindings = field(default_factory=LatestFindings)
    rates: StreamRates = field(default_factory=StreamRates)

    @property
    def pages(self) -> tuple[tuple[str, str, str], ...]:
        """The navigation: key, path, text."""
        return PAGES

    def region_name(self, number: int) -> str:
        """The name of a region by the number in IDs."""
        return next((each.name for each in self.regions.region if each.id == number), f"region {number}")

    def region_number(self, number: int) -> int:
        """Which colour a writer has: its place in the file."""
        found = [at for at, each in enumerate(self.regions.region) if each.id == number]
        return (found[0] if found else number) % 8


@dataclass(frozen=True, slots=True)
class Query:
    """The words of a request. region: the one that is asked, or the first of the file."""

    console: Console
    region: RegionAccess
    words: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(request: Request, form: dict[str, str] | None = None) -> "Query":
        console = console_of(request)
        words = dict(request.query_params) if form is None else form
        if any(len(word) > _MOST_WORD for word in words.values()):
            raise QueryError(f"a word of the query has more than {_MOST_WORD:,} characters.")
        region = words.get("region") or console.regions.region[0].name
        if region not in console.access:
            raise MissingPageError(f"there is no region {region!r}.")
        return Query(console, console.access[region], words)

    def text(self, word: str) -> str:
        return self.words.get(word, "").strip()

    def name(self, word: str = "name") -> bytes:
        """The name of a stream or a group."""
        try:
            found = name_of_text(self.words.get(word, ""))
        except ValueError:
            raise QueryError(f"{word} is not a name.") from None
        if not found:
            raise QueryError(f"{word} is missing.")
        return found

    def number(self, word: str, default: int, most: int) -> int:
        text = self.text(word)
        if not text:
            return default
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise QueryError(f"{word} is a number from 1 to {most:,}.")
        return int(text)


def console_of(request: Request) -> Console:
    found: Console = request.app.state.console
    return found


def link_to(path: str, **words: Any) -> str:
    """The address of a page. Names of streams are bytes; empty words are left out."""
    texts = {key: name_text(word) if isinstance(word, bytes) else str(word) for key, word in words.items()}
    given = urlencode({key: text for key, text in texts.items() if text})
    return f"{path}?{given}" if given else path


def time_text(ms: int) -> str:
    """A time of an ID, in UTC."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return "no date"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        name_text=name_text, age=age, short=short, size=size_text, printable=printable, time=time_text
    )
    made.globals["link_to"] = link_to
    return made


TEMPLATES: Final = _environment()


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page. `page` is its name in the navigation, `region` the region it shows."""
    console = console_of(request)
    shared = {
        "console": console,
        "visitor": console.visitors.user(request),
        "token": console.visitors.token(request.state.visitor),
        "has_password": bool(console.visitors.rules.password),
        "region": "",
        "page": "",
    }
    return HTMLResponse(TEMPLATES.get_template(template).render(shared | values), status)


# ----------------------------------------------------------------------------------------------------
# The words of a form, if one of our pages sent it.

_MOST_BYTES: Final = 65_536
_WITHIN_S: Final = 10


@dataclass(frozen=True, slots=True)
class Form:
    """lists: all values of a word; words: the first of them."""

    lists: dict[str, list[str]]

    @property
    def words(self) -> dict[str, str]:
        return {name: values[0] for name, values in self.lists.items()}


async def form_of(request: Request) -> Form:
    """Anything but a form of the console is refused."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            body = await _body(request)
    except TimeoutError:
        raise QueryError(f"the form did not arrive within {_WITHIN_S} s.") from None
    try:
        form = Form(parse_qs(body.decode(), keep_blank_values=True, max_num_fields=500))
    except ValueError:
        raise QueryError("this is not a form of the console.") from None
    if not console_of(request).visitors.is_own_form(request, form.words.get("token", "")):
        raise QueryError("the form does not come from a current page of this console. Load the page again.")
    return form


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise QueryError("the form is too long.")
    return body

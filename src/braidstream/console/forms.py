"""The words of a form, if one of our pages sent it."""

import asyncio
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from braidstream.console.page import QueryError, console_of

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
    """Anything else than a form of ours is refused."""
    try:
        async with asyncio.timeout(_WITHIN_S):
            body = await _body(request)
    except TimeoutError:
        raise QueryError(f"the form did not arrive within {_WITHIN_S} s.") from None
    try:
        form = Form(parse_qs(body.decode(), keep_blank_values=True, max_num_fields=500))
    except ValueError:
        raise QueryError("this is no form of the console.") from None
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

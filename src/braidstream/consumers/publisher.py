"""`Publisher`: appends models, which a `Consumer` with the same annotation reads again.

Order(order=7, note=None, paid=True)   --->   order 7, paid true
                                       --->   data {"order":7,"note":null,"paid":true}   with body="data"
"""

import sys
from collections.abc import Awaitable
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from braidstream.consumers.handler import adapter
from braidstream.consumers.middleware import trace_fields

if TYPE_CHECKING:
    from braidstream.clients import (
        aio,
        aio_cluster,
        aio_multi_region,
        cluster_client,
        sync,
        sync_multi_region,
    )

Reply = TypeVar("Reply")


class Publisher(Generic[Reply]):
    """Appends to one stream. For clients of both kinds: with asyncio, await `publish`."""

    @overload
    def __init__(
        self: "Publisher[Awaitable[bytes | str]]",
        client: "aio.Redis | aio_cluster.RedisCluster | aio_multi_region.MultiRegion",
        stream: str,
        *,
        body: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: "Publisher[bytes | str]",
        client: "sync.Redis | cluster_client.RedisCluster | sync_multi_region.MultiRegion",
        stream: str,
        *,
        body: str | None = None,
    ) -> None: ...
    def __init__(self, client: Any, stream: str, *, body: str | None = None) -> None:
        """body: the field that gets the whole model as JSON, as in the consumer. By default each field of the
        model becomes a field of the entry."""
        self._client, self._stream, self._body = client, stream, body

    def publish(self, message: Any, **options: Any) -> Reply:
        """Append a dataclass, a pydantic model or a dict; returns the ID. options: of xadd, like maxlen=.

        The current trace goes along, if there is one. TypeError if a field is a list or a mapping, and there
        is no `body`.
        """
        fields = self._fields(message)
        if "opentelemetry" in sys.modules:
            fields |= trace_fields()
        reply: Reply = self._client.xadd(self._stream, fields, **options)
        return reply

    def _fields(self, message: Any) -> dict[str, Any]:
        kind = _adapter(type(message))  # type: ignore[arg-type]
        if self._body is not None:
            return {self._body: kind.dump_json(message, by_alias=True)}
        values = kind.dump_python(message, mode="json", by_alias=True)
        if not isinstance(values, dict):
            raise TypeError(
                f"publish: {message!r} given, it must be a dataclass, a pydantic model or a dict."
            )
        for name, value in values.items():
            if isinstance(value, list | dict):
                raise TypeError(
                    f"publish: the field {name!r} is a {type(value).__name__}, and an entry has text only. "
                    'Give the publisher and the consumer body="data": then the model is one field, as JSON.'
                )
        return {name: _text(value) for name, value in values.items() if value is not None}


def _text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


_adapter = cache(adapter)

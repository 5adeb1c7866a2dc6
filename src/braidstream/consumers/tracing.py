"""OpenTelemetry: a producer writes the trace into the entry, and the consumer's span links to it.

The trace stands in the fields `traceparent` and `tracestate` of an entry, as W3C Trace Context defines them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from braidstream.consumers.hooks import Observer
from braidstream.consumers.message import TRACE_FIELDS, Message

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Tracer


def trace_fields() -> dict[str, str]:
    """The fields that carry the current trace; none if there is no trace, or OpenTelemetry is not installed.

    client.xadd("orders", {"order": 7, **braidstream.trace_fields()})
    """
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return {}
    found = dict[str, str]()
    TraceContextTextMapPropagator().inject(found)
    return found


class ConsumerTraces(Observer):
    """A span for each call of a handler, linked to the spans that appended its entries."""

    def __init__(self, tracer: "Tracer", group: str, consumer: str) -> None:
        self._tracer, self._group, self._consumer = tracer, group, consumer

    @contextmanager
    def handling(self, messages: Sequence[Message]) -> Iterator[None]:
        from opentelemetry.trace import SpanKind

        first = messages[0]
        attributes: dict[str, str | int] = {
            "messaging.system": "redis",
            "messaging.operation.type": "process",
            "messaging.destination.name": first.stream,
            "messaging.consumer.group.name": self._group,
            "messaging.client.id": self._consumer,
            "braidstream.attempt": first.attempt,
        }
        if len(messages) == 1:
            attributes["messaging.message.id"] = first.id
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        links = [link for message in messages if (link := _link(message)) is not None]
        with self._tracer.start_as_current_span(
            f"process {first.stream}", kind=SpanKind.CONSUMER, links=links, attributes=attributes
        ):
            yield


def _link(message: Message) -> "Link | None":
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    raw = message.raw
    carrier = {
        name: raw[name.encode()].decode("ascii", "replace") for name in TRACE_FIELDS if name.encode() in raw
    }
    if not carrier:
        return None
    context = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    return Link(context, {"messaging.message.id": message.id}) if context.is_valid else None

"""OpenTelemetry spans of daemons and gateways, if the process has a tracer provider.

    opentelemetry-instrument braid gateway ...

We use OpenTelemetry's API only (extra `otel`): what starts us chooses the SDK, the sampler and the exporter.
Without a provider there is nothing to do, and nothing is measured. Spans are made after the fact, from the
times that the metrics need anyway.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind, Tracer

TRACE_PARENT: Final = b"traceparent"

Attributes = Mapping[str, str | int]


class Traces:
    """Makes spans. enabled: whether they are exported."""

    __slots__ = ("_tracer", "enabled")

    def __init__(self) -> None:
        self._tracer = _find()
        self.enabled = self._tracer is not None

    def commands(self, run: "Sequence[Sequence[bytes]] | bytes", count: int, began: float) -> None:
        """Commands of one client of a gateway that were answered together. began: by perf_counter."""
        from opentelemetry.trace import SpanKind

        first = () if isinstance(run, bytes) else run[0]
        name = first[0].decode("ascii", "replace").upper() if first else "XADD"
        attributes: dict[str, str | int] = {"db.system.name": "redis", "db.operation.name": name}
        stream = _text(first[1]) if len(first) > 1 and name.startswith(("X", "T")) else ""
        if stream and name not in ("XREAD", "XREADGROUP"):
            attributes["messaging.destination.name"] = stream
        if count > 1:
            attributes["db.operation.batch.size"] = count
        parent = _parent(first) if count == 1 else None
        self._span(f"{name} {stream}".strip(), SpanKind.SERVER, attributes, began, parent)

    def replicated(self, stream: bytes, peer: str, entries: int, began: float) -> None:
        """Entries of a stream that a daemon sent to a peer."""
        from opentelemetry.trace import SpanKind

        attributes: dict[str, str | int] = {
            "messaging.system": "redis",
            "messaging.destination.name": _text(stream),
            "messaging.batch.message_count": entries,
            "braidstream.peer": peer,
        }
        self._span(f"replicate {_text(stream)}", SpanKind.PRODUCER, attributes, began, None)

    def _span(
        self, name: str, kind: "SpanKind", attributes: Attributes, began: float, parent: "Context | None"
    ) -> None:
        assert self._tracer is not None
        end = time.time_ns()
        start = end - round((time.perf_counter() - began) * 1e9)
        span = self._tracer.start_span(
            name, context=parent, kind=kind, attributes=dict(attributes), start_time=start
        )
        span.end(end)


def _find() -> "Tracer | None":
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):  # none is set
        return None
    return provider.get_tracer("braidstream")


def _parent(words: Sequence[bytes]) -> "Context | None":
    """The trace that an entry carries (braidstream.trace_fields), if it does."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    for at in range(2, len(words) - 1):
        if words[at] == TRACE_PARENT:
            carrier = {"traceparent": words[at + 1].decode("ascii", "replace")}
            return TraceContextTextMapPropagator().extract(carrier)
    return None


def _text(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")

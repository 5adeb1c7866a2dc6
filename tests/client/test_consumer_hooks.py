"""Middleware, metrics and traces of consumers."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

import braidstream
import braidstream.asyncio
from braidstream import Message, Reject
from tests.support.consumers import Log, Runs, until_acknowledged
from tests.support.matrix import on_the_newest
from tests.support.servers import Engine

flavour = on_the_newest


@pytest.fixture(params=["sync", "asyncio"])
def runs(request: pytest.FixtureRequest, engine: Engine, region: braidstream.Redis) -> Runs:
    return Runs(request.param, engine.url)


def test_middleware_surrounds_the_handler_and_sees_its_errors(region: braidstream.Redis) -> None:
    region.xadd("orders", {"order": 1})
    consumer = braidstream.Consumer(region, "orders", group="billing", attempts=2, backoff=0.01)
    log = Log()

    @consumer.middleware
    def outer(messages: Sequence[Message], call_next: Callable[[], None]) -> None:
        log("outer", messages[0].attempt)
        try:
            call_next()
        except ValueError as error:
            log("saw", str(error))
            raise

    @consumer.middleware
    def inner(messages: Sequence[Message], call_next: Callable[[], None]) -> None:
        log("inner", len(messages))
        call_next()

    @consumer.handler
    def handle(message: Message) -> None:
        log("handler", message["order"])
        if message.attempt == 1:
            raise ValueError("first")

    thread = threading.Thread(target=consumer.run)
    thread.start()
    until_acknowledged(region)
    consumer.stop()
    thread.join(20)
    once = [("inner", 1), ("handler", "1")]
    assert log.seen == [("outer", 1), *once, ("saw", "first"), ("outer", 2), *once]


def test_middleware_of_asyncio(region: braidstream.Redis, engine: Engine) -> None:
    region.xadd("orders", {"order": 1})
    log = Log()

    async def whole() -> None:
        async with braidstream.asyncio.Redis.from_url(engine.url) as client:
            consumer = braidstream.asyncio.Consumer(client, "orders", group="billing")

            @consumer.middleware
            async def around(messages: Sequence[Message], call_next: Callable[[], Awaitable[None]]) -> None:
                log("before")
                await call_next()
                log("after")
                consumer.stop()

            @consumer.handler
            async def handle(message: Message) -> None:
                log("handler")

            await consumer.run()

    asyncio.run(whole())
    assert log.firsts == ["before", "handler", "after"]


def test_metrics_count_what_happened(runs: Runs, region: braidstream.Redis) -> None:
    for number in range(6):
        region.xadd("orders", {"order": number})
    region.xgroup_create("orders", "billing", "0")
    region.xreadgroup("billing", "crashed", {"orders": ">"}, count=2)
    registry = CollectorRegistry()

    def handle(message: Message) -> None:
        if message["order"] == "3" and message.attempt == 1:
            raise ValueError
        if message["order"] == "4":
            raise Reject("no")

    with runs(handle, metrics=registry, claim_after=0.3, name="w"):
        until_acknowledged(region)
    where = {"stream": "orders", "group": "billing"}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    seen = {
        outcome: value("braid_consumer_entries_total", **where, outcome=outcome)
        for outcome in ("handled", "failed", "rejected", "dead")
    }
    assert seen == {"handled": 5, "failed": 1, "rejected": 1, "dead": 1}
    assert value("braid_consumer_taken_total", **where) == 4
    assert value("braid_consumer_claimed_total", **where) == 2
    assert value("braid_consumer_handler_seconds_count", **where) == 7
    assert value("braid_consumer_in_hand", group="billing", consumer="w") == 0


def test_two_consumers_share_a_registry(region: braidstream.Redis) -> None:
    registry = CollectorRegistry()
    for group in ("a", "b"):
        braidstream.Consumer(region, "orders", group=group, metrics=registry)


def test_spans_link_to_the_producers_span(runs: Runs, region: braidstream.Redis) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("send") as sent:
        traced = region.xadd("orders", {"order": 1, **braidstream.trace_fields()})
    plain = region.xadd("orders", {"order": 2})
    assert braidstream.trace_fields() == {}
    log = Log()

    def handle(message: Message) -> None:
        log(trace.get_current_span().get_span_context().span_id)
        if message["order"] == "2":
            raise Reject("no")

    with runs(handle, tracer=tracer, concurrency=1):
        until_acknowledged(region)
    spans = {
        span.attributes["messaging.message.id"]: span
        for span in exporter.get_finished_spans()
        if span.name == "process orders" and span.attributes
    }
    [link] = spans[traced].links
    assert link.context.span_id == sent.get_span_context().span_id
    assert spans[plain].links == ()
    assert not spans[plain].status.is_ok
    assert {span.context.span_id for span in spans.values() if span.context} == set(log.firsts)

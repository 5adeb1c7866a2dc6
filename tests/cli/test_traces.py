"""OpenTelemetry spans of a gateway and a daemon, from processes that were started with a tracer provider."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis
from opentelemetry.sdk.trace import TracerProvider

from tests.support.daemons import write_config
from tests.support.regions import become, client_of
from tests.support.servers import Engine
from tests.support.waiting import eventually

# What opentelemetry-instrument does, with a file as exporter.
PROGRAM = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
out = open(sys.argv[1], "a", buffering=1)
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from braidstream.cli.main import app
app(sys.argv[2:])
"""


def start(spans: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, str(spans), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def read(spans: Path) -> dict[str, Any]:
    """Spans by name; the last of each."""
    lines = spans.read_text().splitlines() if spans.exists() else []
    return {each["name"]: each for each in map(json.loads, lines)}


def test_a_gateways_commands_are_spans_of_the_producers_trace(engine: Engine, tmp_path: Path) -> None:
    become(engine)
    spans = tmp_path / "spans"
    words = ("gateway", "--url", engine.url, "--listen", "127.0.0.1:0", "--json")
    tracer = TracerProvider().get_tracer("test")
    with start(spans, *words) as gateway:
        assert gateway.stdout is not None
        host, port = json.loads(gateway.stdout.readline())["gateway"].split(":")
        with redis.Redis(host, int(port)) as client, tracer.start_as_current_span("order") as mine:
            context = mine.get_span_context()
            parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
            client.xadd("orders", {"n": 1, "traceparent": parent})
            client.xadd("orders", {"n": 2, "traceparent": "nonsense"})
            client.xadd("orders", {"n": 3, "traceparent": parent})
            client.xlen("orders")
            with client.pipeline(transaction=False) as pipe:
                for number in range(5):
                    pipe.xlen(f"orders-{number}")
                pipe.execute()
        gateway.send_signal(signal.SIGTERM)
        gateway.wait(30)
    found = read(spans)
    assert {"XADD orders", "XLEN orders", "XLEN orders-0"} <= set(found)
    assert found["XADD orders"]["context"]["trace_id"] == f"0x{context.trace_id:032x}"
    assert found["XADD orders"]["parent_id"] == f"0x{context.span_id:016x}"
    assert found["XADD orders"]["attributes"]["messaging.destination.name"] == "orders"
    assert found["XADD orders"]["start_time"] < found["XADD orders"]["end_time"]
    assert found["XLEN orders-0"]["attributes"]["db.operation.batch.size"] > 1


def test_a_daemons_batches_are_spans(engine: Engine, tmp_path: Path) -> None:
    spans = tmp_path / "spans"
    with Engine("valkey-9.1") as other:
        config = write_config(tmp_path / "braid.toml", {1: engine.url, 2: other.url})
        for number, each in ((1, engine), (2, other)):
            become(each, region=number, name=f"region-{number}")
        with start(spans, "replicate", "--config", str(config), "--region", "1") as daemon:
            with client_of(engine) as client:
                client.xadd("orders", {"n": 1})
                eventually(lambda: "replicate orders" in read(spans), within_s=30, why="a span")
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(30)
    attributes = read(spans)["replicate orders"]["attributes"]
    assert attributes["braidstream.peer"] == "region-2"
    assert attributes["messaging.batch.message_count"] == 1


def test_without_a_provider_nothing_is_traced() -> None:
    code = "from braidstream.observability.traces import Traces; print(Traces().enabled)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout == "False\n"

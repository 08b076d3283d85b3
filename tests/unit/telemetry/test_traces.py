"""Spans of a request: made once it is over, with the times of what happened; nothing without the extra."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stretto.telemetry.traces import NoTracer, OtelTracer, RequestTrace, make_tracer

WHOLE = RequestTrace("POST /v1/x", 10.0, 10.5, 11.0, 12.0, 15.0, attributes={"a": 1})


def test_the_four_parts_follow_each_other() -> None:
    assert WHOLE.parts() == [
        ("prepare-request", 10.0, 10.5),
        ("queue-wait", 10.5, 11.0),
        ("prefill", 11.0, 12.0),
        ("token-generation", 12.0, 15.0),
    ]


def test_media_are_encoded_before_the_queue() -> None:
    parts = replace(WHOLE, encoded_s=10.75).parts()
    assert parts[1:3] == [("encode-media", 10.5, 10.75), ("queue-wait", 10.75, 11.0)]


def test_phases_not_reached_have_no_span() -> None:
    refused = RequestTrace("x", 10.0, 10.5, None, None, 11.0)
    assert refused.parts() == [("prepare-request", 10.0, 10.5), ("queue-wait", 10.5, 11.0)]


def test_spans_carry_times_parents_and_errors() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OtelTracer(provider)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    tracer.record(RequestTrace("POST /v1/x", 10.0, 10.5, 11.0, 12.0, 15.0, parent, {"a": 1}, "out_of_memory"))
    spans: dict[str, ReadableSpan] = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"POST /v1/x", "prepare-request", "queue-wait", "prefill", "token-generation"}
    request, prefill = spans["POST /v1/x"], spans["prefill"]
    assert request.context is not None
    assert prefill.parent is not None
    assert format(request.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
    assert prefill.parent.span_id == request.context.span_id
    assert (prefill.start_time, prefill.end_time) == (11_000_000_000, 12_000_000_000)
    assert request.status.description == "out_of_memory"
    tracer.close()


def test_off_imports_nothing() -> None:
    code = (
        "import sys; from stretto.telemetry.traces import make_tracer; "
        "import stretto.server.operations.instrumented; "
        "assert not make_tracer('off').enabled; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_off_is_free() -> None:
    tracer = make_tracer("off")
    assert isinstance(tracer, NoTracer)
    started = time.process_time()
    for _ in range(10_000):
        tracer.record(WHOLE)
    assert time.process_time() - started < 0.5


def test_a_missing_extra_is_reported() -> None:
    code = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None\n"
        "from stretto.telemetry.traces import make_tracer\n"
        "from stretto.errors import SettingsError\n"
        "try: make_tracer('console')\n"
        "except SettingsError as error: sys.exit('stretto[otel]' not in error.hint)\n"
        "sys.exit(1)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("traces", ["console"])
def test_a_tracer_that_prints(traces: str) -> None:
    tracer = make_tracer(traces)
    assert tracer.enabled
    tracer.close()

"""OpenTelemetry spans of a request, recorded at its end: no cost while tokens are generated.

    request ─┬─ prepare-request     from arrival to submission
             ├─ encode-media        until its pictures and sounds were rows, if it had any
             ├─ queue-wait          until it had a slot
             ├─ prefill             until its first token
             └─ token-generation    until its end

Without the extra `otel`, or with `traces: off`, nothing is imported and `record` does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto.errors import SettingsError

PREPARE, QUEUE, PREFILL, GENERATE = "prepare-request", "queue-wait", "prefill", "token-generation"
ENCODE = "encode-media"  # before the queue, for requests with pictures or sounds
COMPUTE = "compute"  # in place of the last two: embeddings and rankings


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Timestamps in seconds since the epoch. A phase that was not reached is None."""

    name: str
    arrived_s: float
    prepared_s: float
    admitted_s: float | None
    first_token_s: float | None
    ended_s: float
    traceparent: str = ""
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)
    error_code: str = ""
    work: str = PREFILL  # what begins when it is admitted
    encoded_s: float | None = None  # its pictures and sounds; None if it has none

    def parts(self) -> list[tuple[str, float, float]]:
        """(span, start, end), in order; the last phase reached lasts until the end."""
        marks = [
            (PREPARE, self.arrived_s),
            (ENCODE, None if self.encoded_s is None else self.prepared_s),
            (QUEUE, self.prepared_s if self.encoded_s is None else self.encoded_s),
            (self.work, self.admitted_s),
            (GENERATE, self.first_token_s),
        ]
        begun = [(name, at) for name, at in marks if at is not None]
        ends = [at for _, at in begun[1:]] + [self.ended_s]
        return [(name, at, max(at, end)) for (name, at), end in zip(begun, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A separate span, e.g. of a batch, in seconds since the epoch."""

    name: str
    started_s: float
    ended_s: float
    attributes: Mapping[str, str | int | float | Sequence[str]] = field(default_factory=dict)


class Tracer(Protocol):
    """`enabled` False: callers need not even build a trace."""

    enabled: bool

    def record(self, trace: RequestTrace) -> None: ...

    def record_span(self, span: SpanRecord) -> None: ...

    def close(self) -> None: ...


class NoTracer:
    enabled = False

    def record(self, trace: RequestTrace) -> None:
        """Tracing is disabled."""

    def record_span(self, span: SpanRecord) -> None:
        """Tracing is disabled."""

    def close(self) -> None:
        """Nothing to close."""


class OtelTracer:
    """Over an OpenTelemetry tracer provider, whatever its exporter."""

    enabled = True

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("stretto")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, trace: RequestTrace) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        carrier = {"traceparent": trace.traceparent} if trace.traceparent else {}
        request = self._tracer.start_span(
            trace.name,
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=_ns(trace.arrived_s),
            attributes=dict(trace.attributes),
        )
        inside = set_span_in_context(request)
        for name, start_s, end_s in trace.parts():
            span = self._tracer.start_span(name, context=inside, start_time=_ns(start_s))
            span.end(_ns(end_s))
        if trace.error_code:
            request.set_status(Status(StatusCode.ERROR, trace.error_code))
        request.end(_ns(trace.ended_s))

    def record_span(self, span: SpanRecord) -> None:
        made = self._tracer.start_span(
            span.name, start_time=_ns(span.started_s), attributes=dict(span.attributes)
        )
        made.end(_ns(span.ended_s))

    def close(self) -> None:
        self._provider.shutdown()


def make_tracer(traces: str) -> Tracer:
    """The tracer for the setting `traces`."""
    if traces == "off":
        return NoTracer()
    try:
        return OtelTracer(_provider(traces))
    except ImportError:
        raise SettingsError(
            "traces need OpenTelemetry, which is not installed", hint="pip install 'stretto[otel]'"
        ) from None


def _provider(traces: str) -> Any:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

    exporter: Any = ConsoleSpanExporter() if traces == "console" else _otlp()
    provider = TracerProvider(resource=Resource.create({"service.name": "stretto"}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _otlp() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # type: ignore[import-not-found,unused-ignore]
        OTLPSpanExporter,
    )

    return OTLPSpanExporter()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)

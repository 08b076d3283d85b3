"""Plots: latency over load, and a timeline with the waiting and streaming time of each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.loadgen.records import STOPPED, LoadRecord, LoadRun
from stretto.loadgen.svg import COLOURS, Chart

QUEUE, PREFILL, DECODE, FAILED = "#a9b2bd", "#d9822b", "#2f6fde", "#c0392b"
ROW_PIXELS_MAX = 16
ROWS_PIXELS = 520
LATENCIES = {
    "TTFT p50": ("ttft_s", "p50"),
    "TTFT p95": ("ttft_s", "p95"),
    "inter-token p99": ("itl_s", "p99"),
    "end-to-end p95": ("e2e_s", "p95"),
}


def latency_plot(
    title: str, loads: Sequence[float], summaries: Sequence[dict[str, Any]], *, x_label: str
) -> str:
    """One line per latency; missing values have no point."""
    lines = {
        name: [
            (load, float(item["all"][quantity][statistic]))
            for load, item in zip(loads, summaries, strict=True)
            if item["all"][quantity] is not None
        ]
        for name, (quantity, statistic) in LATENCIES.items()
    }
    highest = max((y for points in lines.values() for _, y in points), default=1.0)
    chart = Chart(title, x=(0.0, max(loads)), y=(0.0, highest), x_label=x_label, y_label="seconds")
    for (name, points), colour in zip(lines.items(), COLOURS, strict=False):
        if points:
            chart.line(name, points, colour)
    return chart.text()


def throughput_plot(
    title: str, loads: Sequence[float], summaries: Sequence[dict[str, Any]], *, x_label: str
) -> str:
    points = [
        (load, float(item["all"]["output_tokens_per_s"])) for load, item in zip(loads, summaries, strict=True)
    ]
    highest = max(y for _, y in points)
    chart = Chart(title, x=(0.0, max(loads)), y=(0.0, highest), x_label=x_label, y_label="output tokens/s")
    chart.line("output tok/s", points, COLOURS[0])
    return chart.text()


def timeline_plot(run: LoadRun, title: str) -> str:
    """Every request from its due time to its end, in order of arrival, first on top."""
    records = sorted(run.records, key=lambda record: record.due_s)
    rows = max(1, len(records))
    end_s = max((record.ended_s for record in records), default=1.0)
    height = 90 + min(ROWS_PIXELS, rows * ROW_PIXELS_MAX)
    chart = Chart(title, x=(0.0, end_s), y=(0.0, float(rows)), x_label="seconds", y_label="", height=height)
    told = any(record.prefill_s is not None for record in records)
    for index, record in enumerate(records):
        _bars(chart, record, float(rows - 1 - index))
    chart.key("queue" if told else "waiting", QUEUE)
    if told:
        chart.key("prefill", PREFILL)
    chart.key("decode", DECODE)
    if any(record.error not in {"", STOPPED} for record in records):
        chart.key("failed", FAILED)
    return chart.text()


def _bars(chart: Chart, record: LoadRecord, row: float) -> None:
    hint = f"{record.id} {record.group} {record.error}".strip()
    first_s = record.chunks_s[0] if record.chunks_s else record.ended_s
    prefill_s = min(record.prefill_s or 0.0, first_s - record.due_s)
    spans = [
        (record.due_s, first_s - prefill_s, QUEUE),
        (first_s - prefill_s, first_s, PREFILL),
        (first_s, record.ended_s, DECODE),
    ]
    for start_s, end_s, colour in spans:
        if end_s > start_s:
            chart.bar(row, start_s, end_s, colour=colour, thick=0.8, hint=hint)
    if record.error not in {"", STOPPED}:
        chart.bar(row, record.ended_s, record.ended_s, colour=FAILED, thick=0.8, hint=hint)

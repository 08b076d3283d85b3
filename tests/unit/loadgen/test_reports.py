"""Plots, tables and comparisons, as a reader sees them."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from stretto.loadgen import tables
from stretto.loadgen.compare import Range, compared, interleave, plain, ratios
from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.plots import latency_plot, throughput_plot, timeline_plot
from stretto.loadgen.svg import Chart, ticks
from tests.unit.loadgen.test_figures import record, run_of

SVG = "{http://www.w3.org/2000/svg}"


def run_at(rate: float, ttft_s: float):
    return run_of("steady", [record(0.0, [ttft_s, ttft_s + 10 / rate], tokens=10) for _ in range(4)])


def test_ticks_are_round_and_cover():
    assert ticks(0.0, 10.0) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.0, 0.83)[-1] >= 0.83
    assert len(ticks(0.0, 0.0)) >= 2


def test_a_chart_places_points_inside_its_frame():
    chart = Chart("t", x=(0, 10), y=(0, 5), x_label="x", y_label="y")
    assert chart.place(0, 0) < chart.place(10, 0)
    (left, bottom), (right, top) = chart.place(0, 0), chart.place(10, 5)
    assert left < right
    assert top < bottom, "up is less in SVG"


def test_latency_against_load_is_valid_svg_with_a_point_for_each_load():
    found = [summary(run_at(rate, ttft), Slo()) for rate, ttft in ((10, 0.1), (20, 0.2), (40, 0.9))]
    picture = ET.fromstring(latency_plot("a < b", [1, 2, 4], found, x_label="requests/s"))
    lines = picture.findall(f".//{SVG}polyline")
    assert len(lines) == 4
    assert all(len(line.get("points").split()) == 3 for line in lines)
    heights = [float(point.split(",")[1]) for point in lines[0].get("points").split()]
    assert heights == sorted(heights, reverse=True), "latency grows, so the line climbs"
    assert "a < b" in "".join(picture.itertext())
    ET.fromstring(throughput_plot("t", [1, 2, 4], found, x_label="users"))


def test_a_timeline_has_a_bar_for_each_part_of_each_request():
    records = [
        record(0.0, [2.0, 3.0], prefill_s=0.5, ended_s=3.0),
        record(1.0, [], error="http_500", ended_s=1.5),
    ]
    picture = ET.fromstring(timeline_plot(run_of("steady", records), "t"))
    bars = [bar for bar in picture.findall(f".//{SVG}rect") if bar.find(f"{SVG}title") is not None]
    widths = [float(bar.get("width")) for bar in bars[:3]]
    assert widths[0] / widths[1] == pytest.approx(3.0, rel=0.02), "1.5 s of queue, 0.5 s of prefill"
    assert widths[2] / widths[1] == pytest.approx(2.0, rel=0.02), "1 s of text"
    assert any("http_500" in bar.find(f"{SVG}title").text for bar in bars)
    assert "failed" in "".join(picture.itertext())


def test_rounds_are_interleaved_and_the_order_turns_around():
    order = []

    def measure(peer: str, run_id: str):
        order.append((peer, run_id))
        return run_at(20 if peer == "ours" else 10, 0.1)

    found = interleave(["ours", "theirs"], measure, rounds=3, run_id="x", slo=Slo(), tell=lambda _: None)
    assert [peer for peer, _ in order] == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert len({run_id for _, run_id in order}) == 6, "texts of its own for every run"
    rows = {row["metric"]: row for row in compared(found)}
    ratio = rows["output tok/s"]["ratios"]["theirs"]
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((1.83, 1.83, 1.83), abs=0.01)
    assert "long prompt's TTFT" not in rows, "missing values have no row"
    assert plain(compared(found))[0]["ratios"]["theirs"]["median"] == ratio.median


def test_ratios_are_taken_within_a_round():
    ours = [{"all": {"x": value}} for value in (10.0, 30.0, None, 8.0)]
    theirs = [{"all": {"x": value}} for value in (5.0, 10.0, 4.0, 0.0)]
    assert ratios(ours, theirs, ("all", "x")) == [2.0, 3.0]
    assert Range.of([3.0, 1.0, 2.0]) == Range(median=2.0, low=1.0, high=3.0)


def test_tables_report_the_run():
    records = [
        record(0.0, [0.5, 2.0], tokens=2, tenant="a"),
        record(0.0, [], tenant="b", error="refused"),
    ]
    found = summary(run_of("mixed", records), Slo())
    rows = dict(tables.overview(found))
    assert rows["requests"] == "1 of 2 in 2.0 s"
    assert rows["error refused"] == "1"
    assert rows["longest gap"] == "1.50 s"
    latencies = {row[0]: row[1:] for row in tables.latencies(found)}
    assert latencies["TTFT"][0] == "500.0 ms"
    assert len(tables.LATENCY_COLUMNS) == len(latencies["TTFT"]) + 1

"""Results as rows of text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.loadgen.compare import Range

Row = tuple[str, ...]
LATENCY_COLUMNS = ("", "mean", "p50", "p95", "p99", "max")
_LATENCIES = {"TTFT": "ttft_s", "inter-token": "itl_s", "per token": "tpot_s", "end-to-end": "e2e_s"}


def seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def overview(found: Mapping[str, Any]) -> list[Row]:
    """A run's rates and counts, one per line."""
    whole, client = found["all"], found["client"]
    slo = found["slo"]
    rows: list[Row] = [
        ("requests", f"{whole['ok']} of {whole['requests']} in {whole['duration_s']:.1f} s"),
        ("requests/s", f"{whole['requests_per_s']:.2f}"),
        ("output tok/s", f"{whole['output_tokens_per_s']:.1f}"),
        (
            "tokens",
            f"{whole['prompt_tokens']} in ({whole['cached_tokens']} cached), {whole['output_tokens']} out",
        ),
        *drafts(whole),
        ("longest gap", seconds(whole["longest_gap_s"])),
        (
            "goodput",
            f"{whole['goodput_per_s']:.2f}/s ({whole['good_share']:.0%} within TTFT {slo['ttft_s']:g} s, "
            f"{slo['itl_s'] * 1e3:g} ms a token)",
        ),
        (
            "client",
            f"{client['cpu_us_per_token']:.0f} µs of CPU a token; at most {seconds(whole['late_s'])} late",
        ),
    ]
    rows += [
        (name.removesuffix("_s").replace("_", " "), seconds(item)) for name, item in found["special"].items()
    ]
    if found["fairness"] is not None:
        fair = found["fairness"]
        shares = ", ".join(f"{tenant or 'none'} {tokens:.0f}" for tenant, tokens in fair["tokens"].items())
        rows.append(
            ("fairness", f"Jain {fair['jain']:.3f} over {fair['contended_s']:.1f} s (tokens: {shares})")
        )
    if whole["stopped"]:
        rows.append(("given up", f"{whole['stopped']} by plan"))
    rows += [(f"error {kind}", str(count)) for kind, count in sorted(whole["errors"].items())]
    return rows


def drafts(whole: Mapping[str, Any]) -> list[Row]:
    drafted, accepted = whole["drafted_tokens"], whole["accepted_tokens"]
    return [("drafts", f"{accepted} of {drafted} accepted ({accepted / drafted:.0%})")] if drafted else []


def latencies(found: Mapping[str, Any]) -> list[Row]:
    """Rows under LATENCY_COLUMNS: the whole run, then each group's TTFT and inter-token times."""
    rows = [_latency(name, found["all"][key]) for name, key in _LATENCIES.items()]
    for group, figures in found["groups"].items():
        rows.append(_latency(f"{group}: TTFT", figures["ttft_s"]))
        rows.append(_latency(f"{group}: inter-token", figures["itl_s"]))
    return rows


def _latency(name: str, spread: Mapping[str, float] | None) -> Row:
    if spread is None:
        return (name, *["–"] * 5)
    return (name, *(seconds(spread[column]) for column in LATENCY_COLUMNS[1:]))


def comparison_columns(peers: Sequence[str]) -> Row:
    first, *others = peers
    return ("", *peers, *(f"{first} ÷ {other}" for other in others))


def comparison(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        (
            row["metric"],
            *(_range(item, is_time=_is_time(row["metric"])) for item in row["peers"].values()),
            *(_range(item, is_time=False) for item in row["ratios"].values()),
        )
        for row in rows
    ]


def _is_time(metric: str) -> bool:
    return not metric.endswith("/s") and "Jain" not in metric


def _range(item: Range | None, *, is_time: bool) -> str:
    if item is None:
        return "–"
    if is_time:
        return f"{seconds(item.median)} [{seconds(item.low)} – {seconds(item.high)}]"
    return f"{item.median:.3g} [{item.low:.3g} – {item.high:.3g}]"

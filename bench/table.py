"""The benchmark table of the README, as Markdown, from a result file of `bench/compare.py`.

python bench/table.py bench/results/compare.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# workload: what it is, the metric that it is about, and how it is written
ROWS = {
    ("steady", "8"): ("steady: 8 users, 48 in / 48 out", "output tok/s", "tok/s"),
    ("steady", "16"): ("steady: 16 users on 16 slots", "output tok/s", "tok/s"),
    ("stall", "gap"): (
        "stall: longest gap of 7 streams, a 3,000-token prompt arrives",
        "streams' longest gap",
        "s",
    ),
    ("stall", "ttft"): ("stall: TTFT of that prompt", "long prompt's TTFT", "s"),
    ("burst", ""): ("burst: 8 share a warm 1,000-token system prompt, mean TTFT", "TTFT mean", "s"),
    ("turns", ""): ("turns: 12 conversations on 8 slots, later TTFT mean", "later turns, TTFT mean", "s"),
}


ALONE = {  # bars of ours alone: how they are written
    "trace: TTFT p95, s": "trace at 80 % of capacity (16 slots, `target_itl_ms` 400): TTFT p95 {:.2f} s",
    "trace: inter-token p99, ms": "inter-token p99 {:.0f} ms",
    "tenants: fairness (Jain)": "fairness when one of three tenants sends ten times the load: {:.3f}",
    "mixed: urgent TTFT p95 later, ms": "urgent first tokens under background load: {:.0f} ms later (p95)",
}


def row(report: dict[str, Any], key: tuple[str, str], peers: list[str]) -> str | None:
    """One line of the table, or None where the file does not have it."""
    claim = report["claims"].get(key[0], {})
    claim = claim.get(key[1], claim)
    name, metric, unit = ROWS[key]
    found = next((item for item in claim.get("compared", ()) if item["metric"] == metric), None)
    if found is None:
        return None
    cells = [_cell(found["peers"].get(peer), unit) for peer in peers]
    ratio = found["ratios"].get(peers[1])
    shown = f"{ratio['median']:.2f} [{ratio['low']:.2f}–{ratio['high']:.2f}]" if ratio else "–"
    return f"| {name} | {' | '.join(cells)} | {shown} |"


def _cell(item: dict[str, float] | None, unit: str) -> str:
    if item is None:
        return "–"
    return f"{item['median']:.0f} {unit}" if unit == "tok/s" else f"{item['median']:.2f} {unit}"


def table(report: dict[str, Any]) -> str:
    peers = list(dict.fromkeys(peer for claim in _claims(report) for peer in claim.get("rounds", {})))
    made = report["conditions"]
    if made["quick"]:
        raise SystemExit("made with --quick: its figures mean nothing")
    lines = [
        f"| workload | {' | '.join(peers)} | {peers[0]} ÷ {peers[1]} |",
        f"|---|{'---|' * len(peers)}---|",
        *(line for key in ROWS if (line := row(report, key, peers)) is not None),
        "",
        *([f"stretto alone: {'; '.join(own)}.", ""] if (own := alone(report)) else []),
        f"{made['cpu']}, {made['cores']} cores, {made['threads']} threads; {made['model']}; "
        f"stretto {made['stretto']} ({made['commit']}), llama.cpp of llama-cpp-python "
        f"{made['llama_cpp_python']}; `flash_attention: {made['flash_attention']}`; {made['date']}; "
        f"medians of {made['rounds']} rounds{_more_rounds(report)}, ratios with range{_again(report)}.",
    ]
    return "\n".join(lines)


def _more_rounds(report: dict[str, Any]) -> str:
    """Of steady, whose two servers are close to each other."""
    found = report["claims"].get("steady", {}).get("8", {}).get("rounds", {})
    count = max(map(len, found.values()), default=0)
    return f" ({count} of steady)" if count > report["conditions"]["rounds"] else ""


def _again(report: dict[str, Any]) -> str:
    """Claims that were measured anew later, by the commit that they were measured with."""
    later: dict[str, list[str]] = {}
    for name, claim in report["claims"].items():
        if "conditions" in claim:
            later.setdefault(claim["conditions"]["commit"], []).append(name)
    return "".join(f"; {', '.join(names)} with {commit}" for commit, names in later.items())


def alone(report: dict[str, Any]) -> list[str]:
    """What has no peer to compare with."""
    bars = {bar["name"]: bar["value"] for claim in report["claims"].values() for bar in claim.get("bars", ())}
    return [text.format(bars[name]) for name, text in ALONE.items() if bars.get(name) is not None]


def _claims(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = list(report["claims"].values())
    inner = [item for claim in found for name, item in claim.items() if name != "conditions"]
    return found + [item for item in inner if isinstance(item, dict)]


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(table(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

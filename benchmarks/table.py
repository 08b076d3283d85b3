"""Prints the benchmark tables as Markdown, from a result file of `benchmarks/compare.py`.

    python benchmarks/table.py benchmarks/results/compare-neoverse-n1.json [--summary] [--json FILE] [--check]

The full table is that of benchmarks/README.md, `--summary` the rows of the README. `--json` writes its
lines as a list. `--check` exits 1 if the page does not contain it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# workload: its title, its metric and the unit
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
    ("turns", "e2e"): ("turns: a request from end to end, mean", "end-to-end mean", "s"),
    ("turns", "makespan"): ("turns: all conversations done", "makespan", "s"),
    ("neighbour", ""): ("neighbour: 8 users beside one busy process", "output tok/s", "tok/s"),
}


SUMMARY = {  # the rows of the README: what is measured, with an arrow for what is better
    ("steady", "8"): "output of 8 users, 48 tokens in and out ↑",
    ("stall", "gap"): "longest pause of 7 streams when a 3,000-token prompt arrives ↓",
    ("burst", ""): "mean time to first token, 8 requests with a cached 1,000-token system prompt ↓",
    ("turns", ""): "mean time to first token of later turns, 12 conversations on 8 slots ↓",
    ("turns", "makespan"): "all of these conversations done ↓",
    ("neighbour", ""): "output of 8 users beside one busy process ↑",
}
ALONE = {  # bars of Stretto alone, and their wording
    "trace: TTFT p95, s": "trace at 80 % of capacity (16 slots, `target_itl_ms` 400): TTFT p95 {:.2f} s",
    "trace: inter-token p99, ms": "inter-token p99 {:.0f} ms",
    "tenants: fairness (Jain)": "fairness when one of three tenants sends ten times the load: {:.3f}",
    "mixed: urgent TTFT p95 later, ms": "urgent first tokens under background load: {:.0f} ms later (p95)",
}


def row(report: dict[str, Any], key: tuple[str, str], peers: list[str], name: str = "") -> str | None:
    """One line of the table, or None where the file does not have it."""
    claim = report["claims"].get(key[0], {})
    claim = claim.get(key[1], claim)
    own_name, metric, unit = ROWS[key]
    found = next((item for item in claim.get("compared", ()) if item["metric"] == metric), None)
    if found is None:
        return None
    cells = [_cell(found["peers"].get(peer), unit) for peer in peers]
    ratio = found["ratios"].get(peers[1])
    shown = f"{ratio['median']:.2f} [{ratio['low']:.2f}–{ratio['high']:.2f}]" if ratio else "–"
    return f"| {name or own_name} | {' | '.join(cells)} | {shown} |"


def _cell(item: dict[str, float] | None, unit: str) -> str:
    if item is None:
        return "–"
    return f"{item['median']:.0f} {unit}" if unit == "tok/s" else f"{item['median']:.2f} {unit}"


def _peers(report: dict[str, Any]) -> list[str]:
    if report["conditions"]["quick"]:
        raise SystemExit("made with --quick: its figures mean nothing")
    return list(dict.fromkeys(peer for claim in _claims(report) for peer in claim.get("rounds", {})))


def _head(peers: list[str]) -> list[str]:
    return [
        f"| workload | {' | '.join(peers)} | {peers[0]} ÷ {peers[1]} |",
        f"|---|{'---|' * len(peers)}---|",
    ]


def summary(report: dict[str, Any]) -> str:
    """The rows and the conditions in one line."""
    peers = _peers(report)[:2]
    made = report["conditions"]
    model = made["model"].rsplit(".", 2)[0]
    lines = [
        *_head(peers),
        *(line for key, name in SUMMARY.items() if (line := row(report, key, peers, name)) is not None),
        "",
        f"{made['cpu']}, {made['cores']} cores, {made['threads']} threads; {model}; both with the "
        f"llama.cpp of llama-cpp-python {made['llama_cpp_python']}; default settings; "
        f"medians of {made['rounds']} rounds{_more_rounds(report, 'the first row')}, ratios with range; "
        f"{made['date']}, commit {made['commit']}{_again(report)}.",
    ]
    return "\n".join(lines)


def table(report: dict[str, Any]) -> str:
    peers = _peers(report)
    made = report["conditions"]
    lines = [
        *_head(peers),
        *(line for key in ROWS if (line := row(report, key, peers)) is not None),
        "",
        *([f"stretto alone: {'; '.join(own)}.", ""] if (own := alone(report)) else []),
        f"{made['cpu']}, {made['cores']} cores, {made['threads']} threads; {made['model']}; "
        f"stretto {made['stretto']} ({made['commit']}), llama.cpp of llama-cpp-python "
        f"{made['llama_cpp_python']}; `flash_attention: {made['flash_attention']}`; {made['date']}; "
        f"medians of {made['rounds']} rounds{_more_rounds(report)}, ratios with range{_again(report)}.",
    ]
    return "\n".join(lines)


def _more_rounds(report: dict[str, Any], name: str = "steady") -> str:
    """`steady` has more rounds, because its two servers are close to each other."""
    found = report["claims"].get("steady", {}).get("8", {}).get("rounds", {})
    count = max(map(len, found.values()), default=0)
    return f" ({count} of {name})" if count > report["conditions"]["rounds"] else ""


def _again(report: dict[str, Any]) -> str:
    """Claims that were measured again later, with the commit of that measurement."""
    later: dict[str, list[str]] = {}
    usual = report["conditions"]["rounds"]
    for name, claim in report["claims"].items():
        if "conditions" in claim:
            rounds = claim["conditions"]["rounds"]
            note = "" if rounds == usual else f" ({rounds} round{'s' if rounds > 1 else ''})"
            later.setdefault(claim["conditions"]["commit"], []).append(f"{name}{note}")
    return "".join(f"; {', '.join(names)} with {commit}" for commit, names in later.items())


def alone(report: dict[str, Any]) -> list[str]:
    """Figures without a peer to compare with."""
    bars = {bar["name"]: bar["value"] for claim in report["claims"].values() for bar in claim.get("bars", ())}
    return [text.format(bars[name]) for name, text in ALONE.items() if bars.get(name) is not None]


def _claims(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = list(report["claims"].values())
    inner = [item for claim in found for name, item in claim.items() if name != "conditions"]
    return found + [item for item in inner if isinstance(item, dict)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="a result file of benchmarks/compare.py")
    parser.add_argument("--summary", action="store_true", help="the rows of the README")
    parser.add_argument("--json", type=Path, help="write the lines of the table to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if the page does not contain the table")
    chosen = parser.parse_args()
    report = json.loads(chosen.results.read_text(encoding="utf-8"))
    made = summary(report) if chosen.summary else table(report)
    page = ROOT / ("README.md" if chosen.summary else "benchmarks/README.md")
    print(made)
    if chosen.json:
        chosen.json.write_text(json.dumps(made.splitlines(), ensure_ascii=False) + "\n", encoding="utf-8")
    if chosen.check and made not in page.read_text(encoding="utf-8"):
        print(f"missed: {page.relative_to(ROOT)} does not contain this table", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The published tables come from a result file, and only from a full run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.table import summary as short_table
from benchmarks.table import table
from stretto.loadgen import compare
from stretto.loadgen.figures import Slo, summary
from tests.unit.loadgen.test_figures import record, run_of

CONDITIONS = {
    "cpu": "A CPU", "cores": 2, "threads": 2, "model": "m.gguf", "stretto": "1.0", "commit": "abc",
    "llama_cpp_python": "0.3.36", "date": "2026-01-01", "rounds": 3, "quick": False,
    "flash_attention": "auto",
}  # fmt: skip


def report(**more) -> dict:
    def rounds(ttft_s: float) -> list[dict]:
        return [summary(run_of("burst", [record(0.0, [ttft_s * part])]), Slo()) for part in (0.9, 1.0, 1.2)]

    found = {"stretto": rounds(0.5), "llama-server": rounds(5.0)}
    claim = {"rounds": found, "compared": compare.plain(compare.compared(found))}
    return {"conditions": {**CONDITIONS, **more}, "claims": {"burst": claim, "itl": {"points": []}}}


def test_rows_have_medians_and_ratios_with_their_range():
    lines = table(report()).splitlines()
    assert lines[0] == "| workload | stretto | llama-server | stretto ÷ llama-server |"
    (burst,) = [line for line in lines if line.startswith("| burst")]
    assert burst.endswith("| 0.50 s | 5.00 s | 0.10 [0.10–0.10] |")
    assert "A CPU, 2 cores" in lines[-1]
    assert not any(line.startswith("| steady") for line in lines), "unmeasured workloads have no row"


def test_remeasured_rows_name_their_commit():
    made = report()
    made["claims"]["burst"]["conditions"] = {**CONDITIONS, "commit": "def"}
    assert table(made).endswith("ratios with range; burst with def.")


def test_the_summary_has_an_arrow_in_every_row_and_the_machine():
    lines = short_table(report()).splitlines()
    rows = [line for line in lines[2:] if line.startswith("|")]
    assert len(rows) == 1
    assert rows[0].split("|")[1].strip().endswith("↓")
    assert rows[0].endswith("| 0.50 s | 5.00 s | 0.10 [0.10–0.10] |")
    assert lines[-1].startswith("A CPU, 2 cores")
    assert lines[-1].endswith("commit abc.")


def test_the_pages_hold_the_tables_of_the_committed_results():
    root = Path(__file__).parents[3]
    made = json.loads((root / "benchmarks/results/compare-neoverse-n1.json").read_text(encoding="utf-8"))
    assert short_table(made) in (root / "README.md").read_text(encoding="utf-8")
    assert table(made) in (root / "benchmarks/README.md").read_text(encoding="utf-8")


def test_quick_runs_are_not_published():
    with pytest.raises(SystemExit, match="mean nothing"):
        table(report(quick=True))
    with pytest.raises(SystemExit, match="mean nothing"):
        short_table(report(quick=True))

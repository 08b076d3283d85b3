"""The trace replay: deterministic, fed by either kind of trace, judged against another result."""

from __future__ import annotations

import json

import pytest

from benchmarks.replay import main

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{index:02}.0000000,{400 + 300 * (index % 5)},{40 + index}\n" for index in range(24)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 700 * n, "input_length": 9000, "output_length": 900, "hash_ids": [0, 1, 2 + n]})
    + "\n"
    for n in range(12)
)


@pytest.fixture(params=["csv", "jsonl"])
def trace(request, tmp_path):
    path = tmp_path / f"trace.{request.param}"
    path.write_text({"csv": AZURE, "jsonl": MOONCAKE}[request.param])
    return path


def figures(tmp_path, *arguments) -> dict:
    out = tmp_path / "out.json"
    assert main([*map(str, arguments), "--seeds", "1", "--json", str(out)]) == 0
    (found,) = json.loads(out.read_text())["results"].values()
    return found


@pytest.mark.parametrize("target", ["400", "auto"])
def test_a_trace_is_replayed_and_every_run_is_the_same(trace, tmp_path, target):
    found = figures(tmp_path, "--trace", trace, "--target-itl-ms", target)
    assert found == figures(tmp_path, "--trace", trace, "--target-itl-ms", target)
    assert found["means"]["failed"] == 0
    assert 0 < found["means"]["ttft_mean_s"] <= found["means"]["ttft_p95_s"] <= found["means"]["ttft_max_s"]
    assert 0 < found["means"]["itl_p99_s"] < 1


def test_a_slower_result_than_the_one_it_is_compared_with_is_told(tmp_path, capsys):
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text(AZURE)
    run = ["--trace", str(trace), "--seeds", "2"]
    assert main([*run, "--json", str(out)]) == 0
    assert main([*run, "--against", str(out), "--check"]) == 0
    better = json.loads(out.read_text())
    for found in better["results"].values():
        found["means"]["ttft_p95_s"] *= 0.9
    out.write_text(json.dumps(better))
    assert main([*run, "--against", str(out), "--check"]) == 1
    assert "MISS trace.csv, arm, target 400: ttft_p95_s 1.111" in capsys.readouterr().out


def test_seeds_that_a_rule_was_not_tuned_on(tmp_path):
    trace, out = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text(AZURE)
    assert main(["--trace", str(trace), "--seeds", "2", "--json", str(out)]) == 0
    (both,) = json.loads(out.read_text())["results"].values()
    second = figures(tmp_path, "--trace", trace, "--first-seed", "1")
    assert second["seeds"] == both["seeds"][1:]
    assert second["seeds"] != both["seeds"][:1]

"""`stretto bench` and `stretto bench compare`, as typed."""

from __future__ import annotations

import json

import pytest

from stretto.cli import main
from tests.unit.loadgen.scripted import Script, scripted


def typed(capsys, *line: str) -> tuple[int, str, str]:
    code = main(["bench", *line])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_run_prints_its_table_and_writes_json_and_plots(capsys, tmp_path):
    with scripted(Script(first_s=0.05, gap_s=0.01)) as server:
        code, out, _ = typed(
            capsys, "steady", "--url", server.url, "--users", "2", "--requests", "4", "--output", "5",
            "--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "plots"),
        )  # fmt: skip
    assert code == 0
    assert "output tok/s" in out
    assert "TTFT" in out
    assert "p99" in out
    (run,) = json.loads((tmp_path / "r.json").read_text())["runs"]
    assert run["all"]["output_tokens"] == 20
    assert len(run["requests"]) == 4
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["steady-timeline-2.svg"]


def test_several_users_make_a_curve(capsys, tmp_path):
    with scripted() as server:
        code, out, _ = typed(
            capsys, "steady", "--url", server.url, "--users", "1,2", "--requests", "2", "--output", "2",
            "--plot", str(tmp_path),
        )  # fmt: skip
    assert code == 0
    assert "steady, 1 users" in out
    names = {path.name for path in tmp_path.iterdir()}
    assert {"steady-latency.svg", "steady-throughput.svg"} <= names


def test_failures_are_seen_in_the_exit_code(capsys):
    with scripted(Script(fault="http_500")) as server:
        code, out, err = typed(capsys, "steady", "--url", server.url, "--requests", "3")
    assert code == 1
    assert "error http_500" in out
    assert "3 requests failed" in err


def test_load_is_a_share_of_the_measured_capacity(capsys):
    with scripted(Script(first_s=0.1)) as server:
        code, _, err = typed(
            capsys, "steady", "--url", server.url, "--load", "0.5", "--users", "2", "--requests", "6",
            "--output", "1",
        )  # fmt: skip
    assert code == 0
    assert "capacity" in err
    assert "50%" in err


def test_compare_two_servers(capsys, tmp_path):
    with scripted(Script(gap_s=0.01)) as fast, scripted(Script(gap_s=0.05)) as slow:
        code, out, _ = typed(
            capsys, "compare", "steady", "--peer", f"fast={fast.url}", "--peer", f"slow={slow.url}",
            "--rounds", "2", "--requests", "4", "--users", "2", "--output", "6", "--json",
            str(tmp_path / "c.json"),
        )  # fmt: skip
    assert code == 0
    assert "fast ÷ slow" in out
    rows = {row["metric"]: row for row in json.loads((tmp_path / "c.json").read_text())["compared"]}
    assert rows["output tok/s"]["ratios"]["slow"]["median"] > 1.5
    assert rows["inter-token p50"]["ratios"]["slow"]["median"] < 0.7
    assert len(fast.seen) == len(slow.seen) == 8


def test_speculation_is_compared_on_one_server(capsys, tmp_path):
    """Requests of one half say `draft_tokens: 0`; this server is slower for these."""

    def choose(body: dict) -> Script:
        return (
            Script(gap_s=0.04)
            if body.get("draft_tokens") == 0
            else Script(gap_s=0.01, accepted=3, rejected=1)
        )

    with scripted(choose) as server:
        code, out, err = typed(
            capsys, "steady", "--speculation", "compare", "--url", server.url, "--rounds", "2", "--requests",
            "3", "--users", "1,2", "--output", "6", "--json", str(tmp_path / "s.json"),
        )  # fmt: skip
    assert code == 0
    assert "on ÷ off" in out
    assert "steady, 2 users, speculation on and off" in out
    assert "drafts: 18 of 24 accepted (75%)" in out
    assert "no drafts" not in err
    points = json.loads((tmp_path / "s.json").read_text())["speculation"]
    assert len(points) == 2
    rows = {row["metric"]: row for row in points[0]["compared"]}
    assert rows["output tok/s"]["ratios"]["off"]["median"] > 1.5
    halves = [seen.body.get("draft_tokens") for seen in server.seen]
    assert halves.count(0) == halves.count(None) == 12


def test_a_server_without_speculation_is_told_apart(capsys):
    with scripted() as server:
        code, out, err = typed(
            capsys, "steady", "--speculation", "compare", "--url", server.url, "--rounds", "1", "--requests",
            "2", "--output", "2",
        )  # fmt: skip
    assert code == 0
    assert "on ÷ off" in out
    assert "no drafts were verified" in err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["steady", "--users", "x"], "--users 'x' is not a positive number"),
        (["steady", "--turns", "3"], "steady has no --turns"),
        (["steady", "--tenant", "ann"], "--tenant 'ann' is invalid"),
        (["steady", "--body", "[1]"], "--body is not a JSON object"),
        (["steady", "--users", "1,2", "--rate", "1,2"], "one curve at a time"),
        (["trace"], "no trace given"),
        (["trace", "--trace", "none.csv"], "none.csv: No such file"),
        (["compare", "steady"], "--peer"),
    ],
)
def test_invalid_options_are_reported(capsys, line, message):
    with scripted() as server:
        url = [] if line[0] == "compare" else ["--url", server.url]
        code, _, err = typed(capsys, *line, *url)
    assert code == 2
    assert message in err
    assert "hint:" in err


def test_a_comparison_needs_two(capsys):
    code, _, err = typed(capsys, "compare", "steady", "--peer", "a=http://127.0.0.1:9")
    assert code == 2
    assert "needs two servers" in err

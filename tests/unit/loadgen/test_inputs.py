"""Texts, shapes, traces and addresses: what a run is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.errors import BenchError
from stretto.loadgen.plan import Target
from stretto.loadgen.shapes import DEFAULTS, WORKLOADS, Shape
from stretto.loadgen.target import counter, find_target, parse_url
from stretto.loadgen.traces import TraceRequest, prompt, read_trace, stretched
from stretto.loadgen.words import WORDS, Texts
from stretto.loadgen.workloads import make_plan
from tests.unit.loadgen.scripted import scripted

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.6805900,16,3
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 1100, "output_length": 16, "hash_ids": [5, 6, 7]}
{"timestamp": 3000, "input_length": 1500, "output_length": 8, "hash_ids": [5, 6, 9]}
"""


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE, encoding="utf-8")
    return path


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE, encoding="utf-8")
    return path


def test_texts_follow_from_run_and_name():
    texts = Texts("run")
    assert texts.make("a", 40) == Texts("run").make("a", 40)
    assert texts.make("a", 40).split()[:5] != texts.make("b", 40).split()[:5]
    assert texts.make("a", 40).split()[:5] != Texts("other").make("a", 40).split()[:5]
    assert len(texts.make("a", 40).split()) == 40
    assert len(WORDS) == len(set(WORDS)) > 500


def test_texts_are_fitted_to_a_count():
    def three_a_word(text: str) -> int:
        return 3 * len(text.split())

    assert three_a_word(Texts("r", three_a_word).make("a", 300)) == pytest.approx(300, abs=3)


def test_every_workload_makes_its_plan_from_its_defaults(azure):
    for workload in WORKLOADS:
        shape = Shape(trace=azure) if workload == "trace" else Shape()
        plan = make_plan(workload, shape, run_id="r", texts=Texts("r"))
        assert plan.requests > 0
        ids = [shot.id for user in plan.users for shot in user.shots]
        assert len(ids) == len(set(ids))
    assert set(DEFAULTS) == set(WORKLOADS)


def test_a_size_that_a_workload_does_not_know_is_refused():
    with pytest.raises(BenchError, match="steady has no --turns"):
        Shape(turns=3).resolved("steady")
    with pytest.raises(BenchError, match="burst has no --trace"):
        Shape(trace=Path("x")).resolved("burst")
    with pytest.raises(BenchError, match="unknown workload 'stedy'"):
        Shape().resolved("stedy")


def test_azure(azure):
    first, second, third = read_trace(azure, 10)
    assert (first.at_s, first.input_tokens, first.output_tokens) == (0.0, 374, 44)
    assert second.at_s == pytest.approx(4.314579, abs=1e-5)
    assert third.at_s == pytest.approx(5.0)
    assert len(read_trace(azure, 2)) == 2


def test_a_trace_is_replayed_at_its_times_or_at_a_rate(azure):
    arrivals = read_trace(azure, 10)
    assert stretched(arrivals, 0.0)[-1] == pytest.approx(5.0)
    assert stretched(arrivals, 4.0)[-1] == pytest.approx(0.5), "three arrivals are two gaps: four a second"
    assert stretched([TraceRequest(at_s=0.0, input_tokens=1, output_tokens=1)] * 3, 2.0) == [0.0, 0.5, 1.0]


def test_trace_lengths_are_divided(azure):
    plan = make_plan("trace", Shape(trace=azure, divide=8.0, rate=4.0), run_id="r", texts=Texts("r"))
    shots = [user.shots[0] for user in plan.users]
    assert [len(shot.messages[0]["content"].split()) for shot in shots] == [47, 50, 2]
    assert [shot.max_tokens for shot in shots] == [6, 14, 1]
    assert [user.start_s for user in plan.users][-1] == pytest.approx(0.5)
    assert plan.shape["trace"] == "azure.csv", "a name, not a path of this machine"


def test_equal_blocks_are_equal_prefixes(mooncake):
    first, second = read_trace(mooncake, 10)
    texts = Texts("r")
    one, two = (prompt(arrival, "x", texts, 8.0).split() for arrival in (first, second))
    assert (len(one), len(two)) == (138, 188)
    assert one[:128] == two[:128], "two blocks of 512 / 8 tokens are shared"
    assert one[128:138] != two[128:138]
    assert second.at_s == pytest.approx(2.0)


def test_tenants_of_a_trace_are_dealt_out_by_load(tmp_path):
    path = tmp_path / "t.csv"
    rows = "".join(f"2023-11-16 18:15:{second:02}.0000000,80,8\n" for second in range(24))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows, encoding="utf-8")
    plan = make_plan("trace", Shape(trace=path, tenants=3, heavy=10), run_id="r", texts=Texts("r"))
    tenants = [user.shots[0].tenant for user in plan.users]
    assert {name: tenants.count(name) for name in set(tenants)} == {"tenant0": 20, "tenant1": 2, "tenant2": 2}


def test_the_heavy_tenant_sends_ten_times_the_others_load():
    plan = make_plan("tenants", Shape(users=2, requests=12), run_id="r", texts=Texts("r"))
    loads: dict[str, int] = {}
    for user in plan.users:
        for shot in user.shots:
            loads[shot.tenant] = loads.get(shot.tenant, 0) + 1
    assert loads == {"tenant0": 40, "tenant1": 4, "tenant2": 4}
    assert [user.shots[0].tenant for user in plan.users][:4] == ["tenant0", "tenant1", "tenant2", "tenant0"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("empty.csv", ""),
        ("columns.csv", "a,b\n1,2\n"),
        ("number.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,x,1\n"),
        ("broken.jsonl", "{"),
        ("list.jsonl", "[1]\n"),
    ],
)
def test_an_invalid_trace_is_reported(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=name):
        read_trace(path, 10)


def test_a_missing_trace(tmp_path):
    with pytest.raises(BenchError, match="No such file"):
        read_trace(tmp_path / "none.csv", 10)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000, False, "")),
        ("localhost:9", ("localhost", 9, False, "")),
        ("https://api.example/v1/", ("api.example", 443, True, "")),
        ("http://h:1/llm/v1", ("h", 1, False, "/llm")),
    ],
)
def test_addresses(url, expected):
    at = parse_url(url)
    assert (at.host, at.port, at.tls, at.path) == expected


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:99999999", "http://h:x"])
def test_no_addresses(url):
    with pytest.raises(BenchError, match="not the address"):
        parse_url(url)


def test_a_target_finds_its_model_and_its_tokenizer():
    with scripted() as server:
        target = find_target(server.url)
        count = counter(target)
        assert target.model == "scripted"
        assert count is not None
        assert count("one two three") == 3
    with scripted(tokenizes=False) as server:
        assert counter(find_target(server.url)) is None


def test_a_target_that_is_not_there():
    with pytest.raises(BenchError, match="does not answer"):
        find_target("http://127.0.0.1:9")
    assert Target(host="::1", port=80).url == "http://[::1]:80"

"""Whole workloads in client processes, against a scripted server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from stretto.errors import BenchError
from stretto.loadgen import fleet
from stretto.loadgen.figures import Slo, summary
from stretto.loadgen.plan import Gate, LoadPlan, Shot, User
from stretto.loadgen.session import capacity_per_s, measure, prepare
from stretto.loadgen.shapes import Shape
from stretto.loadgen.target import find_target
from tests.unit.loadgen.scripted import PLAIN, Script, scripted


def run(workload: str, shape: Shape, script=PLAIN, *, run_id: str = "t", workers: int = 0):
    with scripted(script) as server:
        target = find_target(server.url, timeout_s=20)
        return measure(workload, shape, target, run_id=run_id, workers=workers), server


def test_closed_loop_keeps_so_many_in_flight():
    done, server = run(
        "steady", Shape(users=4, requests=12, output_tokens=4), Script(first_s=0.1, gap_s=0.05)
    )
    assert len(done.records) == 12
    assert all(record.ok for record in done.records)
    starts = [(seen.at_s, 1) for seen in server.seen]
    ends = [(seen.sent_s[-1], -1) for seen in server.seen]
    depth = most = 0
    for _, change in sorted(starts + ends):
        depth += change
        most = max(most, depth)
    assert most <= 4
    # Three rounds of 0.25 s each.
    assert 0.7 < done.duration_s < 5


def test_open_loop_does_not_wait_for_answers():
    done, server = run("steady", Shape(requests=20, output_tokens=2, rate=40.0), Script(first_s=1.0))
    assert all(record.ok for record in done.records)
    due = [record.due_s for record in done.records]
    assert due == sorted(due)
    assert 0.05 < due[-1] < 3.0, "20 arrivals at 40 a second"
    assert len(server.seen) == 20
    assert max(seen.at_s for seen in server.seen) - min(seen.at_s for seen in server.seen) < 3.0
    assert all(record.ttft_s >= 1.0 for record in done.records)


def test_many_processes_share_one_clock():
    done, _ = run("steady", Shape(users=6, requests=12, output_tokens=3), workers=3)
    assert done.workers == 3
    assert sorted(record.id for record in done.records) == sorted(f"s{index}" for index in range(12))
    assert all(-0.01 < record.due_s <= record.sent_s <= record.ended_s for record in done.records)


def test_texts_never_repeat_between_runs():
    shape = Shape(users=2, requests=4, output_tokens=1, input_tokens=30)
    _, first = run("steady", shape, run_id="a")
    _, again = run("steady", shape, run_id="a")
    _, second = run("steady", shape, run_id="b")
    texts = [
        {seen.body["messages"][0]["content"] for seen in server.seen} for server in (first, again, second)
    ]
    assert len(texts[0]) == 4
    assert texts[0] == texts[1], "the same run id gives the same texts"
    heads = {" ".join(text.split()[:4]) for text in texts[0] | texts[2]}
    assert len(heads) == 8, "no two texts begin alike"


def test_lengths_are_counted_by_the_server():
    # The scripted tokenizer gives long words two tokens.
    done, server = run("steady", Shape(users=2, requests=4, output_tokens=1, input_tokens=200))
    assert server.tokenized > 4
    for seen in server.seen:
        words = seen.body["messages"][0]["content"].split()
        assert abs(sum(1 + (len(word) > 7) for word in words) - 200) <= 1
    assert done.shape["input_tokens"] == 200


def test_without_tokenizer_words_are_counted():
    with scripted(tokenizes=False) as server:
        measure("steady", Shape(users=1, requests=1, input_tokens=50), find_target(server.url), run_id="x")
    assert len(server.seen[0].body["messages"][0]["content"].split()) == 50


def long_prompt(body: dict) -> bool:
    return len(body["messages"][-1]["content"].split()) > 400


def test_stall_sends_the_long_prompt_among_running_streams_and_sees_them_freeze():
    frozen = threading.Event()

    def choose(body: dict) -> Script:
        if long_prompt(body):
            frozen.set()
            return Script(first_s=1.0, gap_s=0.01)
        return Script(gap_s=0.02, pauses={40: 0.8})  # all streams freeze at about the same time

    done, _ = run("stall", Shape(users=3, shared_tokens=500), choose)
    found = summary(done, Slo())
    groups = {record.group for record in done.records}
    assert groups == {"stream", "long"}
    streams = [record for record in done.records if record.group == "stream"]
    (long,) = [record for record in done.records if record.group == "long"]
    assert long.ok
    assert {record.error for record in streams} == {"stopped"}
    assert all(record.chunks_s[15] <= long.sent_s for record in streams), "each had its lead"
    assert found["special"]["streams_longest_gap_s"] == pytest.approx(0.82, abs=0.3)
    assert found["special"]["long_ttft_s"] == pytest.approx(1.0, abs=0.4)
    assert found["all"]["errors"] == {}


def test_burst_arrives_together_after_a_warm_up():
    done, server = run("burst", Shape(users=5, shared_tokens=100, output_tokens=3), Script(first_s=0.3))
    warm, *rest = server.seen
    systems = {seen.body["messages"][0]["content"] for seen in server.seen}
    assert len(systems) == 1
    assert len(rest) == 5
    assert min(seen.at_s for seen in rest) >= warm.sent_s[-1]
    assert max(seen.at_s for seen in rest) - min(seen.at_s for seen in rest) < 0.3
    assert summary(done, Slo())["all"]["requests"] == 5, "the warming one is not measured"


def test_turns_carry_the_conversation():
    _, server = run("turns", Shape(users=2, turns=3, output_tokens=2, shared_tokens=20, input_tokens=5))
    talks = [seen.body["messages"] for seen in server.seen]
    third = [talk for talk in talks if len(talk) == 5]
    assert len(third) == 2
    for talk in third:
        assert [message["role"] for message in talk] == ["user", "assistant", "user", "assistant", "user"]
        assert talk[1]["content"] == ' w0"quoted" w1"quoted"'
        assert talk[:3] in talks, "the turn before is its beginning"


def test_mixed_measures_urgent_work_alone_and_under_load():
    def choose(body: dict) -> Script:
        urgent = body["priority"] == "urgent"
        return Script(first_s=0.02 if urgent else 0.2, gap_s=0.01)

    shape = Shape(users=4, requests=32, output_tokens=8, rate=4.0)
    done, server = run("mixed", shape, choose)
    order = [seen.body["priority"] for seen in server.seen]
    assert order[:8] == ["urgent"] * 8, "alone first"
    assert order.count("background") == 32
    assert "urgent" in order[9:-1], "then among the others"
    assert len(done.records) < 8 + 32 + 32, "when the load is over, nothing more is sent"
    assert done.records[-1].ended_s == pytest.approx(done.duration_s, abs=1.0)
    special = summary(done, Slo())["special"]
    assert special["urgent_ttft_p95_alone_s"] < 0.5
    assert special["urgent_delay_s"] < 0.5


def test_a_gate_opens_although_its_requests_fail():
    users = [
        User(
            shots=[Shot(id="bad", messages=[{"role": "user", "content": "a"}], max_tokens=9, group="first")]
        ),
        User(
            shots=[
                Shot(id="next", messages=[{"role": "user", "content": "b"}], max_tokens=2, group="second")
            ],
            begin=Gate(group="first", tokens=5),
        ),
    ]
    with scripted(lambda body: Script(fault="cut" if body["max_tokens"] == 9 else "")) as server:
        done = fleet.run(LoadPlan(workload="own", run_id="g", users=users), find_target(server.url))
    assert {record.id: record.error for record in done.records} == {"bad": "cut", "next": ""}


def test_a_dead_server_gives_errors_by_kind_and_figures():
    with scripted() as server:
        target = find_target(server.url)
        plan = prepare("steady", Shape(users=2, requests=4), target, "x")
    found = summary(fleet.run(plan, target), Slo())
    assert found["all"]["errors"] == {"refused": 4}
    assert found["all"]["ttft_s"] is None
    assert found["all"]["output_tokens_per_s"] == 0


def test_capacity_is_the_rate_with_all_users_busy():
    with scripted(Script(first_s=0.2)) as server:
        target = find_target(server.url)
        full = capacity_per_s("steady", Shape(requests=12, output_tokens=1), target, users=4, run_id="c")
    assert 4 < full < 21, "four at a time, 0.2 s each: at most 20 a second"


def test_a_load_for_a_workload_without_a_rate_is_refused():
    with scripted() as server, pytest.raises(BenchError, match="no arrival rate"):
        capacity_per_s("burst", Shape(), find_target(server.url), users=4, run_id="c")


def test_client_costs_little_cpu_for_each_token():
    done, _ = run("steady", Shape(users=8, requests=16, output_tokens=200), Script(gap_s=0.002))
    tokens = sum(record.tokens for record in done.records)
    assert tokens == 3200
    assert 1e6 * done.client_cpu_s / tokens < 300, "about 20 µs on a quiet machine; never a burden"


def test_a_worker_exits_with_its_parent():
    with scripted(Script(fault="silent")) as server:
        code = (
            "import sys; from stretto.loadgen.target import find_target;"
            "from stretto.loadgen.session import measure; from stretto.loadgen.shapes import Shape;"
            "measure('steady', Shape(users=1, requests=1), find_target(sys.argv[1]), run_id='x')"
        )
        parent = subprocess.Popen([sys.executable, "-c", code, server.url])
        until = time.monotonic() + 60
        while not server.seen and time.monotonic() < until:
            time.sleep(0.05)
        children = _children(parent.pid)
        assert len(children) == 1
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        while any(_is_alive(child) for child in children) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(_is_alive(child) for child in children)


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False

"""One request against a scripted server: exact times, and every way in which a peer can break."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
import uvloop

from stretto.loadgen.exchange import encode, perform
from stretto.loadgen.plan import Shot, Target
from stretto.loadgen.records import LoadRecord
from stretto.loadgen.target import find_target
from tests.unit.loadgen.scripted import Script, scripted

SHOT = Shot(id="r", messages=[{"role": "user", "content": "hello"}], max_tokens=6, tenant="ann")


def once(target: Target, shot: Shot = SHOT, *, keeps_text: bool = False) -> tuple[LoadRecord, str]:
    record = LoadRecord(id=shot.id, group="all", due_s=time.monotonic())

    async def send() -> str:
        request = encode(target, shot, shot.messages)
        return await perform(target, request, record, keeps_text=keeps_text, notice=None, stop=None)

    return record, uvloop.run(send())


def failed(script: Script, *, timeout_s: float = 20.0) -> LoadRecord:
    with scripted(script) as server:
        return once(find_target(server.url, timeout_s=timeout_s))[0]


def test_times_are_those_of_the_server():
    script = Script(first_s=0.3, gap_s=0.1, pauses={4: 0.4})
    with scripted(script) as server:
        record, _ = once(find_target(server.url))
    (seen,) = server.seen
    assert record.ok
    assert record.ttft_s == pytest.approx(0.3, abs=0.15)
    assert record.ttft_s >= 0.3
    # What the client saw is what the server wrote, up to a scheduler's whim.
    assert record.chunks_s == pytest.approx(seen.sent_s, abs=0.05)
    gaps = record.gaps_s()
    assert len(gaps) == 5
    assert max(range(5), key=gaps.__getitem__) == 3, "the pause before the fifth token is the longest gap"
    assert gaps[3] == pytest.approx(0.5, abs=0.1)


def test_facts_are_read_from_the_last_events():
    with scripted(Script(per_event=2)) as server:
        record, text = once(find_target(server.url), keeps_text=True)
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (11, 4, 6)
    assert len(record.chunks_s) == 3, "three pieces of two tokens"
    assert record.finish_reason == "length"
    assert record.prefill_s == pytest.approx(0.0015)
    assert text == ' w0"quoted" w2"quoted" w4"quoted"'


def test_the_request_body():
    with scripted() as server:
        target = find_target(
            f"{server.url}/v1/",
            key="k0",
            tenant_keys={"ann": "k1"},
            tenant_header="X-Tenant",
            body={"top_k": 1, "temperature": 0.5},
        )
        once(target, msgspec.structs.replace(SHOT, priority="urgent"))
        once(msgspec.structs.replace(target, api="completions", tenant_keys={}))
    first, second = server.seen
    assert first.headers["authorization"] == "Bearer k1"
    assert first.headers["x-tenant"] == "ann"
    assert first.body["model"] == "scripted"
    assert first.body["priority"] == "urgent"
    assert (first.body["top_k"], first.body["temperature"]) == (1, 0.5)
    assert first.body["stream_options"] == {"include_usage": True}
    assert second.headers["authorization"] == "Bearer k0"
    assert second.body["prompt"] == "hello"
    assert "priority" not in second.body


def test_refused():
    with scripted() as server:
        target = find_target(server.url)
    record, _ = once(target)
    assert (record.error, record.chunks_s, record.ttft_s) == ("refused", [], None)


def test_status_500():
    record = failed(Script(fault="http_500"))
    assert record.error == "http_500"
    assert "scripted failure" in record.detail


@pytest.mark.parametrize("fault", ["cut", "reset"])
def test_an_interrupted_stream_keeps_its_chunks(fault):
    record = failed(Script(gap_s=0.05, fault=fault, fault_after=3))
    assert record.error in {"cut", "reset"}
    assert len(record.chunks_s) == 3


def test_error_event():
    record = failed(Script(fault="error_event"))
    assert (record.error, record.detail) == ("stream_error", "the model broke")


@pytest.mark.parametrize("fault", ["html", "garbage"])
def test_not_a_stream(fault):
    assert failed(Script(fault=fault)).error == "bad_reply"


@pytest.mark.parametrize("fault", ["endless", "silent"])
def test_without_end_is_given_up_in_time(fault):
    started = time.monotonic()
    record = failed(Script(gap_s=0.02, fault=fault), timeout_s=0.5)
    assert record.error == "timeout"
    assert time.monotonic() - started < 10
    assert bool(record.chunks_s) == (fault == "endless")


def test_stop_gives_up_without_an_error_of_the_peer():
    async def send(target: Target, record: LoadRecord) -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.3, stop.set)
        request = encode(target, SHOT, SHOT.messages)
        await perform(target, request, record, keeps_text=False, notice=None, stop=stop)

    record = LoadRecord(id="r", group="all")
    with scripted(Script(gap_s=0.02, fault="endless")) as server:
        uvloop.run(send(find_target(server.url), record))
    assert record.error == "stopped"
    assert len(record.gaps_s()) == len(record.chunks_s), "the gap it was given up in counts"

"""Calls with several entries at the worker: isolation, order, and what is measured."""

from __future__ import annotations

import asyncio

import msgspec

from stretto.rpc import messages as m
from stretto.rpc.frames import decode
from tests.unit.worker.test_methods import runtime


def off_the_wire(requests: list[object]) -> m.Message:
    call = {"jsonrpc": "2.0", "id": 1, "method": "batch_generate", "params": {"requests": requests}}
    return decode(msgspec.json.encode(call)).params  # type: ignore[union-attr]


def test_an_entry_of_a_wrong_shape_fails_alone_and_the_others_are_served():
    async def run():
        async with runtime() as (_, client):
            requests = [
                {"stream_id": "a", "prompt": "one", "max_tokens": 3},
                {"stream_id": "b", "prompt": "two", "colour": "blue"},
                {"stream_id": "c", "prompt": "three", "max_tokens": 3},
                {"stream_id": "d", "prompt": 4},
                {"stream_id": "c", "prompt": "again"},
            ]
            answer = await client.call("batch_generate", off_the_wire(requests))
            assert [item.success for item in answer.results] == [True, False, True, False, False]
            codes = [item.error.code for item in answer.results if item.error is not None]
            assert codes == ["invalid_request", "invalid_request", "duplicate_request_id"]
            assert "colour" in answer.results[1].error.message
            assert (await client.end("a")).error is None
            assert (await client.end("c")).error is None

    asyncio.run(run())


def test_stats_tell_sizes_groups_times_and_refusals_of_batches():
    async def run():
        async with runtime() as (_, client):
            assert (await client.call("stats")).batches == m.BatchTelemetry()
            requests = [
                m.GenerateParams(stream_id="a", prompt="one", max_tokens=2),
                m.GenerateParams(stream_id="b", prompt="two", max_tokens=2, model_id="simulated"),
                m.GenerateParams(stream_id="c", prompt="x", sampling={"temperature": "hot"}),
            ]
            await client.call("batch_generate", m.BatchGenerateParams(requests=requests))
            one = {"stream_id": "d", "prompt": "x", "max_tokens": 2}
            await client.call("batch_generate", off_the_wire([one, {"stream_id": 5}]))
            seen = (await client.call("stats")).batches
            assert (seen.calls, seen.requests, seen.groups) == (2, 5, 3)
            assert (seen.refused, seen.unreadable) == (2, 1)
            assert (seen.size_last, seen.size_max) == (2, 3)
            assert 0 < seen.seconds_last < seen.seconds

    asyncio.run(run())


def test_tokenize_and_detokenize_share_a_call_and_each_fails_alone():
    async def run():
        async with runtime() as (_, client):
            calls = [
                m.TokenCall(tokenize=m.TokenizeParams(text="hello")),
                m.TokenCall(tokenize=m.TokenizeParams(text="x", model_id="nothing")),
                m.TokenCall(detokenize=m.DetokenizeParams(tokens=[104, 105])),
                m.TokenCall(detokenize=m.DetokenizeParams(tokens=[-1])),
                m.TokenCall(),
            ]
            answers = (await client.call("batch_tokenize", m.BatchTokenizeParams(calls=calls))).results
            alone = await client.call("tokenize", m.TokenizeParams(text="hello"))
            assert answers[0].tokens == alone.tokens
            assert answers[2].text == (await client.call("detokenize", calls[2].detokenize)).text
            codes = [None if answer.error is None else answer.error.code for answer in answers]
            assert codes == [None, "model_not_found", None, "invalid_token", "invalid_request"]

    asyncio.run(run())

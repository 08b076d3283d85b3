from __future__ import annotations

import asyncio

import pytest

from stretto.client.api import Delta
from stretto.errors import PassFailedError, ShuttingDownError
from stretto.rpc.messages import GenerateParams, StreamEnd, ToolCallDelta, UsageMessage
from stretto.server.generation import collect, finish_reason, joined_calls, merged, start, total_usage
from tests.server.scripted import HANG, ScriptedClient, end, said

PARAMS = GenerateParams(stream_id="s", prompt="x", sampling={"seed": (1 << 63) - 1})


def test_forks_share_the_prompt_and_differ_in_their_seed() -> None:
    async def run() -> ScriptedClient:
        worker_client = ScriptedClient()
        start(worker_client, PARAMS, 3)
        return worker_client

    calls = asyncio.run(run()).calls
    assert [call.stream_id for call in calls] == ["s", "s-1", "s-2"]
    assert [call.fork_of for call in calls] == ["", "s", "s"]
    seeds = [call.sampling["seed"] for call in calls]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_deltas_of_all_streams_keep_their_order() -> None:
    async def run() -> dict[int, str]:
        worker_client = ScriptedClient(said(*"abcdefgh"))
        texts = {0: "", 1: "", 2: ""}
        async for index, delta in merged(start(worker_client, PARAMS, 3)):
            texts[index] += delta.text
        assert worker_client.cancelled == []
        return texts

    assert asyncio.run(run()) == dict.fromkeys(range(3), "abcdefgh")


@pytest.mark.parametrize("n", [1, 3])
def test_one_failure_ends_all(n: int) -> None:
    async def run() -> list[str]:
        steps = [Delta(text="a"), PassFailedError("broke")]
        worker_client = ScriptedClient(lambda params: [HANG] if params.fork_of else steps)
        with pytest.raises(PassFailedError):
            await collect(start(worker_client, PARAMS, n))
        with pytest.raises(PassFailedError):
            async for _ in merged(start(worker_client, PARAMS, n)):
                pass
        return worker_client.cancelled

    assert len(asyncio.run(run())) == 2 * (n - 1)


def test_an_end_that_the_server_chose_is_an_error() -> None:
    with pytest.raises(ShuttingDownError):
        finish_reason(StreamEnd(stream_id="s", finish_reason="cancelled"), calls=False)


@pytest.mark.parametrize(
    ("reason", "calls", "shown"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("tool_calls", True, "tool_calls"),
        ("length", True, "length"),
    ],
)
def test_finish_reasons(reason: str, calls: bool, shown: str) -> None:
    assert finish_reason(StreamEnd(stream_id="s", finish_reason=reason), calls=calls) == shown


def test_every_prompt_counts_once_and_every_answer() -> None:
    one = UsageMessage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, reasoning_tokens=1)
    total = total_usage([one] * 6, 3)
    assert (total.prompt_tokens, total.cached_tokens) == (20, 8)
    assert (total.completion_tokens, total.reasoning_tokens) == (18, 6)


def test_complete_answers_are_joined() -> None:
    async def run() -> tuple[str, str]:
        steps = [Delta(reasoning="a"), Delta(text="b", reasoning="c"), Delta(text="d"), end()]
        (answer,) = await collect(start(ScriptedClient(lambda params: steps), PARAMS))
        return answer.text, answer.reasoning

    assert asyncio.run(run()) == ("bd", "ac")


def test_a_truncated_call_keeps_its_text_and_other_calls_are_complete() -> None:
    parts = [
        ToolCallDelta(index=0, name="f", arguments="{", done=False),
        ToolCallDelta(index=0, name="", arguments="}"),
        ToolCallDelta(index=1, name="g", arguments='{"a', done=False),
        ToolCallDelta(index=1, name="", arguments='": 1', done=False),
    ]
    found = [(call.index, call.name, call.arguments, call.done) for call in joined_calls(parts)]
    assert found == [(0, "f", "{}", True), (1, "g", '{"a": 1', False)]

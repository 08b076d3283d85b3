"""The text client over a worker in this process, with the simulated backend: beside a plain client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stretto.client.rpc_client import RpcClient
from stretto.errors import EmptyPromptError, InvalidRequestError, InvalidStopError, PromptTooLongError
from stretto.rpc import messages as m
from stretto.rpc.connection import memory_pair
from stretto.text_client.client import SHORT_CHARS, TextClient
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import WorkerServer

FLAGS = {"backend": "simulated", "n_seq_max": 4, "context_window": 8192, "seed": 7}
GREEDY = {"temperature": 0.0, "ignore_eos": True}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


@contextlib.asynccontextmanager
async def clients(
    text_in: str = "api", **flags: Any
) -> AsyncIterator[tuple[RpcClient, TextClient, WorkerServer]]:
    """A plain client and a text client of one worker."""
    catalogue = Catalogue(Launch(flags={**FLAGS, **flags}))
    server = WorkerServer(catalogue, catalogue.settings.runtime)
    server.start()
    made = []
    for _ in range(2):
        here, there = memory_pair()
        server.accept(there)
        made.append(RpcClient.over(here))
    plain, text = made[0], TextClient(made[1], text_in=text_in)
    await plain.start()
    await text.start()
    await text.load("")
    try:
        yield plain, text, server
    finally:
        await text.close()
        await plain.close()
        await server.close()


async def heard(client: RpcClient | TextClient, **params: Any) -> dict[str, Any]:
    """All that a caller observes, except times and the stream's id."""
    params.setdefault("stream_id", f"s{id(params)}")
    params.setdefault("sampling", GREEDY)
    out: dict[str, Any] = {
        "text": "",
        "reasoning": "",
        "tokens": [],
        "logprobs": [],
        "prompt": [],
        "count": 0,
    }
    async for delta in client.generate(m.GenerateParams(**params)):
        out["text"] += delta.text
        out["reasoning"] += delta.reasoning
        out["tokens"] += delta.tokens
        out["logprobs"] += delta.logprobs
        out["prompt"] += delta.prompt_logprobs
        out["count"] += delta.token_count
        if delta.end is not None:
            out["end"] = (delta.end.finish_reason, delta.end.stop, delta.end.usage.completion_tokens)
            out["prompt_tokens"] = delta.end.usage.prompt_tokens
    return out


CALLS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "Once upon a time", "max_tokens": 40},
    "chat": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "echo_tokens": True},
    "long": {"prompt": "word " * SHORT_CHARS, "max_tokens": 8, "truncate_prompt_tokens": 64},
    "pieces": {"pieces": ["ab", 70, "cd"], "max_tokens": 8},
    "tokens": {"tokens": [70, 71, 72], "max_tokens": 8, "echo_tokens": True},
    "stops": {"prompt": "story", "max_tokens": 400, "stops": ["e", "qu"], "include_stop": True},
    "bias": {"prompt": "story", "max_tokens": 20, "bias_texts": [("e", 5.0)]},
    "truncated": {
        "messages": [{"role": "user", "content": "x" * 3000}] * 4,
        "truncate_messages": True,
        "max_tokens": 8,
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_heard_alike_by_both_clients(name: str) -> None:
    async def run() -> None:
        async with clients() as (plain, text, _):
            assert await text.text_ready("")
            assert await heard(text, **CALLS[name]) == await heard(plain, **CALLS[name])

    asyncio.run(run())


def test_forks_share_the_prompt_of_their_parent_and_differ_by_seed() -> None:
    async def run() -> None:
        async with clients() as (_, text, _server):
            first = text.generate(m.GenerateParams(stream_id="a", prompt="p" * 3000, max_tokens=4))
            second = text.generate(
                m.GenerateParams(stream_id="b", prompt="p" * 3000, max_tokens=4, fork_of="a")
            )
            assert await first.accepted() == await second.accepted() == 3000
            for one in (first, second):
                ends = [delta.end async for delta in one if delta.end is not None]
                assert [end.usage.prompt_tokens for end in ends] == [3000]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"prompt": "x" * 9000}, PromptTooLongError),
        ({"tokens": []}, EmptyPromptError),
        ({"prompt": "x", "messages": []}, InvalidRequestError),
        ({"prompt": "x", "stops": [""]}, InvalidStopError),
        ({"prompt": "x", "sampling": {"temperature": "hot"}}, InvalidRequestError),
        (
            {"messages": [{"role": "user", "content": "x"}], "template_options": {"self": 1}},
            InvalidRequestError,
        ),
    ],
)
def test_a_call_that_cannot_be_prepared_is_refused_with_the_worker_s_error(params: Any, error: type) -> None:
    async def run() -> None:
        async with clients() as (plain, text, _):
            told = []
            for client in (plain, text):
                stream = client.generate(m.GenerateParams(stream_id="s", **params))
                with pytest.raises(error) as caught:
                    await stream.accepted()
                told.append(str(caught.value))
                assert stream.end is not None
                assert stream.end.error is not None
            assert told[0] == told[1]

    asyncio.run(run())


def test_cancelling_frees_the_slot_before_and_after_the_text_is_prepared() -> None:
    async def run() -> None:
        async with clients() as (_, text, _server):
            early = text.generate(m.GenerateParams(stream_id="a", prompt="p" * 5000, sampling=GREEDY))
            early.cancel()
            assert early.end is not None
            assert early.end.finish_reason == "cancelled"
            late = text.generate(m.GenerateParams(stream_id="b", prompt="p", sampling=GREEDY))
            await anext(late)
            late.cancel()
            async with asyncio.timeout(10):
                while (await text.stats()).streams:
                    await asyncio.sleep(0.01)
                assert await text.wait_idle(5.0)

    asyncio.run(run())


def test_a_stop_string_ends_the_request_in_the_worker() -> None:
    async def run() -> None:
        async with clients() as (_, text, _server):
            found = await heard(text, prompt="story", max_tokens=4000, stops=["e"])
            assert found["end"][:2] == ("stop", "e")
            assert found["end"][2] < 1000
            async with asyncio.timeout(10):
                while (await text.stats()).streams:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_tokens_and_texts_are_converted_here() -> None:
    async def run() -> None:
        async with clients() as (plain, text, _):
            for params in (
                m.TokenizeParams(text="hello"),
                m.TokenizeParams(messages=[{"role": "user", "content": "hi"}]),
            ):
                assert await text.tokenize(params) == await plain.tokenize(params)
            back = m.DetokenizeParams(tokens=[105, 106])
            assert await text.detokenize(back) == await plain.detokenize(back) == "hi"
            calls = text.batch_stats()["transport"]["calls"]
            assert not {"tokenize", "detokenize"} & set(calls)

    asyncio.run(run())


def test_the_text_stays_with_the_worker_where_it_is_told_to() -> None:
    async def run() -> None:
        async with clients("worker") as (plain, text, _):
            assert not await text.text_ready("")
            assert await heard(text, **CALLS["stops"]) == await heard(plain, **CALLS["stops"])

    asyncio.run(run())


def test_a_numbered_call_with_text_is_refused() -> None:
    async def run() -> None:
        async with clients() as (plain, _, _server):
            for params in (
                {"prompt": "x"},
                {"tokens": [1], "stops": ["x"]},
                {"tokens": [1], "bias_texts": [("x", 1.0)]},
            ):
                stream = plain.generate(m.GenerateParams(stream_id="s", number=5, **params))
                with pytest.raises(InvalidRequestError, match="number"):
                    await stream.accepted()

    asyncio.run(run())

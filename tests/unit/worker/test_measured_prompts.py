"""Prompt logprobs and progress from the scheduler to the wire: whole, in order, and never from a cache."""

from __future__ import annotations

import asyncio

import pytest

from stretto.rpc import messages as m
from tests.unit.worker.test_methods import runtime

PROMPT = "a prompt that is long enough to be cut into several chunks, because seventy tokens are not many"


def prompts_of(client) -> dict[str, list[m.TokenLogprob]]:
    """What the connection brought about prompts."""
    found: dict[str, list[m.TokenLogprob]] = {}
    for batch in client.batches:
        for stream_id, items in batch.prompt_logprobs.items():
            found.setdefault(stream_id, []).extend(items)
    return found


def progress_of(client, stream_id: str) -> list[m.PromptProgress]:
    return [batch.progress[stream_id] for batch in client.batches if stream_id in batch.progress]


def measured(stream_id: str, **more) -> m.GenerateParams:
    return m.GenerateParams(
        stream_id=stream_id, prompt=PROMPT, max_tokens=2, sampling={"prompt_logprobs": 1}, **more
    )


@pytest.mark.parametrize("cache", ["none", "prefix", "incremental"])
def test_every_token_is_measured_once_whatever_is_cached(cache: str) -> None:
    async def run() -> None:
        async with runtime(cache=cache, prefill_chunk=16) as (_, client):
            for name in ("first", "second"):
                plain = m.GenerateParams(stream_id=f"plain {name}", prompt=PROMPT, max_tokens=2)
                await client.call("generate", plain)
                await client.end(f"plain {name}")
                await client.call("generate", measured(name))
                end = await client.end(name)
                assert end.usage.cached_tokens == 0
            heard = prompts_of(client)
            first, second = heard["first"], heard["second"]
            assert "".join(item.token for item in first) == PROMPT
            assert first[0].logprob == 0.0
            assert all(item.logprob < 0 for item in first[1:])
            assert [item.token for item in first] == [item.token for item in second]

    asyncio.run(run())


def test_forks_leave_the_measuring_to_the_first() -> None:
    async def run() -> None:
        async with runtime() as (_, client):
            await client.call("generate", measured("a"))
            await client.call("generate", measured("b", fork_of="a"))
            await client.end("a")
            await client.end("b")
            assert set(prompts_of(client)) == {"a"}

    asyncio.run(run())


def test_progress_grows_to_the_whole_prompt() -> None:
    async def run() -> None:
        async with runtime(prefill_chunk=16) as (_, client):
            await client.call(
                "generate", m.GenerateParams(stream_id="a", prompt=PROMPT, max_tokens=1, progress=True)
            )
            await client.end("a")
            progress = progress_of(client, "a")
            found = [one.computed for one in progress]
            assert found == sorted(found)
            assert len(found) > 1
            assert {one.total for one in progress} == {len(PROMPT)}

    asyncio.run(run())


def test_an_empty_prompt_starts_a_text() -> None:
    async def run() -> None:
        async with runtime() as (_, client):
            answer = await client.call("generate", m.GenerateParams(stream_id="a", prompt="", max_tokens=2))
            assert answer.prompt_tokens == 1
            await client.end("a")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({"prompt": PROMPT, "truncate_prompt_tokens": 10}, 10),
        ({"prompt": PROMPT, "truncate_prompt_tokens": -1}, len(PROMPT)),
        ({"pieces": ["ab", 5, "c", 6, 7]}, 6),
    ],
)
def test_cut_and_mixed_prompts(options: dict, tokens: int) -> None:
    async def run() -> None:
        async with runtime() as (_, client):
            params = m.GenerateParams(stream_id="a", max_tokens=2, **options)
            assert (await client.call("generate", params)).prompt_tokens == tokens
            await client.end("a")

    asyncio.run(run())


def test_the_oldest_messages_are_left_out_where_all_are_too_long() -> None:
    async def run() -> None:
        async with runtime() as (_, client):
            turns = [
                {"role": role, "content": f"{at} " + "x" * 60}
                for at in range(10)
                for role in ("user", "assistant")
            ]
            messages = [
                {"role": "system", "content": "Be brief."},
                *turns,
                {"role": "user", "content": "Now?"},
            ]
            params = m.GenerateParams(stream_id="a", messages=messages, max_tokens=20, truncate_messages=True)
            count = (await client.call("generate", params)).prompt_tokens
            assert 200 < count <= 512 - 20
            await client.end("a")

    asyncio.run(run())

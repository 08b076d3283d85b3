"""The worker's methods over a pair in memory, with the simulated backend: everything but the socket."""

from __future__ import annotations

import asyncio

import pytest

from stretto.errors import (
    CapacityError,
    EmptyPromptError,
    InvalidRequestError,
    InvalidTokenError,
    InvalidToolError,
    ModelBusyError,
    ModelNotFoundError,
    ShuttingDownError,
    UnsupportedByModelError,
)
from stretto.rpc import messages as m
from tests.unit.worker.in_memory import LONG, runtime

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def test_info_reports_capabilities_and_loads_nothing():
    async def run():
        async with runtime() as (_, client):
            info = await client.call("runtime/info")
            assert info.protocol == m.PROTOCOL_VERSION
            assert "batch_generate" in info.capabilities
            assert [(model.id, model.loaded) for model in info.models] == [("simulated", False)]
            loaded = (await client.call("model/load", m.LoadParams())).model
            assert (loaded.loaded, loaded.slots, loaded.context_window) == (True, 4, 512)
            assert client.progress[-1].stage == "ready"

    asyncio.run(run())


def test_a_generation_streams_and_ends_once_with_its_figures():
    async def run():
        async with runtime() as (_, client):
            params = m.GenerateParams(stream_id="a", prompt="hello", max_tokens=20, echo_tokens=True)
            answer = await client.call("generate", params)
            assert (answer.stream_id, answer.prompt_tokens) == ("a", 5)
            end = await client.end("a")
            assert end.finish_reason in ("length", "stop")
            assert end.usage.prompt_tokens == 5
            assert end.usage.completion_tokens == client.counts["a"] == len(client.tokens["a"])
            assert end.timing.ttft_s is not None
            assert 0 <= end.timing.queue_wait_s <= end.timing.ttft_s <= end.timing.duration_s
            again = await client.generate("b", prompt="hello", max_tokens=20)
            assert client.texts["a"] == client.texts["b"]
            assert again.usage.completion_tokens == end.usage.completion_tokens
            await asyncio.sleep(0.02)
            assert [len(ends) for ends in client.ends.values()] == [1, 1]

    asyncio.run(run())


def test_a_mixed_batch_serves_the_good_and_refuses_each_bad_one_by_its_own_error():
    async def run():
        async with runtime() as (_, client):
            good = [m.GenerateParams(stream_id=f"g{n}", prompt=f"number {n}", max_tokens=5) for n in range(5)]
            bad = [
                m.GenerateParams(stream_id="invalid", prompt="x", sampling={"temperature": "hot"}),
                m.GenerateParams(stream_id="long", prompt="x" * 600),
                m.GenerateParams(stream_id="g0", prompt="again"),
            ]
            batch = m.BatchGenerateParams(requests=[*good[:2], *bad[:2], *good[2:], bad[2]])
            answer = await client.call("batch_generate", batch)
            assert [item.success for item in answer.results] == [True] * 2 + [False] * 2 + [True] * 3 + [
                False
            ]
            errors = [item.error.code for item in answer.results if item.error is not None]
            assert errors == ["invalid_request", "prompt_too_long", "duplicate_request_id"]
            ends = [await client.end(f"g{n}") for n in range(5)]
            assert all(end.error is None for end in ends)
            assert set(client.ends) == {f"g{n}" for n in range(5)}

    asyncio.run(run())


def test_an_empty_batch_is_an_empty_answer():
    async def run():
        async with runtime() as (_, client):
            assert (await client.call("batch_generate", m.BatchGenerateParams(requests=[]))).results == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, InvalidRequestError),
        ({"prompt": "x", "tokens": [1]}, InvalidRequestError),
        ({"tokens": []}, EmptyPromptError),
        ({"tokens": [1, 600]}, InvalidTokenError),
        ({"tokens": [-1]}, InvalidTokenError),
        ({"tokens": [1 << 40]}, InvalidTokenError),
        ({"prompt": "x", "max_tokens": 0}, InvalidRequestError),
        ({"prompt": "x", "draft_model": "small"}, InvalidRequestError),
        ({"prompt": "x", "sampling": {"temprature": 1}}, InvalidRequestError),
        ({"prompt": "x", "sampling": {"max_tokens": 1}}, InvalidRequestError),
        ({"prompt": "x", "sampling": {"top_k": 1.5}}, InvalidRequestError),
        ({"prompt": "x", "sampling": {"seed": "one"}}, InvalidRequestError),
        ({"prompt": "x", "sampling": {"ignore_eos": 1}}, InvalidRequestError),
        ({"prompt": "x", "sampling": {"logit_bias": {"one": 1}}}, InvalidRequestError),
        ({"prompt": "x", "sampling": {"logit_bias": {"1": float("nan")}}}, InvalidRequestError),
        ({"prompt": "x", "stops": [""]}, InvalidRequestError),
        ({"prompt": "x", "stop_token_ids": [9999]}, InvalidTokenError),
        ({"prompt": "x", "model_id": "other"}, ModelNotFoundError),
        ({"prompt": "x", "model_id": "/etc/passwd"}, ModelNotFoundError),
        ({"messages": [{"role": "user"}], "template_options": {"tools": []}}, InvalidRequestError),
        ({"messages": [{"role": "nobody", "content": "x"}]}, InvalidRequestError),
        ({"prompt": "x", "guidance": m.Guidance(mode="regex", value="(")}, InvalidRequestError),
        ({"prompt": "x", "guidance": m.Guidance(mode="json_schema")}, InvalidRequestError),
        ({"prompt": "x", "tool_use": m.ToolUse(tools=[TOOL], choice="sometimes")}, InvalidToolError),
        ({"prompt": "x", "tool_use": m.ToolUse(tools=[], choice="required")}, InvalidToolError),
        ({"prompt": "x", "stream_id": ""}, InvalidRequestError),
    ],
)
def test_a_bad_generation_is_refused_by_a_typed_error_and_leaves_nothing_behind(options, error):
    async def run():
        async with runtime() as (server, client):
            with pytest.raises(error):
                await client.call("generate", m.GenerateParams(**{"stream_id": "a", **options}))
            stats = await client.call("stats")
            assert stats.streams == 0
            assert all(entry.leases == 0 for entry in server.pool._entries.values())
            assert not client.ends

    asyncio.run(run())


def test_tokens_and_texts_go_both_ways():
    async def run():
        async with runtime() as (_, client):
            tokens = (await client.call("tokenize", m.TokenizeParams(text="abc"))).tokens
            assert tokens == [98, 99, 100]
            assert (await client.call("detokenize", m.DetokenizeParams(tokens=tokens))).text == "abc"
            messages = [{"role": "user", "content": "hi"}]
            chat = (await client.call("tokenize", m.TokenizeParams(messages=messages))).tokens
            assert len(chat) > 10
            with pytest.raises(InvalidTokenError):
                await client.call("detokenize", m.DetokenizeParams(tokens=[-3]))
            with pytest.raises(InvalidRequestError):
                await client.call("tokenize", m.TokenizeParams())

    asyncio.run(run())


def test_unsupported_operations_are_rejected_by_name():
    async def run():
        async with runtime() as (_, client):
            with pytest.raises(UnsupportedByModelError):
                await client.call("embed", m.EmbedParams(inputs=["x"]))
            with pytest.raises(UnsupportedByModelError):
                await client.call("rerank", m.RerankParams(query="x", documents=["y"]))

    asyncio.run(run())


def test_stats_show_slots_queue_and_memory():
    async def run():
        async with runtime(simulated_tick_ms=3) as (_, client):
            requests = [
                m.GenerateParams(stream_id=f"s{n}", prompt="x" * 9, priority="background", tenant="t", **LONG)
                for n in range(7)
            ]
            await client.call("batch_generate", m.BatchGenerateParams(requests=requests))
            await client.until(lambda: sum(client.counts.values()) > 40)
            stats = await client.call("stats")
            (model,) = stats.models
            assert stats.streams == 7
            assert stats.memory_bytes > 1 << 20
            assert (model.active_slots, model.slots, model.busy) == (4, 4, True)
            assert model.queued == {"urgent": 0, "default": 0, "background": 3}
            assert 0 < model.kv_used < 1
            assert {slot.state for slot in model.slot_table} <= {"prefilling", "generating"}
            assert len({slot.stream_id for slot in model.slot_table} & set(client.counts)) == 4
            assert {(slot.prompt_tokens, slot.tenant) for slot in model.slot_table} == {(9, "t")}

    asyncio.run(run())


def test_only_watchers_receive_ticks():
    async def run():
        async with runtime(clients=2, simulated_tick_ms=3) as (_server, watcher, other):
            await watcher.call("watch", m.WatchParams())
            await other.generate("a", prompt="hello", max_tokens=60, sampling={"ignore_eos": True})
            await watcher.until(lambda: any(tick.ends for note in watcher.events for tick in note.ticks))
            ticks = [tick for note in watcher.events for tick in note.ticks]
            assert len(watcher.events) < len(ticks)
            assert [tick.tick for tick in ticks] == sorted(tick.tick for tick in ticks)
            spans = [span for tick in ticks for span in tick.spans]
            assert {span.stream_id for span in spans} == {"a"}
            assert sum(span.rows for span in spans if not span.decode) >= 4
            assert sum(span.rows for span in spans if span.decode) > 50
            assert ticks[-1].ends == ["a"] or any(tick.ends == ["a"] for tick in ticks)
            assert other.events == []
            await watcher.call("watch", m.WatchParams(enabled=False))
            seen = len(watcher.events)
            await other.generate("b", prompt="hello", max_tokens=30)
            await asyncio.sleep(0.1)
            assert len(watcher.events) == seen

    asyncio.run(run())


def test_drain_rejects_new_requests_and_lets_running_ones_finish():
    async def run():
        async with runtime(simulated_tick_ms=2) as (_, client):
            await client.call(
                "generate",
                m.GenerateParams(stream_id="a", prompt="x", max_tokens=60, sampling={"ignore_eos": True}),
            )
            await client.until(lambda: client.counts.get("a", 0) > 2)
            await client.call("drain")
            with pytest.raises(ShuttingDownError):
                await client.call("generate", m.GenerateParams(stream_id="b", prompt="x"))
            assert (await client.end("a")).finish_reason == "length"

    asyncio.run(run())


def test_closing_answers_everything_that_runs():
    async def run():
        async with runtime(simulated_tick_ms=2) as (server, client):
            requests = [m.GenerateParams(stream_id=f"s{n}", prompt="x", **LONG) for n in range(9)]
            await client.call("batch_generate", m.BatchGenerateParams(requests=requests))
            await client.until(lambda: len(client.counts) >= 4)
            await server.close()
            await client.closed
            assert [len(client.ends[f"s{n}"]) for n in range(9)] == [1] * 9
            assert {ends[0].error.code for ends in client.ends.values()} == {"shutting_down"}

    asyncio.run(run())


def test_models_are_loaded_by_name_within_the_budget_and_unloaded_on_request():
    async def run():
        flags = {"runtime.memory_budget_bytes": 40 << 20, "models.a.n_seq_max": 1, "models.b.n_seq_max": 2}
        flags |= {"models.c.n_seq_max": 3, "simulated_tick_ms": 2}
        async with runtime(**flags) as (_, client):
            for name in ("a", "b", "c"):
                await client.generate(f"s{name}", prompt="x", model_id=name, max_tokens=2)
            models = {model.id: model for model in (await client.call("runtime/info")).models}
            assert [models[name].loaded for name in ("a", "b", "c")] == [False, True, True]
            await client.call(
                "generate", m.GenerateParams(stream_id="busy", prompt="x", model_id="b", **LONG)
            )
            with pytest.raises(ModelBusyError):
                await client.call("model/unload", m.LoadParams(model_id="b"))
            await client.call("cancel", m.CancelParams(stream_id="busy"))
            await client.end("busy")
            async with asyncio.timeout(10):
                while True:
                    try:
                        await client.call("model/unload", m.LoadParams(model_id="b"))
                        break
                    except ModelBusyError:
                        await asyncio.sleep(0.01)
            models = {model.id: model for model in (await client.call("runtime/info")).models}
            assert not models["b"].loaded

    asyncio.run(run())


def test_calls_beyond_the_bound_of_a_connection_are_refused_and_others_are_not_touched():
    async def run():
        bound = {"runtime.calls_pending_max": 3}
        async with runtime(clients=2, **bound) as (_, greedy, other):
            await other.call("model/load", m.LoadParams())
            words = m.TokenizeParams(text="many words " * 5_000)
            futures = [greedy.start("tokenize", words) for _ in range(40)]
            assert (await other.call("tokenize", m.TokenizeParams(text="x"))).tokens == [121]
            answers = await asyncio.gather(*futures, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, CapacityError)]
            assert 1 <= len(refused) <= 37
            assert refused[0].retryable
            assert all(isinstance(answer, m.TokenizeResult | CapacityError) for answer in answers)

    asyncio.run(run())


def test_a_long_prompt_does_not_hold_up_the_calls_of_others():
    async def run():
        async with runtime(context_window=1 << 20, n_batch=2048) as (_, client):
            await client.call("model/load", m.LoadParams())
            words = [{"role": "user", "content": "many words " * 40_000}]
            loop = asyncio.get_running_loop()
            future = client.start("tokenize", m.TokenizeParams(messages=words))
            worst_s, started_s = 0.0, loop.time()
            while not future.done():
                before_s = loop.time()
                await client.call("runtime/info")
                worst_s = max(worst_s, loop.time() - before_s)
            whole_s = loop.time() - started_s
            assert len((await future).tokens) > 400_000
            assert worst_s < max(0.25, 0.5 * whole_s)

    asyncio.run(run())

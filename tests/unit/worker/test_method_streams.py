"""The worker's streams over a pair in memory: ids, cancellation, deadlines, forks and batches of a tick."""

from __future__ import annotations

import asyncio

import pytest

from stretto.errors import (
    DeadlineError,
    DuplicateRequestError,
    by_code,
)
from stretto.rpc import messages as m
from tests.unit.worker.in_memory import LONG, runtime


def test_ids_are_refused_while_they_run_and_free_afterwards_and_belong_to_their_connection():
    async def run():
        async with runtime(clients=2, simulated_tick_ms=2) as (_, one, other):
            await one.call("generate", m.GenerateParams(stream_id="a", prompt="x", **LONG))
            with pytest.raises(DuplicateRequestError):
                await one.call("generate", m.GenerateParams(stream_id="a", prompt="y"))
            await other.generate("a", prompt="z", max_tokens=2)
            assert "a" not in one.ends
            await one.call("cancel", m.CancelParams(stream_id="a"))
            assert (await one.end("a")).finish_reason == "cancelled"
            one.ends.clear()
            assert (await one.generate("a", prompt="y", max_tokens=2)).error is None

    asyncio.run(run())


def test_a_connection_that_closes_cancels_all_its_streams():
    async def run():
        async with runtime(clients=2, simulated_tick_ms=2) as (server, one, other):
            for n in range(6):
                await one.call("generate", m.GenerateParams(stream_id=f"s{n}", prompt="x", **LONG))
            one.connection.close()
            await one.closed
            async with asyncio.timeout(10):
                while (stats := await other.call("stats")).models[0].busy or stats.streams:
                    await asyncio.sleep(0.01)
            assert all(entry.leases == 0 for entry in server.pool._entries.values())
            assert (await other.generate("a", prompt="x", max_tokens=2)).error is None

    asyncio.run(run())


def test_a_connection_that_closes_at_once_leaves_nothing_behind():
    async def run():
        async with runtime(clients=2) as (server, one, other):
            requests = [m.GenerateParams(stream_id=f"s{n}", prompt="x", **LONG) for n in range(8)]
            future = one.start("batch_generate", m.BatchGenerateParams(requests=requests))
            single = one.start("generate", m.GenerateParams(stream_id="single", prompt="x", **LONG))
            one.connection.close()
            await asyncio.gather(future, single, return_exceptions=True)
            await other.generate("a", prompt="x", max_tokens=2)
            async with asyncio.timeout(10):
                while (await other.call("stats")).models[0].busy:
                    await asyncio.sleep(0.01)
            assert all(entry.leases == 0 for entry in server.pool._entries.values())

    asyncio.run(run())


def test_cancelling_before_it_began_still_ends_the_stream_once():
    async def run():
        async with runtime() as (_, client):
            future = client.start("generate", m.GenerateParams(stream_id="a", prompt="x", **LONG))
            cancelled = client.start("cancel", m.CancelParams(stream_id="a"))
            await asyncio.gather(future, cancelled)
            assert (await client.end("a")).finish_reason == "cancelled"
            await asyncio.sleep(0.02)
            assert len(client.ends["a"]) == 1
            assert (await client.generate("b", prompt="x", max_tokens=2)).error is None

    asyncio.run(run())


def test_a_deadline_ends_a_stream_with_a_typed_error():
    async def run():
        async with runtime(simulated_tick_ms=5) as (_, client):
            await client.call("model/load", m.LoadParams())
            end = await client.generate("a", prompt="x", deadline_ms=150, **LONG)
            assert end.finish_reason == "error"
            assert by_code(end.error.code) is DeadlineError
            assert end.error.retryable

    asyncio.run(run())


def test_forks_share_their_parents_prompt():
    async def run():
        async with runtime(simulated_tick_ms=1) as (_, client):
            prompt = "one long prompt " * 10
            parent = m.GenerateParams(stream_id="p", prompt=prompt, max_tokens=30, sampling={"seed": 1})
            forks = [
                m.GenerateParams(
                    stream_id=f"f{n}", prompt=prompt, fork_of="p", max_tokens=8, sampling={"seed": n + 2}
                )
                for n in range(3)
            ]
            answer = await client.call("batch_generate", m.BatchGenerateParams(requests=[*forks, parent]))
            assert all(item.success for item in answer.results)
            assert {item.result.prompt_tokens for item in answer.results} == {len(prompt)}
            ends = [await client.end(name) for name in ("p", "f0", "f1", "f2")]
            assert all(end.error is None for end in ends)
            refused = [
                m.GenerateParams(stream_id="q", prompt="x" * 600),
                m.GenerateParams(stream_id="r", prompt="x", fork_of="q", max_tokens=2),
            ]
            answer = await client.call("batch_generate", m.BatchGenerateParams(requests=refused))
            assert [item.success for item in answer.results] == [False, True]

    asyncio.run(run())


def test_circular_forks_do_not_deadlock():
    async def run():
        async with runtime() as (_, client):
            circle = [
                m.GenerateParams(stream_id=name, prompt="x", fork_of=other, max_tokens=2)
                for name, other in (("a", "b"), ("b", "a"), ("c", "c"))
            ]
            answer = await client.call("batch_generate", m.BatchGenerateParams(requests=circle))
            assert [item.success for item in answer.results] == [True] * 3

    asyncio.run(run())


@pytest.mark.parametrize("deadline_ms", [0.0, -5.0, float("-inf")])
def test_a_deadline_that_has_passed_is_refused_at_once(deadline_ms):
    async def run():
        async with runtime() as (_, client):
            with pytest.raises(DeadlineError):
                await client.generate("a", prompt="x", deadline_ms=deadline_ms)
            assert (await client.generate("b", prompt="x", max_tokens=2, deadline_ms=1e308)).error is None

    asyncio.run(run())


def test_a_stop_string_is_named_in_the_end():
    async def run():
        async with runtime() as (_, client):
            await client.generate("whole", prompt="story", max_tokens=40, sampling={"ignore_eos": True})
            stop = client.texts["whole"][12:14]
            end = await client.generate(
                "cut", prompt="story", max_tokens=40, stops=[stop], sampling={"ignore_eos": True}
            )
            assert (end.finish_reason, end.stop) == ("stop", stop)
            assert client.texts["cut"] == client.texts["whole"].split(stop)[0]

    asyncio.run(run())


def test_all_streams_of_a_tick_leave_as_one_batch():
    async def run():
        async with runtime(simulated_tick_ms=3) as (_, client):
            requests = [m.GenerateParams(stream_id=f"s{n}", prompt=f"{n}", **LONG) for n in range(4)]
            await client.call("batch_generate", m.BatchGenerateParams(requests=requests))
            await client.until(lambda: sum(client.counts.values()) > 400)
            full = [batch for batch in client.batches if len(batch.streams) == 4]
            assert len(full) > 0.6 * len(client.batches)

    asyncio.run(run())

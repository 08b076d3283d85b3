"""The client with a real worker process: answers, batches, invalid requests, crashes, hangs, dead parents."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stretto.client.host import SupervisedHost
from stretto.client.process import ProcessLauncher, WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.errors import (
    DuplicateRequestError,
    InvalidRequestError,
    PromptTooLongError,
    RuntimeUnavailableError,
    ShuttingDownError,
    StrettoError,
    TooLargeError,
)
from stretto.rpc.messages import DetokenizeParams, GenerateParams, TokenizeParams
from stretto.settings import EngineSettings, GenerateBatcherSettings, RuntimeSettings, Settings
from stretto.testing.client_capability import OldLauncher
from tests.system.process import kill_worker

FLAGS: dict[str, Any] = {
    "backend": "simulated",
    "seed": 7,
    "n_seq_max": 8,
    "context_window": 512,
    "simulated_tick_ms": 2,
}


@asynccontextmanager
async def client(*, old: bool = False, batching: bool = True, **flags: Any) -> AsyncIterator[RpcClient]:
    holds = {
        "min_hold_ms": 50.0,
        "max_hold_ms": 200.0,
    }  # so that a busy machine does not make a batch overdue
    settings = Settings(generate_batcher=GenerateBatcherSettings(enabled=batching, **holds))
    launcher = (OldLauncher if old else ProcessLauncher)(WorkerStart(flags={**FLAGS, **flags}))
    made = RpcClient(SupervisedHost(launcher, settings.engine), settings)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def params(stream_id: str, **changed: Any) -> GenerateParams:
    chosen = {"prompt": f"question {stream_id}", "max_tokens": 8, "sampling": {"ignore_eos": True}, **changed}
    return GenerateParams(stream_id=stream_id, **chosen)


async def text(made: RpcClient, request: GenerateParams) -> str:
    return "".join([delta.text async for delta in made.generate(request)])


async def tokens(made: RpcClient, request: GenerateParams) -> int:
    return sum([delta.token_count async for delta in made.generate(request)])


async def outcome(made: RpcClient, request: GenerateParams) -> int | type[StrettoError]:
    try:
        return await tokens(made, request)
    except StrettoError as error:
        return type(error)


def test_requests_of_one_event_loop_iteration_are_one_call():
    async def scenario() -> None:
        async with client() as made:
            counts = await asyncio.gather(*(tokens(made, params(f"s{i}")) for i in range(16)))
            assert counts == [8] * 16
            stats = made.batch_stats()
            assert stats["transport"]["calls"]["batch_generate"] == 1
            assert stats["streams"]["active"] == 0
            async with asyncio.timeout(10):
                while not made.health.ready:
                    await asyncio.sleep(0.01)
            assert [model.loaded for model in await made.models()] == [True]
            spelled = await made.tokenize(TokenizeParams(text="hello"))
            assert await made.detokenize(DetokenizeParams(tokens=spelled)) == "hello"
            assert (await made.stats()).models[0].tokens >= 16 * 8

    asyncio.run(scenario())


def test_one_batch_of_good_and_bad_requests_gives_each_its_own_answer():
    """Must-show 3: one invalid, one over-long, one duplicate id, five good."""

    async def scenario() -> None:
        async with client() as made:
            requests = [params(f"good{i}") for i in range(5)]
            requests.insert(1, params("invalid", prompt="x", tokens=[1, 2]))
            requests.insert(3, params("long", prompt="y" * 5000))
            requests.insert(5, params("good0"))
            found = await asyncio.gather(*(outcome(made, request) for request in requests))
            assert [answer for answer in found if isinstance(answer, int)] == [8] * 5
            assert found[1] is InvalidRequestError
            assert found[3] is PromptTooLongError
            assert found[5] is DuplicateRequestError
            assert made.batch_stats()["transport"]["calls"]["batch_generate"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("spoiled", [{"max_tokens": "eight"}, {"template_options": {"x": object()}}])
def test_a_request_that_breaks_its_frame_does_not_fail_others(spoiled):
    """It cannot be encoded, or not decoded: the rest of its batch is sent without it."""

    async def scenario() -> None:
        async with client() as made:
            requests = [params("a"), params("bad", **spoiled), params("b")]
            found = await asyncio.gather(*(outcome(made, request) for request in requests))
            assert found == [8, InvalidRequestError, 8]

    asyncio.run(scenario())


def test_large_requests_are_sent_singly_and_an_oversized_one_is_rejected():
    async def scenario() -> None:
        limits = {"runtime.frame_bytes_max": 8192}
        settings = Settings(runtime=RuntimeSettings(frame_bytes_max=8192))
        made = RpcClient.supervised(WorkerStart(flags={**FLAGS, **limits}), settings)
        await made.start()
        try:
            requests = [params(f"s{i}", prompt="z" * 300, tool_use=None, stops=["\n" * 9]) for i in range(12)]
            requests.append(params("huge", prompt="z" * 20_000))
            found = await asyncio.gather(*(outcome(made, request) for request in requests))
            assert found == [8] * 12 + [TooLargeError]
            assert made.batch_stats()["runtime"]["restarts"] == 0
        finally:
            await made.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [{"old": True}, {"batching": False}], ids=["old worker", "switched off"])
def test_without_batching_the_answers_are_the_same(how):
    async def scenario() -> None:
        requests = [params(f"s{i}", sampling={"temperature": 0.0}) for i in range(6)]
        async with client() as new:
            expected = [await text(new, request) for request in requests]
        async with client(**how) as made:
            found = await asyncio.gather(*(text(made, request) for request in requests))
            stats = made.batch_stats()
        assert list(found) == expected
        assert stats["generate"]["fallback_count"] == len(requests)
        assert stats["transport"]["calls"]["generate"] == len(requests)
        assert "batch_generate" not in stats["transport"]["calls"]

    asyncio.run(scenario())


def test_a_cancelled_request_frees_its_slot():
    async def scenario() -> None:
        async with client(n_seq_max=1, queue_depth=1) as made:
            endless = made.generate(params("endless", max_tokens=400))
            await anext(endless)
            endless.cancel()
            endless.cancel()
            assert await asyncio.wait_for(tokens(made, params("next")), 20) == 8
            assert made.batch_stats()["streams"]["active"] == 0

    asyncio.run(scenario())


def test_a_drain_finishes_running_requests_and_rejects_new_ones():
    async def scenario() -> None:
        async with client() as made:
            running = made.generate(params("running", max_tokens=60))
            first = await anext(running)  # it has a slot: a drain ends requests that are only queued
            made.drain()
            assert await outcome(made, params("late")) is ShuttingDownError
            assert not made.health.ready
            assert first.token_count + sum([delta.token_count async for delta in running]) == 60
            assert await made.wait_idle(20)

    asyncio.run(scenario())


def test_closing_ends_waiting_requests_and_leaks_nothing():
    async def scenario() -> None:
        before = kill_worker.descriptors()
        settings = Settings()
        launcher = ProcessLauncher(WorkerStart(flags=FLAGS))
        host = SupervisedHost(launcher, settings.engine)
        made = RpcClient(host, settings)
        await made.start()
        directory, pid = launcher.directory, host.pid
        assert directory is not None
        assert pid is not None
        assert directory.stat().st_mode & 0o777 == 0o700
        assert next(directory.glob("*.sock")).stat().st_mode & 0o777 == 0o600
        reader = asyncio.create_task(outcome(made, params("endless", max_tokens=400)))
        await asyncio.sleep(0.05)
        await made.close()
        assert await asyncio.wait_for(reader, 5) is ShuttingDownError
        assert not kill_worker.alive(pid)
        assert not directory.exists()
        assert kill_worker.descriptors() <= before + 1

    asyncio.run(scenario())


def test_a_worker_that_cannot_start_is_reported_and_not_restarted_forever():
    async def scenario() -> None:
        settings = Settings(engine=EngineSettings(restarts_max=1, restart_backoff_s=0.01))
        made = RpcClient.supervised(WorkerStart(flags={"no_such_setting": 1}), settings)
        with pytest.raises(RuntimeUnavailableError, match="died 2 times in a row"):
            await made.start()
        await made.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_kill_9_under_load_loses_no_request_silently():
    """Must-show 2, small. The full size: python tests/system/process/kill_worker.py --model default."""
    report = asyncio.run(
        kill_worker.run(kill_worker.simulated(), kills=2, stops=1, streams=16, max_tokens=100)
    )
    assert report.problems == []
    assert report.lost >= 8
    assert report.replayed >= 8
    assert report.fds_after <= report.fds_before + 1


@pytest.mark.slow
def test_kill_9_of_the_parent_leaves_no_runtime():
    assert kill_worker.kill_parent([]) <= kill_worker.ORPHAN_S_MAX


def test_the_leak_checks_count_something():
    """A check of the helpers above."""
    assert kill_worker.descriptors() > 2
    assert kill_worker.alive(os.getpid())
    assert kill_worker.zombies() == []

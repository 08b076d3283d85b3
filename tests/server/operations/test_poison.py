"""A worker that is killed says by what; one that dies again and again comes back by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from stretto.client.host import SupervisedHost
from stretto.client.process import ProcessLauncher, WorkerStart
from stretto.client.rpc_client import RpcClient
from stretto.client.supervisor import WorkerState
from stretto.errors import RuntimeUnavailableError
from stretto.rpc.messages import GenerateParams, TokenizeParams
from stretto.settings import EngineSettings, Settings

FLAGS: dict[str, Any] = {"backend": "simulated", "seed": 7, "n_seq_max": 4, "context_window": 512}


async def until(true, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


def test_a_killed_worker_reports_its_signal_and_the_crash_loop_recovers():
    async def scenario() -> None:
        settings = Settings(
            engine=EngineSettings(
                restarts_max=1, restart_backoff_s=0.05, restart_backoff_max_s=1.5, stable_after_s=1.0
            )
        )
        host = SupervisedHost(ProcessLauncher(WorkerStart(flags=FLAGS)), settings.engine)
        worker_client = RpcClient(host, settings)
        await worker_client.start()
        try:
            for _ in range(4):
                if host.state is WorkerState.FAILED:
                    break
                await until(lambda: host.state is WorkerState.UP)
                pid = host.pid
                os.kill(pid, signal.SIGKILL)
                await until(lambda gone=pid: host.state is WorkerState.FAILED or host.pid != gone)
            assert host.state is WorkerState.FAILED
            assert host.stats()["last_reason"] == "it was killed by SIGKILL"
            assert not worker_client.health.ready
            assert worker_client.health.reason == "crash loop"
            try:
                await anext(
                    worker_client.generate(GenerateParams(stream_id="refused", prompt="x", max_tokens=2))
                )
            except RuntimeUnavailableError:
                pass  # at once, not after a wait
            else:
                raise AssertionError("it was not refused")
            await until(lambda: worker_client.health.ready)
            assert len(await worker_client.tokenize(TokenizeParams(text="hello"))) == 5
            await until(lambda: host.stats()["deaths_in_a_row"] == 0)
        finally:
            await worker_client.close()

    asyncio.run(scenario())

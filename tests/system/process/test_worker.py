"""A real `python -m stretto.worker` over real sockets, with the simulated backend."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stretto.errors import InvalidRequestError, PeerRefusedError, UnknownMethodError
from stretto.rpc import messages as m
from stretto.rpc.envelope import Call
from stretto.rpc.frames import encode
from stretto.rpc.heartbeat import HeartbeatReader
from stretto.rpc.sockets import connect_tcp, connect_unix, write_token
from tests.system.process.client import Client
from tests.system.process.running import ended_by, gone_within, running

LONG = {"max_tokens": 400, "sampling": {"ignore_eos": True}}


async def client_of(worker) -> Client:
    return Client(await connect_unix(worker.socket))


def test_the_worker_answers_batches_and_shuts_down_on_request():
    async def run(worker):
        client = await client_of(worker)
        info = await client.call("runtime/info")
        assert info.pid == worker.process.pid
        good = [m.GenerateParams(stream_id=f"g{n}", prompt=f"number {n}", max_tokens=9) for n in range(5)]
        bad = [
            m.GenerateParams(stream_id="invalid", prompt="x", sampling={"top_p": 7}),
            m.GenerateParams(stream_id="long", prompt="x" * 600),
            m.GenerateParams(stream_id="g1", prompt="again"),
        ]
        answer = await client.call("batch_generate", m.BatchGenerateParams(requests=[*good, *bad]))
        assert [item.success for item in answer.results] == [True] * 5 + [False] * 3
        codes = [item.error.code for item in answer.results[5:]]
        assert codes == ["invalid_request", "prompt_too_long", "duplicate_request_id"]
        for n in range(5):
            assert (await client.end(f"g{n}")).error is None
            assert client.counts[f"g{n}"] == client.ends[f"g{n}"][0].usage.completion_tokens
        assert {len(ends) for ends in client.ends.values()} == {1}
        assert (await client.call("batch_generate", m.BatchGenerateParams(requests=[]))).results == []
        await client.call("shutdown")
        await asyncio.wait_for(client.closed, 10)

    with running() as worker:
        assert worker.ready["ready"] is True
        asyncio.run(run(worker))
        assert worker.process.wait(10) == 0
        assert not worker.socket.exists()


def test_cancel_and_a_lost_connection_free_the_slots():
    async def run(worker):
        client, other = await client_of(worker), await client_of(worker)
        await client.call("generate", m.GenerateParams(stream_id="a", prompt="x", **LONG))
        await client.until(lambda: client.counts.get("a", 0) > 3)
        await client.call("cancel", m.CancelParams(stream_id="a"))
        end = await client.end("a")
        assert (end.finish_reason, end.error) == ("cancelled", None)
        for n in range(8):
            await client.call("generate", m.GenerateParams(stream_id=f"s{n}", prompt="x", **LONG))
        client.connection.close()
        async with asyncio.timeout(10):
            while (stats := await other.call("stats")).streams or stats.models[0].busy:
                await asyncio.sleep(0.02)
        other.connection.close()

    with running(simulated_tick_ms=3) as worker:
        asyncio.run(run(worker))


def test_invalid_calls_get_errors_and_garbage_closes_only_its_connection():
    async def run(worker):
        client, noisy = await client_of(worker), await client_of(worker)
        with pytest.raises(UnknownMethodError):
            await client.call("no/such", m.Empty())
        client.connection.send(Call("odd", "cancel", m.Empty()))
        await client.until(lambda: client.unasked)
        assert client.unasked[0].id == "odd"
        assert client.unasked[0].error.code == "invalid_request"
        noisy.connection.transport.write(b"\xff" * 64)
        await asyncio.wait_for(noisy.closed, 10)
        assert (await client.generate("a", prompt="x", max_tokens=3)).error is None
        with pytest.raises(InvalidRequestError):
            await client.call("generate", m.GenerateParams(stream_id="b", prompt="x", max_tokens=-1))
        client.connection.close()

    with running() as worker:
        asyncio.run(run(worker))


def test_a_connection_that_does_not_read_is_closed_and_its_streams_with_it():
    async def run(worker):
        deaf, other = await client_of(worker), await client_of(worker)
        await other.call("model/load", m.LoadParams())
        deaf.connection.transport.pause_reading()
        text = m.DetokenizeParams(tokens=[66] * 20_000)
        waiting = [deaf.start("generate", m.GenerateParams(stream_id="a", prompt="x", **LONG))]
        waiting += [deaf.start("detokenize", text) for _ in range(100)]
        async with asyncio.timeout(20):
            while "does not read" not in worker.stderr():
                await asyncio.sleep(0.02)
            while (stats := await other.call("stats")).streams or stats.models[0].busy:
                await asyncio.sleep(0.02)
        assert stats.memory_bytes < 1 << 30
        deaf.connection.transport.resume_reading()
        await asyncio.wait_for(deaf.closed, 10)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(isinstance(answer, ConnectionError) for answer in answers)
        other.connection.close()

    with running(**{"runtime.unread_bytes_max": 1 << 18, "simulated_tick_ms": 3}) as worker:
        asyncio.run(run(worker))


def test_heartbeats_continue_until_the_process_stops():
    with running() as worker:
        reader = HeartbeatReader(worker.directory / "beat")
        first = reader.read()
        assert first is not None
        assert first.pid == worker.process.pid
        deadline = time.monotonic() + 10
        while (now := reader.read()) is not None and now.rpc_beat_s == first.rpc_beat_s:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(1.2)
        stopped = reader.read()
        assert stopped is not None
        assert "RPC loop has not run" in stopped.hung(time.monotonic(), step_s_max=60, rpc_s_max=1.0)
        worker.process.send_signal(signal.SIGCONT)
        reader.close()


def test_stacks_are_written_on_request_and_at_an_abort():
    with running() as worker:
        worker.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 10
        while "Thread" not in worker.stderr() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "most recent call first" in worker.stderr()
        assert worker.process.poll() is None
        assert ended_by(worker.process, signal.SIGABRT) == -signal.SIGABRT
        assert "Fatal Python error: Aborted" in worker.stderr()


def test_sigterm_shuts_the_worker_down_and_sigint_does_not():
    with running() as worker:
        worker.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert worker.process.poll() is None
        assert ended_by(worker.process, signal.SIGTERM) == 0
        assert not worker.socket.exists()


def test_the_worker_exits_when_its_stdin_closes():
    with running() as worker:
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert worker.process.wait(5) == 0


PARENT = """
import subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-m", "stretto.worker", "--socket", sys.argv[1], "--settings", sys.argv[2]],
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_killing_the_parent_leaves_no_worker_after_two_seconds(tmp_path: Path):
    (tmp_path / "settings").write_text('{"flags": {"backend": "simulated"}}')
    tmp_path.chmod(0o700)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "socket"), str(tmp_path / "settings")],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    assert gone_within(pid, 2.0)


def test_over_tcp_nothing_is_answered_before_the_right_token(tmp_path: Path):
    token = write_token(tmp_path / "token")

    async def run(worker):
        port = worker.ready["port"]
        wrong = Client(await connect_tcp(port))
        with pytest.raises(PeerRefusedError):
            await wrong.call("runtime/authenticate", m.AuthParams(token="0" * 64))
        await asyncio.wait_for(wrong.closed, 10)
        eager = Client(await connect_tcp(port))
        with pytest.raises(PeerRefusedError):
            await eager.call("runtime/info")
        await asyncio.wait_for(eager.closed, 10)
        right = Client(await connect_tcp(port))
        await right.call("runtime/authenticate", m.AuthParams(token=token))
        assert (await right.generate("a", prompt="x", max_tokens=3)).error is None
        right.connection.close()

    with running("--token-file", str(tmp_path / "token"), tcp=True) as worker:
        asyncio.run(run(worker))


def knock_as(uid: int, path: Path) -> int:
    """The result for another user's process: 0 connection closed, 1 answered, 2 no access."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX) as knocking:
                knocking.settimeout(10)
                knocking.connect(str(path))
                knocking.sendall(encode(Call(1, "runtime/info", m.Empty())))
                code = 1 if knocking.recv(1) else 0
        except (ConnectionResetError, BrokenPipeError):
            code = 0
        except PermissionError:
            code = 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_another_uid_is_refused_even_if_file_permissions_allow_it():
    with running() as worker:
        assert knock_as(65534, worker.socket) == 2
        worker.directory.chmod(0o755)
        worker.socket.chmod(0o666)
        assert knock_as(65534, worker.socket) == 0
        assert knock_as(0, worker.socket) == 1


def test_invalid_settings_end_the_worker_with_a_reason():
    with running(n_seq_max=0) as worker:
        assert worker.ready["ready"] is False
        assert worker.ready["code"] == "invalid_settings"
        assert worker.process.wait(10) == 2

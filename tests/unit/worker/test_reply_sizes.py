"""Answers that do not fit a frame fail alone, over a real socket: the connection and its streams live on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stretto.errors import CapacityError, InvalidRequestError, ReplyTooLargeError, TooLargeError
from stretto.rpc import messages as m
from stretto.rpc.connection import StreamConnection, memory_pair
from stretto.rpc.sockets import connect_unix, serve_unix
from stretto.worker import splitting
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.server import WorkerServer
from tests.system.process.client import Client

FRAME_BYTES = 4096
FLAGS = {"backend": "simulated", "n_seq_max": 4, "context_window": 8192, "seed": 7}


@contextlib.asynccontextmanager
async def served(
    tmp_path: Path, client_bytes: int = 1 << 20, *, tick_ms: float = 0.0
) -> AsyncIterator[tuple[WorkerServer, Client]]:
    """A worker that sends frames of at most `FRAME_BYTES`; its client reads any."""
    flags = {**FLAGS, "runtime.frame_bytes_max": FRAME_BYTES, "simulated_tick_ms": tick_ms}
    catalogue = Catalogue(Launch(flags=flags))
    server = WorkerServer(catalogue, catalogue.settings.runtime)
    server.start()
    tmp_path.chmod(0o700)

    def accept(connection: StreamConnection) -> None:
        server.accept(connection)

    listener = await serve_unix(tmp_path / "s", accept, frame_bytes_max=FRAME_BYTES)
    try:
        yield server, Client(await connect_unix(tmp_path / "s", frame_bytes_max=client_bytes))
    finally:
        listener.close()
        await server.close()


def test_a_reply_that_does_not_fit_a_frame_fails_alone(tmp_path):
    async def run():
        async with served(tmp_path) as (_, client):
            stream = asyncio.create_task(client.generate("a", prompt="hello", max_tokens=200))
            tokens = [0] * 900  # each is five letters in the answer, and two in the call
            with pytest.raises(ReplyTooLargeError):
                await client.call("detokenize", m.DetokenizeParams(tokens=tokens))
            with pytest.raises(ReplyTooLargeError):
                await client.call("tokenize", m.TokenizeParams(text="x" * 2000))
            assert (await client.call("detokenize", m.DetokenizeParams(tokens=[105, 106]))).text == "hi"
            assert (await stream).error is None
            assert not client.closed.done()

    asyncio.run(run())


def test_a_call_that_does_not_fit_a_frame_is_refused_before_it_is_sent(tmp_path):
    async def run():
        async with served(tmp_path, FRAME_BYTES) as (_, client):
            with pytest.raises(TooLargeError):
                await client.call("tokenize", m.TokenizeParams(text="x" * 5000))
            assert (await client.call("detokenize", m.DetokenizeParams(tokens=[105, 106]))).text == "hi"

    asyncio.run(run())


def test_too_many_tokens_to_detokenize_are_refused_with_the_bound():
    async def run():
        catalogue = Catalogue(Launch(flags=FLAGS))
        server = WorkerServer(catalogue, catalogue.settings.runtime)
        server.start()
        here, there = memory_pair()
        server.accept(there)
        client = Client(here)
        with pytest.raises(InvalidRequestError, match="the maximum is 131072"):
            await client.call("detokenize", m.DetokenizeParams(tokens=[65] * 200_000))
        assert (
            len((await client.call("detokenize", m.DetokenizeParams(tokens=[65] * 131_072))).text) == 131_072
        )
        await server.close()

    asyncio.run(run())


def test_a_tick_that_does_not_fit_a_frame_is_sent_stream_by_stream_and_costs_one_at_most(tmp_path):
    async def run():
        async with served(tmp_path, tick_ms=5.0) as (
            server,
            client,
        ):  # streams are still running when cancelled
            await client.call("model/load", m.LoadParams())
            for name in ("a", "b", "c"):
                await client.call("generate", m.GenerateParams(stream_id=name, prompt="x", max_tokens=8000))
            session = next(iter(server.methods.sessions))
            batch = m.StreamBatch(
                streams=["a", "b", "c"], texts=["A" * 3000, "B" * 9000, "C" * 3000], counts=[1, 1, 1]
            )
            session.mailbox.put(batch)
            session.mailbox.drain()
            end = await client.end("b")
            assert end.error is not None
            assert end.error.code == "reply_too_large"
            await client.until(lambda: "A" * 3000 in client.texts["a"] and "C" * 3000 in client.texts["c"])
            for name in ("a", "c"):
                await client.call("cancel", m.CancelParams(stream_id=name))
                assert (await client.end(name)).finish_reason == "cancelled"
            await asyncio.sleep(0.05)
            assert {name: len(ends) for name, ends in client.ends.items()} == {"a": 1, "b": 1, "c": 1}

    asyncio.run(run())


def test_the_parts_of_a_batch_are_the_batch():
    end = m.StreamEnd(stream_id="b", finish_reason="stop")
    batch = m.StreamBatch(
        streams=["a", "b", "a"],
        texts=["1", "2", "3"],
        counts=[1, 1, 2],
        reasoning={"b": "because"},
        tokens={"a": [1, 2, 3]},
        ends=[end],
    )
    found = dict(splitting.parts(batch))
    assert found["a"] == m.StreamBatch(
        streams=["a", "a"], texts=["1", "3"], counts=[1, 2], tokens={"a": [1, 2, 3]}
    )
    assert found["b"] == m.StreamBatch(
        streams=["b"], texts=["2"], counts=[1], reasoning={"b": "because"}, ends=[end]
    )


def test_large_calls_to_a_slow_worker_are_rejected_and_the_connection_survives(tmp_path):
    """Forty texts of 4 MB at once are more than may wait for one connection: the later ones fail alone."""

    async def run():
        accepted: asyncio.Future = asyncio.get_running_loop().create_future()
        tmp_path.chmod(0o700)
        listener = await serve_unix(tmp_path / "s", accepted.set_result)
        connection = await connect_unix(tmp_path / "s")
        client, peer = Client(connection), await accepted
        refused = 0
        for _ in range(40):
            try:
                client.start("tokenize", m.TokenizeParams(text="x" * 4_000_000))
            except CapacityError:
                refused += 1
        client.start("tokenize", m.TokenizeParams(text="small"))
        assert 20 < refused < 40
        assert not connection.is_closed
        got: list = []
        peer.open(got.append, lambda _error: None)
        async with asyncio.timeout(20):
            while len(got) < 41 - refused:
                await asyncio.sleep(0.01)
        assert got[-1].params.text == "small"
        listener.close()
        connection.close()

    asyncio.run(run())

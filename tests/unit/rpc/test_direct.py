"""Frames that other threads write past the event loop: in order, whole, and only where there is room."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stretto.rpc import messages as m
from stretto.rpc.connection import StreamConnection, memory_pair
from stretto.rpc.envelope import STREAM_BATCH, Notification
from tests.unit.rpc.test_connection import End, unix_pair


def batch(number: int, size: int = 4) -> Notification:
    return Notification(STREAM_BATCH, m.StreamBatch(streams=[str(number)], texts=["x" * size], counts=[1]))


def numbers(end: End) -> list[int]:
    return [int(received.params.streams[0]) for received in end.received]


@asynccontextmanager
async def ends(tmp_path: Path, **options: int) -> AsyncIterator[tuple[End, End]]:
    ours, theirs = map(End, await unix_pair(tmp_path, **options))
    try:
        yield ours, theirs
    finally:
        for end in (ours, theirs):
            end.connection.close()
            await end.until(lambda end: end.closed)


async def on_thread(work) -> None:
    await asyncio.to_thread(work)


def narrow(connection: StreamConnection) -> None:
    found = connection.transport.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)


@asynccontextmanager
async def unread_ends(tmp_path: Path) -> AsyncIterator[tuple[StreamConnection, End]]:
    """A sender with little room, and a receiver that does not read until it is told to."""
    async with ends(tmp_path) as (sender, receiver):
        narrow(sender.connection)
        receiver.connection.transport.pause_reading()
        yield sender.connection, receiver


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_thread_and_the_loop_write_in_turns(tmp_path: Path) -> None:
    async def run() -> None:
        async with ends(tmp_path) as (sender, receiver):
            ours, theirs = sender.connection, receiver.connection
            for number in range(0, 300, 3):
                ours.send(batch(number))
                await until(lambda: not ours.unsent_bytes)
                sent: list[bool] = []

                def write(number: int = number, sent: list[bool] = sent) -> None:
                    sent.extend(ours.send_now(batch(number + at)) for at in (1, 2))

                await on_thread(write)
                assert sent == [True, True]
            await receiver.until(lambda end: len(end.received) == 300)
            assert numbers(receiver) == list(range(300))
            assert ours.counters.frames_sent == theirs.counters.frames_received == 300
            assert ours.counters.bytes_sent == theirs.counters.bytes_received

    asyncio.run(run())


def test_a_frame_that_has_no_room_comes_whole_and_before_all_later_ones(tmp_path: Path) -> None:
    async def run() -> None:
        async with unread_ends(tmp_path) as (ours, receiver):
            taken: list[bool] = []
            await on_thread(lambda: taken.append(ours.send_now(batch(0, 200_000))))
            assert taken == [True]  # a part of it; the loop writes the rest
            assert ours.unsent_bytes > 0
            assert not ours.send_now(batch(9))
            ours.send(batch(1))
            assert not ours.send_now(batch(9))
            receiver.connection.transport.resume_reading()
            await receiver.until(lambda end: len(end.received) == 2)
            assert numbers(receiver) == [0, 1]
            await until(lambda: not ours.unsent_bytes)
            assert ours.send_now(batch(2))
            await receiver.until(lambda end: len(end.received) == 3)
            assert numbers(receiver) == [0, 1, 2]

    asyncio.run(run())


def test_the_rest_of_a_frame_is_sent_before_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with unread_ends(tmp_path) as (ours, receiver):
            assert ours.send_now(batch(0, 200_000))
            ours.close()
            assert not ours.send_now(batch(1))
            receiver.connection.transport.resume_reading()
            await receiver.until(lambda end: end.closed)
            assert numbers(receiver) == [0]
            assert receiver.closed == [None]

    asyncio.run(run())


def test_nothing_is_sent_to_a_peer_that_is_gone(tmp_path: Path) -> None:
    async def run() -> None:
        async with ends(tmp_path) as (sender, receiver):
            ours, theirs = sender.connection, receiver.connection
            theirs.close(ConnectionError("gone"))
            await sender.until(lambda end: end.closed)
            assert not ours.send_now(batch(0))

    asyncio.run(run())


def test_frames_that_are_too_large_are_left_to_the_loop(tmp_path: Path) -> None:
    async def run() -> None:
        async with ends(tmp_path, frame_bytes_max=1000) as (_, receiver):
            assert not receiver.connection.send_now(batch(0, 2000))

    asyncio.run(run())


def test_only_unix_sockets(tmp_path: Path) -> None:
    async def run() -> None:
        first, _ = memory_pair()
        assert not first.send_now(batch(0))

    asyncio.run(run())


@pytest.mark.parametrize("threads", [1, 3])
def test_frames_of_several_threads_are_never_mixed(tmp_path: Path, threads: int) -> None:
    async def run() -> None:
        async with ends(tmp_path) as (sender, receiver):
            ours = sender.connection
            narrow(ours)
            refused: list[int] = []

            def write(first: int) -> None:
                refused.extend(at for at in range(200) if not ours.send_now(batch(first + at, 997)))

            started = [threading.Thread(target=write, args=(1000 * at,)) for at in range(threads)]
            for thread in started:
                thread.start()
            for at in range(100):
                ours.send(batch(90_000 + at, 333))
                await asyncio.sleep(0)
            while any(thread.is_alive() for thread in started):
                await asyncio.sleep(0.001)
            await receiver.until(lambda end: len(end.received) == 200 * threads + 100 - len(refused))
            found = numbers(receiver)
            for first in (*range(0, 1000 * threads, 1000), 90_000):
                own = [number for number in found if first <= number < first + 1000]
                assert own == sorted(own)

    asyncio.run(run())

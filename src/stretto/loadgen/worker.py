"""One client process: takes a plan and a start time, sends, and hands its records back.

    python -m stretto.loadgen.worker      frames of msgpack on stdin and stdout, as `fleet` speaks them

Knows nothing about statistics. All workers share the machine's monotonic clock. The garbage collector is
disabled during the measurement; the process exits when stdin is closed, i.e. when its parent is gone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import struct
import sys
import time
from typing import Any, BinaryIO

import msgspec

from stretto.loadgen.exchange import encode, perform
from stretto.loadgen.plan import Gate, Shot, Target, User
from stretto.loadgen.records import LoadRecord

PROGRESS_S = 0.25
_LENGTH = struct.Struct("!I")


class LoadJob(msgspec.Struct, kw_only=True):
    """The job of one worker."""

    target: Target
    users: list[User]


class Start(msgspec.Struct, kw_only=True):
    at_s: float  # on the machine's monotonic clock


class News(msgspec.Struct, kw_only=True):
    """Messages of a worker: ready, progress, and finally its records."""

    ready: bool = False
    ended: int = 0
    tokens: int = 0
    records: list[LoadRecord] | None = None
    cpu_s: float = 0.0


def write_frame(file: BinaryIO, message: Any) -> None:
    data = msgspec.msgpack.encode(message)
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def read_frame(file: BinaryIO) -> bytes | None:
    """The next frame, or None at end of file."""
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    data = file.read(_LENGTH.unpack(head)[0])
    return data if len(data) == _LENGTH.unpack(head)[0] else None


class Board:
    """Progress of all requests, for gates."""

    def __init__(self, users: list[User]) -> None:
        self._events: dict[Gate, asyncio.Event] = {}
        self._counts: dict[Gate, int] = {}
        for gate in [gate for user in users for gate in user.gates]:
            self._events.setdefault(gate, asyncio.Event())
            self._counts.setdefault(gate, 0)
        self._at: dict[tuple[str, int], list[Gate]] = {}  # looked up for every chunk of text
        for gate in self._events:
            self._at.setdefault((gate.group, gate.tokens), []).append(gate)

    def watches(self, group: str) -> bool:
        """Whether chunks of this group matter to a gate; ends are always recorded."""
        return any(gate.group == group and gate.tokens for gate in self._events)

    def event(self, gate: Gate) -> asyncio.Event:
        return self._events[gate]

    def note(self, group: str, pieces: int) -> None:
        """A request of the group has received its n-th chunk of text, from 1."""
        for gate in self._at.get((group, pieces), ()):
            self._count(gate)

    def note_ended(self, group: str, pieces: int) -> None:
        """The request ended: counted by gates that wait for its end or for more chunks."""
        for gate in self._events:
            if gate.group == group and (gate.tokens == 0 or gate.tokens > pieces):
                self._count(gate)

    def _count(self, gate: Gate) -> None:
        self._counts[gate] += 1
        if self._counts[gate] == gate.requests:
            asyncio.get_running_loop().call_later(gate.then_s, self._events[gate].set)


class Worker:
    """Runs its users."""

    def __init__(self, job: LoadJob, out: BinaryIO) -> None:
        self._job = job
        self._out = out
        self._board = Board(job.users)
        self._tokens = 0
        self.records: list[LoadRecord] = []

    async def run(self, start_at_s: float) -> None:
        reporting = asyncio.ensure_future(self._report())
        try:
            async with asyncio.TaskGroup() as group:
                for user in self._job.users:
                    group.create_task(self._drive(user, start_at_s))
        finally:
            reporting.cancel()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            write_frame(self._out, News(ended=len(self.records), tokens=self._tokens))

    async def _drive(self, user: User, start_at_s: float) -> None:
        due_s = start_at_s + user.start_s
        stop = self._board.event(user.stop) if user.stop is not None else None
        ends = [self._board.event(gate) for gate in (user.until, user.stop) if gate is not None]
        if user.begin is not None:
            await _first_of([self._board.event(user.begin), *ends])
            due_s = max(due_s, time.monotonic())
        history: list[dict[str, str]] = []
        for shot in user.shots:
            due_s += shot.think_s
            while (left_s := due_s - time.monotonic()) > 0:  # timers may fire a little early
                await asyncio.sleep(left_s)
            if any(event.is_set() for event in ends):
                return
            history = [*history, *shot.messages] if user.converses else shot.messages
            record, text = await self._send(shot, history, due_s, stop, keeps_text=user.converses)
            history = [*history, {"role": "assistant", "content": text}]
            self._keep(record, start_at_s)
            due_s = time.monotonic()

    async def _send(
        self,
        shot: Shot,
        messages: list[dict[str, str]],
        due_s: float,
        stop: asyncio.Event | None,
        *,
        keeps_text: bool,
    ) -> tuple[LoadRecord, str]:
        record = LoadRecord(
            id=shot.id, group=shot.group, tenant=shot.tenant, priority=shot.priority, due_s=due_s
        )
        request = encode(self._job.target, shot, messages)
        last = 0

        def notice(pieces: int) -> None:
            nonlocal last
            while last < pieces:  # several may arrive together
                last += 1
                self._board.note(shot.group, last)

        watched = self._board.watches(shot.group)
        text = await perform(
            self._job.target,
            request,
            record,
            keeps_text=keeps_text,
            notice=notice if watched else None,
            stop=stop,
        )
        self._board.note_ended(shot.group, len(record.chunks_s))
        return record, text

    def _keep(self, record: LoadRecord, start_at_s: float) -> None:
        """Convert to the run's time."""
        record.due_s -= start_at_s
        record.sent_s -= start_at_s
        record.ended_s -= start_at_s
        record.chunks_s = [at_s - start_at_s for at_s in record.chunks_s]
        self._tokens += record.tokens
        self.records.append(record)


async def _first_of(events: list[asyncio.Event]) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def _work(job: LoadJob, start: Start, out: BinaryIO) -> None:
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), os._exit, 1)  # only end of file can arrive now
    worker = Worker(job, out)
    cpu_s = time.process_time()
    await worker.run(start.at_s)
    spent_s = time.process_time() - cpu_s
    loop.remove_reader(sys.stdin.fileno())
    write_frame(out, News(records=worker.records, cpu_s=spent_s))


def main() -> int:
    out = sys.stdout.buffer
    given = read_frame(sys.stdin.buffer)
    if given is None:
        return 1
    job = msgspec.msgpack.decode(given, type=LoadJob)
    write_frame(out, News(ready=True))
    started = read_frame(sys.stdin.buffer)
    if started is None:
        return 1
    gc.freeze()
    gc.disable()
    start = msgspec.msgpack.decode(started, type=Start)
    try:
        import uvloop

        uvloop.run(_work(job, start, out))
    except ImportError:  # not available on Windows
        asyncio.run(_work(job, start, out))
    return 0


if __name__ == "__main__":
    sys.exit(main())

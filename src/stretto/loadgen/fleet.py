"""Controls the client processes: starts them, assigns users, shows progress, collects records.

Users that wait for each other stay in one process; others are distributed. One worker is enough for some
hundred streams, and on a small machine each further one takes CPU time from the server under test.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO, cast

import msgspec

from stretto.errors import BenchError
from stretto.loadgen.plan import LoadPlan, Target, User
from stretto.loadgen.records import LoadRecord, LoadRun
from stretto.loadgen.worker import LoadJob, News, Start, read_frame, write_frame

USERS_PER_WORKER = 256
START_DELAY_S = 0.2
READY_TIMEOUT_S = 60.0
Progress = Callable[[int, int], None]
_News = tuple[int, News | None]


def workers_for(plan: LoadPlan, wanted: int = 0) -> int:
    """Number of processes for a plan; `wanted` 0: chosen automatically."""
    if plan.gated:
        return 1
    return max(1, min(wanted or -(-len(plan.users) // USERS_PER_WORKER), len(plan.users)))


def run(plan: LoadPlan, target: Target, *, workers: int = 0, progress: Progress | None = None) -> LoadRun:
    """Send the whole plan to one server."""
    count = workers_for(plan, wanted=workers)
    shares = [plan.users[index::count] for index in range(count)]
    processes = [_start() for _ in shares]
    inbox: queue.Queue[_News] = queue.Queue()
    try:
        for index, process in enumerate(processes):
            threading.Thread(target=_listen, args=(index, process, inbox), daemon=True).start()
        started_s = _begin(processes, shares, target, inbox)
        records, cpu_s, spent_s = _collect(inbox, len(processes), plan.requests, progress)
    finally:
        for process in processes:
            _end(process)
    return LoadRun(
        workload=plan.workload,
        run_id=plan.run_id,
        url=target.url,
        records=sorted(records, key=lambda record: (record.due_s, record.id)),
        duration_s=spent_s,
        client_cpu_s=cpu_s,
        workers=count,
        shape=plan.shape,
        quiet=plan.quiet,
        started_s=started_s,
    )


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stretto.loadgen.worker"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _listen(index: int, process: subprocess.Popen[bytes], inbox: queue.Queue[_News]) -> None:
    out = cast("BinaryIO", process.stdout)
    try:
        while (frame := read_frame(out)) is not None:
            inbox.put((index, msgspec.msgpack.decode(frame, type=News)))
    except (ValueError, msgspec.MsgspecError):  # closed, or a truncated frame
        pass
    inbox.put((index, None))


def _begin(
    processes: Sequence[subprocess.Popen[bytes]],
    shares: Sequence[list[User]],
    target: Target,
    inbox: queue.Queue[_News],
) -> float:
    """Hand out the users, wait until all workers are ready, and start them. Returns when they start."""
    for process, share in zip(processes, shares, strict=True):
        write_frame(cast("BinaryIO", process.stdin), LoadJob(target=target, users=share))
    for _ in processes:
        _await_ready(inbox)
    start_at_s = time.monotonic() + START_DELAY_S
    for process in processes:
        write_frame(cast("BinaryIO", process.stdin), Start(at_s=start_at_s))
    return start_at_s


def _collect(
    inbox: queue.Queue[_News], workers: int, total: int, progress: Progress | None
) -> tuple[list[LoadRecord], float, float]:
    records: list[LoadRecord] = []
    ended, cpu_s, left = [0] * workers, 0.0, set(range(workers))
    while left:
        index, news = inbox.get()
        if index not in left:  # a worker that has sent its records may exit
            continue
        if news is None:
            raise BenchError("a client process died before it was done")
        if news.records is not None:
            records += news.records
            cpu_s += news.cpu_s
            left.remove(index)
        ended[index] = len(news.records) if news.records is not None else news.ended
        if progress is not None:
            progress(sum(ended), total)
    return records, cpu_s, max((record.ended_s for record in records), default=0.0)


def _await_ready(inbox: queue.Queue[_News]) -> None:
    try:
        _, news = inbox.get(timeout=READY_TIMEOUT_S)
    except queue.Empty:
        raise BenchError("a client process did not start in time") from None
    if news is None:
        raise BenchError("a client process died before it was ready")

"""The heartbeat file: what the worker writes, its supervisor reads; hangs are told from rests."""

from __future__ import annotations

import os
import time

from stretto.rpc.heartbeat import LOOPS_MAX, SIZE_BYTES, HeartbeatReader, HeartbeatWriter


def test_nothing_is_read_before_the_worker_beats(tmp_path):
    reader = HeartbeatReader(tmp_path / "beat")
    assert reader.read() is None
    (tmp_path / "beat").write_bytes(b"half")
    assert reader.read() is None
    (tmp_path / "beat").write_bytes(bytes(SIZE_BYTES))
    assert reader.read() is None


def test_beats_are_seen_by_a_reader_that_has_the_file_open(tmp_path):
    writer = HeartbeatWriter(tmp_path / "beat")
    reader = HeartbeatReader(tmp_path / "beat")
    found = reader.read()
    assert found is not None
    assert (found.pid, found.loops, found.rpc_beat_s) == (os.getpid(), (), 0.0)
    writer.beat_rpc()
    index = writer.take()
    assert index is not None
    writer.beat(index, 7, working=True)
    found = reader.read()
    assert found is not None
    assert abs(found.rpc_beat_s - time.monotonic()) < 5
    assert [(loop.index, loop.working, loop.steps) for loop in found.loops] == [(0, True, 7)]
    writer.give_back(index)
    found = reader.read()
    assert found is not None
    assert found.loops == ()
    reader.close()


def test_an_idle_loop_is_not_hung_and_a_long_step_is(tmp_path):
    writer = HeartbeatWriter(tmp_path / "beat")
    reader = HeartbeatReader(tmp_path / "beat")
    writer.beat_rpc()
    first, second = writer.take(), writer.take()
    assert (first, second) == (0, 1)
    writer.beat(0, 3, working=False)
    writer.beat(1, 9, working=True)
    found = reader.read()
    assert found is not None
    now = time.monotonic()
    assert found.hung(now, step_s_max=60, rpc_s_max=60) == ""
    assert "loop 1 has been in step 9" in found.hung(now + 100, step_s_max=60, rpc_s_max=1000)
    assert "RPC loop has not run" in found.hung(now + 100, step_s_max=1000, rpc_s_max=60)


def test_heartbeat_records_run_out_and_are_reused(tmp_path):
    writer = HeartbeatWriter(tmp_path / "beat")
    taken = [writer.take() for _ in range(LOOPS_MAX)]
    assert taken == list(range(LOOPS_MAX))
    assert writer.take() is None
    writer.give_back(5)
    assert writer.take() == 5

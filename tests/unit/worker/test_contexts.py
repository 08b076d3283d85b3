"""The pool: packs queued inputs, answers every request, survives failing contexts, leaks nothing."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest

from stretto.errors import DeadlineError, QueueFullError, ShuttingDownError
from stretto.testing.encoders import ScriptedEncoder, vector_of
from stretto.worker.contexts import IDLE_S, ContextPool
from stretto.worker.packing import Packer

WAIT_S = 30.0


class Rig:
    def __init__(self, *, size: int = 2, tokens: int = 16, requests_max: int = 512, **script) -> None:
        self.made: list[ScriptedEncoder] = []
        self._script = script
        packer = Packer(tokens_max=tokens, sequences_max=8)
        self.pool = ContextPool(self._make, size=size, packer=packer, requests_max=requests_max)

    def _make(self) -> ScriptedEncoder:
        encoder = ScriptedEncoder(**self._script)
        self.made.append(encoder)
        return encoder

    @property
    def batches(self) -> list[list[list[int]]]:
        return [batch for encoder in self.made for batch in encoder.batches]

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()


def right(inputs) -> np.ndarray:
    return np.array([vector_of(tokens) for tokens in inputs], dtype=np.float32)


def wait_until(condition) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.002)


def test_a_context_rests_once_when_nothing_comes():
    with Rig(size=1) as rig:
        for rests in (1, 2):
            rig.pool.submit([[1]]).result(WAIT_S)
            wait_until(lambda rests=rests: rig.made[0].rests == rests)
        time.sleep(3 * IDLE_S)
        assert rig.made[0].rests == 2


def test_rows_keep_the_order_of_the_inputs():
    inputs = [[n + 1] * (1 + n % 5) for n in range(40)]
    with Rig() as rig:
        assert np.array_equal(rig.pool.submit(inputs).result(WAIT_S), right(inputs))
        assert len(rig.batches) < 40


def test_requests_that_wait_together_share_a_batch():
    gate = threading.Event()
    with Rig(size=1, gate=gate) as rig:
        first = rig.pool.submit([[9]])
        wait_until(lambda: rig.batches)
        others = [rig.pool.submit([[n]]) for n in range(1, 6)]
        gate.set()
        for future in [first, *others]:
            future.result(WAIT_S)
        assert rig.batches[1] == [[1], [2], [3], [4], [5]]


def test_contexts_are_made_when_they_are_needed_and_not_more_than_the_size():
    with Rig(size=3, tokens=1, pass_s=0.005) as rig:
        assert len(rig.made) == 1
        rig.pool.submit([[1]]).result(WAIT_S)
        assert len(rig.made) == 1
        rig.pool.submit([[n + 1] for n in range(60)]).result(WAIT_S)
        assert len(rig.made) == 3
    assert all(encoder.closed for encoder in rig.made)


def test_a_lone_request_waits_for_at_most_two_batches_of_a_long_one():
    gate = threading.Event()
    with Rig(size=1, tokens=16, gate=gate) as rig:
        rig.pool.submit([[1, 2, 3, 4]] * 2000)
        wait_until(lambda: rig.batches)
        lone = rig.pool.submit([[7, 7, 7]])
        gate.set()
        lone.result(WAIT_S)
        before = next(n for n, batch in enumerate(rig.batches) if [7, 7, 7] in batch)
        assert before <= 2


def test_a_batch_that_fails_costs_only_the_request_at_fault():
    poisoned = lambda inputs: any(666 in tokens for tokens in inputs)  # noqa: E731
    gate = threading.Event()
    with Rig(size=1, fails=poisoned, gate=gate) as rig:
        held = rig.pool.submit([[1]])
        wait_until(lambda: rig.batches)
        good = [rig.pool.submit([[n], [n, n]]) for n in (2, 3)]
        bad = rig.pool.submit([[666]])
        gate.set()
        held.result(WAIT_S)
        for n, future in zip((2, 3), good, strict=True):
            assert np.array_equal(future.result(WAIT_S), right([[n], [n, n]]))
        with pytest.raises(RuntimeError, match="as the script says"):
            bad.result(WAIT_S)
        assert rig.made[0].rebuilds >= 2
        assert np.array_equal(rig.pool.submit([[5]]).result(WAIT_S), right([[5]]))


def test_a_pass_that_fails_once_is_not_noticed():
    left = [1]
    with Rig(size=1, fails=lambda _: bool(left and left.pop())) as rig:
        assert np.array_equal(rig.pool.submit([[4, 2]]).result(WAIT_S), right([[4, 2]]))
        assert rig.pool.stats.failures == 1


def test_a_second_context_that_cannot_be_made_leaves_the_work_to_the_first():
    made: list[ScriptedEncoder] = []

    def make() -> ScriptedEncoder:
        if made:
            raise MemoryError("no room for another")
        made.append(ScriptedEncoder(pass_s=0.002))
        return made[0]

    pool = ContextPool(make, size=4, packer=Packer(tokens_max=2, sequences_max=8))
    inputs = [[n + 1, n + 2] for n in range(40)]
    assert np.array_equal(pool.submit(inputs).result(WAIT_S), right(inputs))
    assert np.array_equal(pool.submit(inputs).result(WAIT_S), right(inputs))
    assert pool.stats.contexts == 1
    pool.close()


def test_cancelling_a_request_drops_inputs_not_yet_computed():
    gate = threading.Event()
    with Rig(size=1, gate=gate) as rig:
        long = rig.pool.submit([[1, 2, 3, 4]] * 500)
        wait_until(lambda: rig.batches)
        assert long.cancel()
        gate.set()
        rig.pool.submit([[5]]).result(WAIT_S)
        assert len(rig.batches) <= 3
        with pytest.raises(CancelledError):
            long.result(WAIT_S)
        wait_until(lambda: rig.pool.stats.requests == 0)


def test_a_deadline_ends_a_request_that_waits():
    gate = threading.Event()
    with Rig(size=1, tokens=1, gate=gate) as rig:
        rig.pool.submit([[1]])
        wait_until(lambda: rig.batches)
        late = rig.pool.submit([[2]], deadline_s=time.monotonic() - 1)
        gate.set()
        with pytest.raises(DeadlineError):
            late.result(WAIT_S)
        assert [[2]] not in rig.batches


def test_a_full_queue_refuses():
    gate = threading.Event()
    with Rig(size=1, requests_max=2, gate=gate) as rig:
        futures = [rig.pool.submit([[1]]) for _ in range(2)]
        with pytest.raises(QueueFullError):
            rig.pool.submit([[1]])
        gate.set()
        for future in futures:
            future.result(WAIT_S)
        wait_until(lambda: rig.pool.stats.requests == 0)
        rig.pool.submit([[1]]).result(WAIT_S)


def test_close_answers_queued_requests_and_rejects_new_ones():
    gate = threading.Event()
    rig = Rig(size=1, tokens=1, gate=gate)
    futures = [rig.pool.submit([[n + 1]]) for n in range(3)]
    wait_until(lambda: rig.batches)
    rig.pool.drain()
    with pytest.raises(ShuttingDownError):
        rig.pool.submit([[1]])
    threading.Timer(0.05, gate.set).start()
    rig.pool.close()
    for future in futures[1:]:
        with pytest.raises(ShuttingDownError):
            future.result(WAIT_S)
    assert rig.made[0].closed


def test_a_hundred_requests_a_third_cancelled_all_others_right():
    random.seed(3)
    before = threading.active_count()
    with Rig(size=2, tokens=12, pass_s=0.001) as rig:
        asked = [[[n + 1] * random.randint(1, 12) for _ in range(random.randint(1, 6))] for n in range(100)]
        futures = [rig.pool.submit(inputs) for inputs in asked]
        cancelled = {n for n in range(100) if n % 3 == 0 and futures[n].cancel()}
        for n, future in enumerate(futures):
            if n not in cancelled:
                assert np.array_equal(future.result(WAIT_S), right(asked[n]))
        wait_until(lambda: rig.pool.stats.requests == 0)
        stats = rig.pool.stats
        assert stats.busy == 0
        assert not rig.pool._packer.waiting
        assert len(rig.made) == 2
        assert len(cancelled) > 20
    wait_until(lambda: threading.active_count() <= before)


def test_urgent_requests_and_other_tenants_do_not_wait_behind_a_long_queue():
    gate = threading.Event()
    with Rig(size=1, tokens=2, gate=gate) as rig:
        running = rig.pool.submit([[9]])
        wait_until(lambda: rig.batches)
        many = [rig.pool.submit([[n, n]], tenant="many") for n in range(1, 6)]
        other = rig.pool.submit([[50, 50]], tenant="one")
        late = rig.pool.submit([[70, 70]], priority="background", tenant="one")
        urgent = rig.pool.submit([[60, 60]], priority="urgent", tenant="many")
        assert rig.pool.stats.queued == {"default": 6, "background": 1, "urgent": 1}
        gate.set()
        for future in [running, *many, other, late, urgent]:
            future.result(WAIT_S)
        # The background's turn comes after four batches without it.
        assert [batch[0][0] for batch in rig.batches] == [9, 60, 1, 50, 2, 70, 3, 4, 5]


def test_a_tenant_cannot_fill_the_queue_alone():
    gate = threading.Event()
    with Rig(size=1, requests_max=4, gate=gate) as rig:
        held = [rig.pool.submit([[1]], tenant="many") for _ in range(3)]
        with pytest.raises(QueueFullError, match="tenant"):
            rig.pool.submit([[1]], tenant="many")
        held.append(rig.pool.submit([[1]], tenant="other"))
        gate.set()
        for future in held:
            future.result(WAIT_S)

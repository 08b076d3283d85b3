"""The model pool: one load for many askers, a budget, the least used goes first, never a busy one."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from stretto.errors import (
    ModelBusyError,
    ModelFileError,
    ModelMemoryError,
    ModelNotFoundError,
    ModelTooLargeError,
    ShuttingDownError,
)
from stretto.worker.pool import ModelPool


class Resident:
    def __init__(self, name: str) -> None:
        self.description = {"model": name, "slots": 2}
        self.busy = False
        self.alive = True
        self.drained = False
        self.closed = threading.Event()

    def drain(self) -> None:
        self.drained = True

    def close(self) -> None:
        self.closed.set()


class Shelf:
    """A loader with models of given sizes; loading takes a moment and is counted."""

    def __init__(self, sizes: dict[str, int], load_s: float = 0.02) -> None:
        self.sizes = sizes
        self.load_s = load_s
        self.loads: list[str] = []
        self.residents: dict[str, Resident] = {}
        self.failing: set[str] = set()

    def ids(self) -> list[str]:
        return list(self.sizes)

    def resolve(self, model_id: str) -> str:
        if model_id not in ("", *self.sizes):
            raise ModelNotFoundError(f"no {model_id}")
        return model_id or next(iter(self.sizes))

    def adapters(self, model_id: str) -> tuple[str, ...]:
        return ()

    def estimate_bytes(self, model_id: str, progress) -> int:
        return self.sizes[model_id]

    def load(self, model_id: str, progress) -> Resident:
        self.loads.append(model_id)
        for step in range(4):
            progress("loading", step / 4)
            time.sleep(self.load_s / 4)
        if model_id in self.failing:
            raise ModelFileError("damaged")
        self.residents[model_id] = Resident(model_id)
        return self.residents[model_id]


def make(sizes: dict[str, int], budget: int = 100, **options) -> tuple[ModelPool, Shelf]:
    shelf = Shelf(sizes)
    return ModelPool(shelf, budget_bytes=budget, **options), shelf


def test_many_askers_cause_one_load_and_see_its_progress():
    async def run():
        seen: list = []
        pool, shelf = make({"a": 10}, on_progress=seen.append)
        entries = await asyncio.gather(*(pool.acquire("") for _ in range(20)))
        assert shelf.loads == ["a"]
        assert entries[0].leases == 20
        assert next(note.stage for note in seen) == "loading"
        assert (seen[-1].stage, seen[-1].fraction) == ("ready", 1.0)
        info = pool.info("a")
        assert (info.loaded, info.busy, info.slots, info.memory_bytes) == (True, True, 2, 10)
        await pool.close()
        assert shelf.residents["a"].closed.is_set()

    asyncio.run(run())


def test_a_load_that_fails_fails_all_its_askers_and_is_tried_again():
    async def run():
        pool, shelf = make({"a": 10})
        shelf.failing = {"a"}
        answers = await asyncio.gather(*(pool.acquire("a") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(answer, ModelFileError) for answer in answers)
        assert pool.info("a").memory_bytes == 0
        shelf.failing = set()
        entry = await pool.acquire("a")
        assert shelf.loads == ["a", "a"]
        pool.release(entry)
        assert entry.leases == 0
        await pool.close()

    asyncio.run(run())


def test_an_asker_that_leaves_does_not_stop_the_load_for_others():
    async def run():
        pool, shelf = make({"a": 10})
        leaver, stayer = asyncio.create_task(pool.acquire("a")), asyncio.create_task(pool.acquire("a"))
        await asyncio.sleep(0.005)
        leaver.cancel()
        entry = await stayer
        assert (shelf.loads, entry.leases) == (["a"], 1)
        await pool.close()

    asyncio.run(run())


def test_the_idle_model_used_longest_ago_makes_room():
    async def run():
        now = [0.0]
        pool, shelf = make({"a": 40, "b": 40, "c": 40}, clock=lambda: now[0])
        for model_id in ("a", "b", "a"):
            now[0] += 1
            pool.release(await pool.acquire(model_id))
        pool.release(await pool.acquire("c"))
        assert shelf.residents["b"].closed.is_set()
        assert not shelf.residents["a"].closed.is_set()
        assert {model_id for model_id, _ in pool.loaded()} == {"a", "c"}
        await pool.close()

    asyncio.run(run())


def test_a_busy_model_is_never_unloaded():
    async def run():
        pool, shelf = make({"a": 60, "b": 60})
        leased = await pool.acquire("a")
        with pytest.raises(ModelMemoryError):
            await pool.acquire("b")
        with pytest.raises(ModelBusyError):
            await pool.unload("a")
        pool.release(leased)
        shelf.residents["a"].busy = True  # its loop still works
        with pytest.raises(ModelMemoryError):
            await pool.acquire("b")
        shelf.residents["a"].busy = False
        pool.release(await pool.acquire("b"))
        assert shelf.residents["a"].closed.is_set()
        await pool.close()

    asyncio.run(run())


def test_a_model_larger_than_the_budget_is_rejected_without_unloading_others():
    async def run():
        pool, shelf = make({"a": 60, "huge": 101})
        pool.release(await pool.acquire("a"))
        with pytest.raises(ModelTooLargeError, match="101"):
            await pool.acquire("huge")
        assert not shelf.residents["a"].closed.is_set()
        await pool.close()

    asyncio.run(run())


def test_idle_models_go_after_their_time():
    async def run():
        now = [0.0]
        pool, shelf = make({"a": 10, "b": 10}, idle_unload_s=60, clock=lambda: now[0])
        pool.release(await pool.acquire("a"))
        held = await pool.acquire("b")
        now[0] = 59.0
        await pool.sweep()
        assert not shelf.residents["a"].closed.is_set()
        now[0] = 61.0
        await pool.sweep()
        assert shelf.residents["a"].closed.is_set()
        assert not shelf.residents["b"].closed.is_set()
        pool.release(held)
        await pool.sweep()
        assert not shelf.residents["b"].closed.is_set()  # its time runs from its last use
        pool.release(await pool.acquire("a"))
        assert shelf.loads == ["a", "b", "a"]
        await pool.close()

    asyncio.run(run())


def test_a_loop_that_broke_is_replaced_at_the_next_request():
    async def run():
        pool, shelf = make({"a": 60})
        pool.release(await pool.acquire("a"))
        broken = shelf.residents["a"]
        broken.alive = False
        entry = await pool.acquire("a")
        assert entry.resident is not broken
        assert broken.closed.is_set()
        await pool.close()

    asyncio.run(run())


def test_unloading_an_unloaded_model_and_a_closed_pool_are_errors():
    async def run():
        pool, _ = make({"a": 60})
        with pytest.raises(ModelNotFoundError):
            await pool.unload("a")
        with pytest.raises(ModelNotFoundError):
            await pool.acquire("other")
        await pool.close()
        with pytest.raises(ShuttingDownError):
            await pool.acquire("a")

    asyncio.run(run())


def test_loads_of_two_models_that_do_not_fit_together_do_not_overbook():
    async def run():
        pool, _ = make({"a": 60, "b": 60})
        answers = await asyncio.gather(pool.acquire("a"), pool.acquire("b"), return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        assert len(failed) == 1
        assert isinstance(failed[0], ModelMemoryError)
        assert len(pool.loaded()) == 1
        await pool.close()

    asyncio.run(run())

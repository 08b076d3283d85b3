from __future__ import annotations

import asyncio

import pytest

from stretto.errors import ModelNotFoundError, ShuttingDownError
from stretto.rpc.messages import ModelInfo
from stretto.server.catalog import Catalog
from stretto.testing.clock import FakeClock
from tests.server.scripted import ScriptedClient


class Counting(ScriptedClient):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = list(names)
        self.looks = 0
        self.lost = False

    async def models(self) -> list[ModelInfo]:
        self.looks += 1
        if self.lost:
            raise ShuttingDownError("the worker is away")
        return [ModelInfo(id=name, kind="dense", loaded=name == "loaded") for name in self.names]


def test_a_known_name_costs_no_look() -> None:
    async def run() -> int:
        worker_client, clock = Counting("a", "b"), FakeClock()
        catalog = Catalog(worker_client, clock=lambda: clock.now)
        for _ in range(100):
            await catalog.find("b")
            clock.advance(5.0)
        return worker_client.looks

    assert asyncio.run(run()) == 1


def test_the_default_is_chosen_afresh() -> None:
    async def run() -> list[str]:
        worker_client, clock = Counting("a"), FakeClock()
        catalog = Catalog(worker_client, clock=lambda: clock.now)
        first = await catalog.find(None)
        worker_client.names = ["loaded"]
        second = await catalog.find(None)
        clock.advance(5.0)
        third = await catalog.find(None)
        return [model.id for model in (first, second, third)]

    assert asyncio.run(run()) == ["a", "a", "loaded"]


def test_cached_models_are_used_while_the_worker_is_away() -> None:
    async def run() -> str:
        worker_client, clock = Counting("a"), FakeClock()
        catalog = Catalog(worker_client, clock=lambda: clock.now)
        await catalog.find(None)
        clock.advance(5.0)
        worker_client.lost = True
        with pytest.raises(ShuttingDownError):
            await catalog.find("other")
        return (await catalog.find(None)).id

    assert asyncio.run(run()) == "a"


def test_a_new_model_is_found_at_once() -> None:
    async def run() -> str:
        worker_client = Counting("a")
        catalog = Catalog(worker_client)
        await catalog.find("a")
        worker_client.names.append("b")
        return (await catalog.find("b")).id

    assert asyncio.run(run()) == "b"


def test_without_a_name_a_loaded_model_is_preferred() -> None:
    assert asyncio.run(Catalog(Counting("a", "loaded")).find(None)).id == "loaded"


def test_an_unknown_model_error_lists_a_limited_number_of_models() -> None:
    names = [f"m{index}" for index in range(20)]
    with pytest.raises(ModelNotFoundError) as caught:
        asyncio.run(Catalog(Counting(*names)).find("x" * 1000))
    assert "m0" in caught.value.hint
    assert "12 more" in caught.value.hint
    assert len(caught.value.message) < 200


def test_nothing_is_served_yet() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        asyncio.run(Catalog(Counting()).find(None))
    assert "no model" in caught.value.hint

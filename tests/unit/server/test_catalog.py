from __future__ import annotations

import asyncio

import pytest

from stretto.errors import ModelNotFoundError
from stretto.rpc.messages import ModelInfo
from stretto.server.catalog import Catalog
from stretto.testing.clock import FakeClock
from tests.server.scripted import ScriptedEngine


class Counting(ScriptedEngine):
    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = list(names)
        self.looks = 0

    async def models(self) -> list[ModelInfo]:
        self.looks += 1
        return [ModelInfo(id=name, kind="dense", loaded=name == "loaded") for name in self.names]


def test_a_known_name_costs_no_look() -> None:
    async def run() -> int:
        engine, clock = Counting("a", "b"), FakeClock()
        catalog = Catalog(engine, clock=lambda: clock.now)
        for _ in range(100):
            await catalog.find("b")
        clock.advance(5.0)
        await catalog.find("a")
        return engine.looks

    assert asyncio.run(run()) == 2


def test_a_new_model_is_found_at_once() -> None:
    async def run() -> str:
        engine = Counting("a")
        catalog = Catalog(engine)
        await catalog.find("a")
        engine.names.append("b")
        return (await catalog.find("b")).id

    assert asyncio.run(run()) == "b"


def test_without_a_name_a_loaded_one_comes_first() -> None:
    assert asyncio.run(Catalog(Counting("a", "loaded")).find(None)).id == "loaded"


def test_a_refusal_names_what_is_served_but_not_without_end() -> None:
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

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import anthropic
import openai
import pytest

from stretto.server.app import create_app
from tests.server.running import serving
from tests.server.scripted import ScriptedEngine, usual


@dataclass
class Rig:
    """A server over a scripted engine, and how to reach it."""

    url: str
    engine: ScriptedEngine

    @property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    @property
    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    @property
    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0)

    @property
    def async_anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def _served() -> Iterator[Rig]:
    engine = ScriptedEngine()
    with serving(create_app(engine)) as url:
        yield Rig(url, engine)


@pytest.fixture
def rig(_served: Rig) -> Rig:
    """One server for a module; every test begins with an engine that remembers nothing."""
    engine = _served.engine
    engine.script, engine.vectors = usual, False
    for memory in (engine.calls, engine.asked, engine.cancelled):
        memory.clear()
    return _served

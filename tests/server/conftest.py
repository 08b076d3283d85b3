from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import anthropic
import httpx2
import openai
import pytest

from stretto.server.app import create_app
from stretto.server.http.ignored import UnknownFields
from stretto.settings import ServerSettings
from tests.server.running import serving
from tests.server.scripted import ScriptedClient, usual


@dataclass
class Rig:
    """A server over a scripted engine, and how to reach it."""

    url: str
    worker_client: ScriptedClient
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    http: httpx2.Client

    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def async_anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url, api_key="none", max_retries=0)


def _rig(unknown_fields: UnknownFields) -> Iterator[Rig]:
    worker_client = ScriptedClient()
    options = ServerSettings(
        ping_interval_s=0.2, first_byte_s=0.2, log_level="error", unknown_fields=unknown_fields
    )
    with (
        serving(create_app(worker_client, options)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as openai_client,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as anthropic_client,
        httpx2.Client(base_url=url, timeout=30) as http,
    ):
        yield Rig(url, worker_client, openai_client, anthropic_client, http)


@pytest.fixture(scope="module")
def _served() -> Iterator[Rig]:
    yield from _rig("ignore")


@pytest.fixture(scope="module")
def _served_strictly() -> Iterator[Rig]:
    yield from _rig("refuse")


@pytest.fixture
def rig(_served: Rig) -> Rig:
    """One server for a module; every test begins with an engine that remembers nothing."""
    return _forgetful(_served)


@pytest.fixture
def strict_rig(_served_strictly: Rig) -> Rig:
    """The same with `unknown_fields: refuse`."""
    return _forgetful(_served_strictly)


def _forgetful(rig: Rig) -> Rig:
    worker_client = rig.worker_client
    worker_client.script, worker_client.vectors = usual, False
    for memory in (worker_client.calls, worker_client.asked, worker_client.cancelled):
        memory.clear()
    return rig

"""TextClient: a `WorkerClient` that makes the text of generations itself and sends token ids to the worker.

Wraps a `TokenClient`, of one worker or of a cluster. A model's text side is built from what the worker
announces (`text_client.sources`); until it is there, where it cannot be built, and with `text_in: worker`,
calls pass through unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal
from weakref import WeakValueDictionary

import msgspec
import structlog

from stretto.client.api import GenerationStream, Health, OnStart, StoppableStream, TokenClient
from stretto.client.batch_stats import BatchEvent
from stretto.rpc import messages as m
from stretto.text.lanes import Lanes
from stretto.text.model_text import ModelText
from stretto.text.requests import (
    PreparedText,
    biases,
    prepare_text,
    text_of,
    tokens_of_messages,
    tokens_of_text,
)
from stretto.text.sizes import HEAVY_TEXT_CHARS, prompt_chars, text_chars
from stretto.text_client.generation import TextGeneration
from stretto.text_client.sources import read_source

log = structlog.get_logger("stretto.text")
TextPlace = Literal["auto", "worker", "api"]
SHORT_CHARS = 2048  # prepared at once: a thread would take longer
IDLE_CHECK_S = 0.02
LANES = 2


class TextClient:
    """`text_in`: auto is api; the worker makes the text of what cannot be built here."""

    def __init__(self, rpc: TokenClient, *, text_in: TextPlace = "auto", lanes: int = LANES) -> None:
        self.rpc = rpc
        self._text_in = text_in
        self._lanes = Lanes(lanes, "stretto-text")
        self._texts: dict[str, tuple[m.TextSource, ModelText]] = {}
        self._building: dict[str, asyncio.Task[None]] = {}
        self._default = ""
        self._numbers = itertools.count(1)
        self._open: WeakValueDictionary[str, TextGeneration] = WeakValueDictionary()  # for their forks
        rpc.on_models = self._note

    # --- models' text sides ----------------------------------------------------------------------

    def _note(self, models: list[m.ModelInfo]) -> None:
        """Build the text side of every model that has become known."""
        self._default = models[0].id if models else ""
        for model in models:
            if model.text is None or self._text_in == "worker" or model.id in self._building:
                continue
            known = self._texts.get(model.id)
            if known is None or known[0] != model.text:
                self._texts.pop(model.id, None)
                task = asyncio.get_running_loop().create_task(self._build(model.id, model.text))
                self._building[model.id] = task

    async def _build(self, model_id: str, source: m.TextSource) -> None:
        try:
            self._texts[model_id] = source, await asyncio.to_thread(read_source, source)
        except Exception as error:  # the worker keeps making its text
            log.warning("the text of a model stays with the worker", model=model_id, error=str(error))
        finally:
            del self._building[model_id]

    def _text(self, model_id: str) -> ModelText | None:
        found = self._texts.get(model_id or self._default)
        return None if found is None else found[1]

    # --- generations -----------------------------------------------------------------------------

    def generate(self, params: m.GenerateParams) -> GenerationStream:
        text = self._text(params.model_id)
        if text is None or params.number or params.resumed:  # resumed: the worker knows how its text went on
            return self.rpc.generate(params)
        parent = self._open.get(params.fork_of) if params.fork_of else None
        generation = TextGeneration(params, text, self._send)
        self._open[params.stream_id] = generation
        size = prompt_chars(params)
        if parent is not None or size > SHORT_CHARS or params.guidance is not None:
            generation.prepare_later(partial(self._prepared, text, params, parent, size))
        else:
            generation.prepare(partial(prepare_text, text, params))
        return generation

    async def _prepared(
        self, text: ModelText, params: m.GenerateParams, parent: TextGeneration | None, size: int
    ) -> PreparedText:
        prompt = None
        if parent is not None:
            with contextlib.suppress(asyncio.CancelledError):
                prompt = await asyncio.shield(parent.prompt)
        work = partial(prepare_text, text, params, prompt)
        return await self._lanes.run(params.tenant, work, heavy=size > HEAVY_TEXT_CHARS)

    def _send(self, params: m.GenerateParams, prepared: PreparedText, waited_s: float) -> StoppableStream:
        text = self._text(params.model_id)
        sampling = params.sampling
        if params.bias_texts and text is not None:
            sampling = {**sampling, "logit_bias": biases(text.tokenizer, params)}
        deadline_ms = params.deadline_ms
        return self.rpc.generate(
            msgspec.structs.replace(
                params,
                messages=None,
                prompt=None,
                pieces=None,
                tokens=prepared.prompt.tokens.tokens.tolist(),
                boundaries=list(prepared.prompt.tokens.boundaries),
                media=list(prepared.prompt.files),
                tool_use=None,
                template_options={},
                continue_final=False,
                truncate_prompt_tokens=None,
                truncate_messages=False,
                sampling=sampling,
                stops=[],
                guidance=None,
                grammar=prepared.grammar,
                bias_texts=[],
                show_control=False,
                include_stop=False,
                echo_tokens=False,
                deadline_ms=None if deadline_ms is None else deadline_ms - 1000 * waited_s,
                number=next(self._numbers),
            )
        )

    # --- texts -----------------------------------------------------------------------------------

    async def tokenize(self, params: m.TokenizeParams) -> list[int]:
        text = self._text(params.model_id)
        if text is None or (params.text is None) == (params.messages is None):
            return await self.rpc.tokenize(params)
        work: Callable[[], list[int]]
        if params.text is not None:
            work = partial(
                tokens_of_text, text.tokenizer, params.text, window=text.window, special=params.special
            )
        else:
            work = partial(tokens_of_messages, text, params)
        heavy = text_chars(params.text, params.messages) > HEAVY_TEXT_CHARS
        return await self._lanes.run(params.tenant, work, heavy=heavy)

    async def detokenize(self, params: m.DetokenizeParams) -> str:
        text = self._text(params.model_id)
        if text is None:
            return await self.rpc.detokenize(params)
        work = partial(text_of, text.tokenizer, params.tokens, window=text.window)
        return await self._lanes.run(params.tenant, work)

    # --- what passes through ---------------------------------------------------------------------

    async def start(self) -> None:
        await self.rpc.start()

    async def close(self) -> None:
        for generation in list(self._open.values()):
            if generation.preparing:
                generation.cancel()
        await self.rpc.close()
        await asyncio.gather(*self._building.values(), return_exceptions=True)
        self._lanes.close()

    def drain(self) -> None:
        self.rpc.drain()

    async def wait_idle(self, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while any(generation.preparing for generation in list(self._open.values())):
            if loop.time() >= end_s:
                return False
            await asyncio.sleep(IDLE_CHECK_S)
        return await self.rpc.wait_idle(end_s - loop.time())

    @property
    def health(self) -> Health:
        """At the start a model is ready when its text side is: building it beside a request delays both."""
        found = self.rpc.health
        if found.ready and self._building and not self._texts:
            return replace(found, ready=False, reason="loading")
        return found

    async def models(self) -> list[m.ModelInfo]:
        return await self.rpc.models()

    async def load(self, model_id: str) -> m.ModelInfo:
        """Returns when the model's text side is built as well."""
        found = await self.rpc.load(model_id)
        await self.text_ready(found.id)
        return found

    async def text_ready(self, model_id: str) -> bool:
        """Wait for a text side that is being built. Whether this client makes the model's text."""
        if (building := self._building.get(model_id or self._default)) is not None:
            await asyncio.wait({building})
        return self._text(model_id) is not None

    async def unload(self, model_id: str) -> None:
        await self.rpc.unload(model_id)

    async def embed(self, params: m.EmbedParams, *, on_start: OnStart | None = None) -> m.EmbedResult:
        return await self.rpc.embed(params, on_start=on_start)

    async def rerank(self, params: m.RerankParams, *, on_start: OnStart | None = None) -> m.RerankResult:
        return await self.rpc.rerank(params, on_start=on_start)

    async def stats(self) -> m.Stats:
        return await self.rpc.stats()

    def batch_stats(self) -> dict[str, Any]:
        return self.rpc.batch_stats()

    def arriving(self) -> AbstractContextManager[None]:
        return self.rpc.arriving()

    def on_batch_dispatched(self, listener: Callable[[BatchEvent], None]) -> None:
        self.rpc.on_batch_dispatched(listener)

    def watch(self) -> AsyncIterator[m.EngineEvents]:
        return self.rpc.watch()

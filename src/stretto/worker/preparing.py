"""Prepares calls off the RPC loop: rendering, tokenizing, decoding media, grammar trials.

Texts, media and grammars have separate lanes (`text.lanes`): tenants are served round robin, long work never
occupies all lanes, and work of cancelled calls is dropped, including running grammar trials. This module
handles lanes and sizes; `requests` does the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from stretto.rpc import messages as m
from stretto.text.lanes import Lanes
from stretto.text.model_text import Prompt
from stretto.text.sizes import HEAVY_TEXT_CHARS, TOKEN_CHARS, prompt_chars, text_chars
from stretto.worker.embedding import EmbeddingRuntime, Runner
from stretto.worker.grammars import HEAVY_CHARS, Leaving
from stretto.worker.loaded import LoadedModel
from stretto.worker.media_input import with_media
from stretto.worker.model import ModelRuntime, PreparedRequest
from stretto.worker.requests import prepare, text_of, tokens_of

GRAMMAR_LANES = 2
MEDIA_LANES = 2
MEDIA_NICENESS = 10  # streams that run do not wait for a picture to be scaled
T = TypeVar("T")


class Preparing:
    def __init__(self, threads: int) -> None:
        self._texts = Lanes(threads, "stretto-prepare")
        self._grammars = Lanes(GRAMMAR_LANES, "stretto-grammar")
        self._media = Lanes(MEDIA_LANES, "stretto-media", niceness=MEDIA_NICENESS)

    async def call(
        self, loaded: LoadedModel, params: m.GenerateParams, parent: Prompt | None
    ) -> PreparedRequest:
        """The request of a `generate` call. Raises the typed error to answer with."""
        size = 0 if parent is not None else prompt_chars(params)
        work = partial(prepare, loaded, params, parent)
        call = await self._texts.run(params.tenant, work, heavy=size > HEAVY_TEXT_CHARS)
        if call.prompt.files and call.prompt.media is None:
            call = await self._media.run(params.tenant, partial(with_media, loaded.runtime, call))
        if not call.params.grammar:
            return call
        return replace(call, held=await self._grammar(loaded.runtime, call))

    async def _grammar(self, model: ModelRuntime, call: PreparedRequest) -> object:
        grammar, scope, leaving = call.params.grammar, (call.tenant, call.cache_salt), Leaving()
        if model.grammars.known(grammar, scope):
            return await self._texts.run(call.tenant, partial(model.grammars.check, grammar, scope))
        work = partial(model.grammars.check, grammar, scope, leaving)
        try:
            return await self._grammars.run(call.tenant, work, heavy=len(grammar) > HEAVY_CHARS)
        except asyncio.CancelledError:
            leaving.leave()
            raise

    async def tokens(self, model: ModelRuntime | EmbeddingRuntime, params: m.TokenizeParams) -> list[int]:
        heavy = text_chars(params.text, params.messages) > HEAVY_TEXT_CHARS
        return await self._texts.run(params.tenant, partial(tokens_of, model, params), heavy=heavy)

    async def text(self, model: ModelRuntime | EmbeddingRuntime, params: m.DetokenizeParams) -> str:
        heavy = len(params.tokens) * TOKEN_CHARS > HEAVY_TEXT_CHARS
        return await self._texts.run(params.tenant, partial(text_of, model, params.tokens), heavy=heavy)

    def inputs(self, params: m.EmbedParams | m.RerankParams) -> Runner:
        """Runner that tokenizes the inputs of an embed or rerank call."""
        heavy = sum(map(len, _inputs(params))) > HEAVY_TEXT_CHARS

        def run(work: Callable[..., T], *arguments: Any) -> Any:
            return self._texts.run(params.tenant, partial(work, *arguments), heavy=heavy)

        return run

    def close(self) -> None:
        self._texts.close()
        self._grammars.close()
        self._media.close()


def _inputs(params: m.EmbedParams | m.RerankParams) -> Sequence[str | list[int]]:
    return params.inputs if isinstance(params, m.EmbedParams) else [params.query, *params.documents]

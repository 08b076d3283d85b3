"""/v1/completions: text continued, one prompt or many at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from stretto.engine.api import GenerationStream
from stretto.errors import InvalidFieldError, UnsupportedFieldError
from stretto.rpc.messages import GenerateParams
from stretto.server.bodies import BodyRoute
from stretto.server.boundary import new_id
from stretto.server.caller import Caller, caller_of
from stretto.server.documents import OPENAI_ERRORS, streaming
from stretto.server.fields import (
    N_MAX,
    TOP_LOGPROBS_MAX,
    Extensions,
    MaxTokens,
    ModelName,
    Sampling,
    Stops,
)
from stretto.server.generation import Answer, Services, collect, start, total_usage
from stretto.server.openai.chat_request import Harmless, StreamOptions
from stretto.server.openai.chunks import TextChunks
from stretto.server.openai.logprobs import Columns
from stretto.server.openai.prompts import Prompt, prompts
from stretto.server.openai.relay import relay
from stretto.server.openai.replies import Completion
from stretto.server.openai.shapes import usage_of
from stretto.server.openai.tools import Guided, ResponseFormat, guidance_of, guidance_of_format
from stretto.server.sse import JsonReply, Wire
from stretto.server.timings import total_timings

PROMPTS_MAX = 64
ANSWERS_MAX = 128  # prompts times n
DEFAULT_TOKENS = 16  # as OpenAI's


class CompletionRequest(Harmless, Guided, Sampling, Extensions):
    prompt: prompts(items_max=PROMPTS_MAX, empty_text=False)  # type: ignore[valid-type]
    """Text, token ids, or a list of either."""
    model: ModelName | None = None
    """Left out: the model that the server serves by default."""
    max_tokens: MaxTokens | None = None
    """Left out: 16."""
    n: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    best_of: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    """Only the same number as n: answers are not ranked."""
    echo: bool | None = None
    """Put the prompt before the answer."""
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timings_per_token: bool | None = None
    """Streams: the timings so far in every chunk, not only in the last one."""
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    response_format: ResponseFormat | None = None
    suffix: None = None
    """Filling in the middle is not supported."""
    draft_model: None = None
    """A second model cannot be chosen by a request."""
    prompt_embeds: None = None
    """Send text or token ids."""

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def check(self) -> None:
        n = self.n or 1
        if self.stream_options is not None and not self.stream:
            raise InvalidFieldError("is for streams", param="stream_options", hint="send stream: true")
        if self.best_of not in (None, n):
            raise UnsupportedFieldError("answers are not ranked", param="best_of", hint="leave it out")
        if self.echo and self.logprobs is not None:
            raise UnsupportedFieldError(
                "log-probabilities of a prompt are not computed", param="echo", hint="send echo or logprobs"
            )
        if n * len(self.prompt) > ANSWERS_MAX:
            raise InvalidFieldError(f"prompts times n must be at most {ANSWERS_MAX}", param="n")

    def params(self, prompt: Prompt, *, stream_id: str, model_id: str, caller: Caller) -> GenerateParams:
        sampling = self.sampling()
        if self.logprobs is not None:
            sampling["logprobs"] = self.logprobs
        shape = guidance_of_format(self.response_format)
        return GenerateParams(
            stream_id=stream_id,
            model_id=model_id,
            prompt=prompt if isinstance(prompt, str) else None,
            tokens=None if isinstance(prompt, str) else prompt,
            sampling=sampling,
            max_tokens=self.max_tokens or DEFAULT_TOKENS,
            stops=list(self.stop or ()),
            stop_token_ids=list(self.stop_token_ids or ()),
            guidance=guidance_of(self, shape, "response_format", None),
            priority=caller.priority(self.priority),
            tenant=caller.tenant,
            cache_salt=self.cache_salt or "",
            deadline_ms=self.deadline_ms,
            streamed=bool(self.stream),
        )


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["openai"])

    @routes.post(
        "/v1/completions",
        response_model=None,
        responses={200: streaming(Completion), **OPENAI_ERRORS},
        summary="Continue a text",
    )
    async def completions(body: CompletionRequest, request: Request) -> Response:
        body.check()
        model = await services.catalog.find(body.model)
        completion_id = new_id("cmpl-")
        caller = caller_of(request.scope)
        calls = [
            body.params(prompt, stream_id=f"{completion_id}.{at}", model_id=model.id, caller=caller)
            for at, prompt in enumerate(body.prompt)
        ]
        work = _Completions(services, body, calls, completion_id, int(time.time()))
        if body.stream:
            return services.events(work.stream)
        return JsonReply(work.whole)

    return routes


class _Completions:
    """One request at work: the answers to the first prompt first, then those to the second."""

    def __init__(
        self,
        services: Services,
        body: CompletionRequest,
        calls: list[GenerateParams],
        completion_id: str,
        created: int,
    ) -> None:
        self._services = services
        self._body = body
        self._calls = calls
        self._id = completion_id
        self._created = created
        self._n = body.n or 1

    def _start(self) -> list[GenerationStream]:
        return [stream for call in self._calls for stream in start(self._services.engine, call, self._n)]

    async def _echoes(self) -> list[str]:
        """What stands before each answer."""
        if not self._body.echo:
            return [""] * (len(self._calls) * self._n)
        texts = await asyncio.gather(*(self._prompt_text(call) for call in self._calls))
        return [text for text in texts for _ in range(self._n)]

    async def _prompt_text(self, call: GenerateParams) -> str:
        if call.tokens is None:
            return call.prompt or ""
        return await self._services.engine.detokenize(call.tokens, call.model_id)

    async def stream(self, wire: Wire) -> None:
        echoes = await self._echoes()
        chunks = TextChunks(
            self._id,
            self._calls[0].model_id,
            self._created,
            echoes=echoes,
            include_usage=self._body.include_usage,
            logprobs=self._body.logprobs,
            timings_per_token=bool(self._body.timings_per_token),
        )
        streams = self._start()
        usage = self._body.include_usage
        await relay(wire, streams, chunks, n=self._n, include_usage=usage)

    async def whole(self) -> bytes:
        echoes = await self._echoes()
        answers = await collect(self._start())
        reply = {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._calls[0].model_id,
            "choices": [
                self._choice(index, echo, answer)
                for index, (echo, answer) in enumerate(zip(echoes, answers, strict=True))
            ],
            "usage": usage_of(total_usage([answer.end.usage for answer in answers], self._n)),
            "timings": total_timings([answer.end for answer in answers]),
        }
        return msgspec.json.encode(reply)

    def _choice(self, index: int, echo: str, answer: Answer) -> dict[str, Any]:
        wanted = self._body.logprobs
        return {
            "index": index,
            "text": echo + answer.reasoning + answer.text,
            "logprobs": None if wanted is None else Columns().take(answer.logprobs, top=wanted > 0),
            "finish_reason": answer.finish_reason,
        }

"""/v1/completions: continues one prompt or many."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from stretto.client.api import GenerationStream
from stretto.errors import InvalidFieldError, UnsupportedFieldError
from stretto.rpc.messages import DetokenizeParams, GenerateParams, TokenLogprob, UsageMessage
from stretto.server.generation import Answer, Services, adapted, collect, start, total_usage
from stretto.server.http.bodies import BodyRoute
from stretto.server.http.caller import Caller, caller_of
from stretto.server.http.error_boundary import new_id
from stretto.server.http.fields import (
    N_MAX,
    TOP_LOGPROBS_MAX,
    ModelName,
    Stops,
)
from stretto.server.http.sse import JsonReply, SseWriter
from stretto.server.openai.chat_request import Harmless
from stretto.server.openai.chunks import TextChunks, cut_short
from stretto.server.openai.compat import Generating
from stretto.server.openai.logprobs import Columns, prompt_logprobs
from stretto.server.openai.prompts import Prompt, prompt_field, prompts
from stretto.server.openai.relay import relay
from stretto.server.openai.replies import TextCompletion
from stretto.server.openai.shapes import fingerprint, usage_of
from stretto.server.openai.streamed import Streamed
from stretto.server.openai.tools import ResponseFormat, guidance_of, guidance_of_format
from stretto.server.openapi import OPENAI_ERRORS, streaming
from stretto.server.operations.timings import total_timings

PROMPTS_MAX = 64
ANSWERS_MAX = 128  # prompts times n
DEFAULT_TOKENS = 16  # OpenAI's default
ALL_TOKENS = -1
TextTokens = Annotated[int, Field(ge=ALL_TOKENS, le=1 << 24)] | None


class CompletionRequest(Harmless, Streamed, Generating):
    prompt: prompts(items_max=PROMPTS_MAX, empty_text=True, mixed=True)  # type: ignore[valid-type]
    """Text, token ids, or a list of either. An empty text: only the start token."""
    model: ModelName | None = None
    """Default: the server's default model."""
    max_tokens: TextTokens = None
    """Default: 16. 0: compute only the prompt, for `echo` with `logprobs`. -1: as many as fit."""
    n_predict: TextTokens = None
    """llama-server's name of max_tokens."""
    n: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    best_of: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    """Must equal n: answers are not ranked."""
    echo: bool | None = None
    """Include the prompt before the answer; with `logprobs`, also those of its tokens."""
    prompt_logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    """vLLM's: log-probabilities of the prompt's tokens, with this many alternatives each."""
    stop: Stops | None = None
    logprobs: Annotated[int, Field(ge=0, le=TOP_LOGPROBS_MAX)] | None = None
    response_format: ResponseFormat | None = None
    suffix: None = None
    """Filling in the middle is not supported."""

    @property
    def silent(self) -> bool:
        """Whether no answer is wanted. One token is generated to compute the prompt, then dropped."""
        return 0 in (self.max_tokens, self.n_predict)

    def check(self) -> None:
        n = self.n or 1
        self.check_stream_options()
        if self.best_of not in (None, n):
            raise UnsupportedFieldError("answers are not ranked", param="best_of", hint="omit it")
        if self.prompt_logprobs is not None and self.stream:
            raise UnsupportedFieldError(
                "is not available in streams", param="prompt_logprobs", hint="send echo with logprobs"
            )
        if n * len(self.prompt) > ANSWERS_MAX:
            raise InvalidFieldError(f"prompts times n must be at most {ANSWERS_MAX}", param="n")

    def params(self, prompt: Prompt, *, stream_id: str, model_id: str, caller: Caller) -> GenerateParams:
        sampling = self.sampling()
        if self.logprobs is not None:
            sampling["logprobs"] = self.logprobs
        wanted = self.prompt_logprobs if self.prompt_logprobs is not None else -1
        if self.echo and self.logprobs is not None:
            wanted = max(wanted, self.logprobs)
        if wanted >= 0:
            sampling["prompt_logprobs"] = wanted
        shape = guidance_of_format(self.response_format)
        return GenerateParams(
            stream_id=stream_id,
            model_id=model_id,
            sampling=sampling,
            max_tokens=self._limit(),
            stops=list(self.stop or self.stops_by_default),
            guidance=guidance_of(self, shape, "response_format", None),
            progress=bool(self.return_progress and self.stream),
            streamed=bool(self.stream),
            **prompt_field(prompt),
            **self.common(stream_id, caller),
        )

    def _limit(self) -> int | None:
        """None: as many as fit."""
        if self.silent:
            return 1
        asked = [self.max_tokens, self.n_predict, self.limit_by_default]
        found = next((limit for limit in asked if limit is not None), DEFAULT_TOKENS)
        return None if found == ALL_TOKENS else found


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["openai"])

    @routes.post(
        "/v1/completions",
        response_model=None,
        responses={200: streaming(TextCompletion), **OPENAI_ERRORS},
        summary="Continue a text",
    )
    async def completions(body: CompletionRequest, request: Request) -> Response:
        body.check()
        model = await services.catalog.find(body.model)
        completion_id = new_id("cmpl-")
        caller = caller_of(request.scope)
        made = [
            body.params(prompt, stream_id=f"{completion_id}.{at}", model_id=model.id, caller=caller)
            for at, prompt in enumerate(body.prompt)
        ]
        calls = [adapted(model, call) for call in made]
        work = _Completions(services, body, calls, completion_id, int(time.time()))
        if body.stream:
            return services.events(work.stream)
        return JsonReply(work.whole)

    return routes


class _Completions:
    """One running request: the answers to the first prompt, then those to the second, and so on."""

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
        return [
            stream for call in self._calls for stream in start(self._services.worker_client, call, self._n)
        ]

    async def _echoes(self) -> list[str]:
        """The text before each answer."""
        if not self._body.echo:
            return [""] * (len(self._calls) * self._n)
        texts = await asyncio.gather(*(self._prompt_text(call) for call in self._calls))
        return [text for text in texts for _ in range(self._n)]

    async def _prompt_text(self, call: GenerateParams) -> str:
        if call.pieces is not None:
            texts = [
                piece if isinstance(piece, str) else await self._text_of([piece], call)
                for piece in call.pieces
            ]
            return "".join(texts)
        if call.tokens is None:
            return call.prompt or ""
        return await self._text_of(call.tokens, call)

    async def _text_of(self, tokens: list[int], call: GenerateParams) -> str:
        params = DetokenizeParams(tokens=tokens, model_id=call.model_id, tenant=call.tenant)
        return await self._services.worker_client.detokenize(params)

    async def stream(self, wire: SseWriter) -> None:
        echoes = await self._echoes()
        chunks = TextChunks(
            self._id,
            self._calls[0].model_id,
            self._created,
            echoes=echoes,
            include_usage=self._body.include_usage,
            continuous=self._body.continuous_usage,
            logprobs=self._body.logprobs,
            timings_per_token=bool(self._body.timings_per_token),
            silent=self._body.silent,
        )
        streams = self._start()
        usage = self._body.include_usage
        await relay(wire, streams, chunks, n=self._n, include_usage=usage, silent=self._body.silent)

    async def whole(self) -> bytes:
        echoes = await self._echoes()
        answers = await collect(self._start())
        reply = {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._calls[0].model_id,
            "system_fingerprint": fingerprint(self._calls[0].model_id),
            "choices": [
                self._choice(index, echo, answer, answers[index - index % self._n].prompt_logprobs)
                for index, (echo, answer) in enumerate(zip(echoes, answers, strict=True))
            ],
            "usage": usage_of(self._usage([answer.end.usage for answer in answers])),
            "timings": total_timings([answer.end for answer in answers]),
        }
        return msgspec.json.encode(reply)

    def _usage(self, usages: list[UsageMessage]) -> UsageMessage:
        total = total_usage(usages, self._n)
        return msgspec.structs.replace(total, completion_tokens=0) if self._body.silent else total

    def _choice(self, index: int, echo: str, answer: Answer, prompt: list[TokenLogprob]) -> dict[str, Any]:
        """`prompt`: its log-probabilities, computed once for the first of `n` answers."""
        if self._body.silent:
            answer = Answer(end=cut_short(answer.end))
        wanted = self._body.logprobs
        logprobs = None
        if wanted is not None:
            echoed = prompt if self._body.echo else ()
            logprobs = Columns().take(answer.logprobs, top=wanted > 0, prompt=echoed)
        choice = {
            "index": index,
            "text": echo + answer.reasoning + answer.text,
            "logprobs": logprobs,
            "finish_reason": answer.finish_reason,
        }
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(prompt)
        return choice

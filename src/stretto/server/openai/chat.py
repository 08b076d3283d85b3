"""/v1/chat/completions."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stretto.rpc.messages import GenerateParams
from stretto.server.generation import Answer, Services, adapted, collect, start, total_usage
from stretto.server.http.bodies import BodyRoute
from stretto.server.http.caller import caller_of
from stretto.server.http.error_boundary import new_id
from stretto.server.http.sse import JsonReply, SseWriter
from stretto.server.openai.chat_request import ChatRequest
from stretto.server.openai.chunks import ChatChunks
from stretto.server.openai.logprobs import chat_logprobs, prompt_logprobs
from stretto.server.openai.relay import relay
from stretto.server.openai.replies import ChatCompletion
from stretto.server.openai.shapes import fingerprint, tool_calls_of, usage_of
from stretto.server.openapi import OPENAI_ERRORS, streaming
from stretto.server.operations.timings import total_timings


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["openai"])

    @routes.post(
        "/v1/chat/completions",
        response_model=None,
        responses={200: streaming(ChatCompletion), **OPENAI_ERRORS},
        summary="Answer a conversation",
    )
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        model = await services.catalog.find(body.model)
        completion_id = new_id("chatcmpl-")
        params = await services.media(
            adapted(
                model,
                body.params(stream_id=completion_id, model_id=model.id, caller=caller_of(request.scope)),
            )
        )
        chat = _Chat(services, body, params, completion_id, int(time.time()))
        if body.stream:
            return services.events(chat.stream)
        return JsonReply(chat.whole)

    return routes


class _Chat:
    """One running request."""

    def __init__(
        self, services: Services, body: ChatRequest, params: GenerateParams, completion_id: str, created: int
    ) -> None:
        self._services = services
        self._body = body
        self._params = params
        self._id = completion_id
        self._created = created
        self._n = body.n or 1

    async def stream(self, wire: SseWriter) -> None:
        chunks = ChatChunks(
            self._id,
            self._params.model_id,
            self._created,
            n=self._n,
            include_usage=self._body.include_usage,
            continuous=self._body.continuous_usage,
            logprobs=bool(self._body.logprobs),
            timings_per_token=bool(self._body.timings_per_token),
        )
        streams = start(self._services.worker_client, self._params, self._n)
        usage = self._body.include_usage
        await relay(wire, streams, chunks, n=self._n, include_usage=usage)

    async def whole(self) -> bytes:
        answers = await collect(start(self._services.worker_client, self._params, self._n))
        reply: dict[str, Any] = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._params.model_id,
            "system_fingerprint": fingerprint(self._params.model_id),
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "usage": usage_of(total_usage([answer.end.usage for answer in answers], self._n)),
            "timings": total_timings([answer.end for answer in answers]),
        }
        if self._body.prompt_logprobs is not None:
            reply["prompt_logprobs"] = prompt_logprobs(answers[0].prompt_logprobs)
        return msgspec.json.encode(reply)

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["content"] = answer.text or None
            message["tool_calls"] = tool_calls_of(answer.tool_calls)
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(answer.logprobs) if self._body.logprobs else None,
            "finish_reason": answer.finish_reason,
        }

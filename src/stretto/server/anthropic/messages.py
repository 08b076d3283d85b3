"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stretto.rpc.messages import GenerateParams
from stretto.server.anthropic.events import MessageEvents
from stretto.server.anthropic.request import AnthropicConversation, MessagesRequest
from stretto.server.anthropic.shapes import MessageReply, TokenCount, blocks_of, message_of
from stretto.server.generation import Services, adapted, collect, start
from stretto.server.http.bodies import BodyRoute
from stretto.server.http.caller import caller_of
from stretto.server.http.error_boundary import new_id
from stretto.server.http.sse import JsonReply, SseWriter
from stretto.server.openapi import ANTHROPIC_ERRORS, streaming


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["anthropic"])

    @routes.post(
        "/v1/messages",
        response_model=None,
        responses={200: streaming(MessageReply), **ANTHROPIC_ERRORS},
        summary="Answer a conversation (Anthropic)",
    )
    async def messages(body: MessagesRequest, request: Request) -> Response:
        model = await services.catalog.find(body.model)
        message_id = new_id("msg_")
        params = await services.media(
            adapted(
                model, body.params(stream_id=message_id, model_id=model.id, caller=caller_of(request.scope))
            )
        )
        work = _Message(services, params)
        if body.stream:
            return services.events(work.stream)
        return JsonReply(work.whole)

    @routes.post(
        "/v1/messages/count_tokens",
        response_model=None,
        responses={200: {"model": TokenCount, "description": "The count"}, **ANTHROPIC_ERRORS},
        summary="Count the tokens of a conversation",
    )
    async def count_tokens(body: AnthropicConversation, request: Request) -> Response:
        model = await services.catalog.find(body.model)
        params = body.tokenize_params(model.id, caller_of(request.scope).tenant)

        async def work() -> bytes:
            tokens = await services.worker_client.tokenize(params)
            return msgspec.json.encode({"input_tokens": len(tokens)})

        return JsonReply(work)

    return routes


class _Message:
    """One running request."""

    def __init__(self, services: Services, params: GenerateParams) -> None:
        self._services = services
        self._params = params

    async def stream(self, wire: SseWriter) -> None:
        events = MessageEvents(self._params.stream_id, self._params.model_id)
        (stream,) = start(self._services.worker_client, self._params)
        try:
            prompt_tokens = await stream.accepted()
            async for delta in stream:
                data = events.render(delta, prompt_tokens)
                if delta.end is not None:
                    await wire.end(data)
                elif data:
                    await wire.write(data)
        finally:
            stream.cancel()

    async def whole(self) -> bytes:
        (answer,) = await collect(start(self._services.worker_client, self._params))
        return msgspec.json.encode(
            message_of(
                self._params.stream_id,
                self._params.model_id,
                blocks_of(answer),
                answer,
                answer.end.usage,
            )
        )

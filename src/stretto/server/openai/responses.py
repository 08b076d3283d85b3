"""/v1/responses: one generation as a response with items, as one body or as events."""

from __future__ import annotations

import time

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stretto.errors import StrettoError
from stretto.rpc.messages import GenerateParams
from stretto.server.generation import Services, adapted, collect, merged, start
from stretto.server.http.bodies import BodyRoute
from stretto.server.http.caller import caller_of
from stretto.server.http.error_boundary import new_id
from stretto.server.http.errors import public
from stretto.server.http.sse import JsonReply, SseWriter
from stretto.server.openai.replies import ResponseReply
from stretto.server.openai.response_events import ResponseEvents
from stretto.server.openai.response_shapes import Envelope, items_of
from stretto.server.openai.responses_request import ResponseRequest
from stretto.server.openapi import OPENAI_ERRORS, streaming


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["openai"])

    @routes.post(
        "/v1/responses",
        response_model=None,
        responses={200: streaming(ResponseReply), **OPENAI_ERRORS},
        summary="Answer a conversation with items",
    )
    async def create_response(body: ResponseRequest, request: Request) -> Response:
        model = await services.catalog.find(body.model)
        response_id = new_id("resp_")
        params = await services.media(
            adapted(
                model, body.params(stream_id=response_id, model_id=model.id, caller=caller_of(request.scope))
            )
        )
        work = _Response(services, params, Envelope(body, response_id, model.id, int(time.time())))
        if body.stream:
            return services.events(work.stream)
        return JsonReply(work.whole)

    return routes


class _Response:
    """One running request."""

    def __init__(self, services: Services, params: GenerateParams, envelope: Envelope) -> None:
        self._services = services
        self._params = params
        self._envelope = envelope

    async def stream(self, wire: SseWriter) -> None:
        events = ResponseEvents(self._envelope)
        streams = start(self._services.worker_client, self._params)
        try:
            async for _, delta in merged(streams):
                data = events.render(delta)
                if delta.end is not None:
                    await wire.end(data)
                elif data:
                    await wire.write(data)
        except StrettoError as error:
            if not wire.started:
                raise
            await wire.end(events.failed(public(error)))
        finally:
            streams[0].cancel()

    async def whole(self) -> bytes:
        (answer,) = await collect(start(self._services.worker_client, self._params))
        output = items_of(answer, logprobs=self._envelope.logprobs, origin=self._envelope.origin)
        return msgspec.json.encode(self._envelope.ended(output, answer.end))

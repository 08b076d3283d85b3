"""/v1/embeddings: vectors of texts. Scores are in `rerank`."""

from __future__ import annotations

import base64
from array import array
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from stretto.rpc.messages import EmbedParams, EmbedResult, PriorityName
from stretto.server.generation import Services
from stretto.server.http.bodies import BodyRoute
from stretto.server.http.caller import caller_of
from stretto.server.http.fields import Body, Ignored, ModelName
from stretto.server.http.sse import JsonReply
from stretto.server.openai.prompts import prompts
from stretto.server.openai.replies import EmbeddingList
from stretto.server.openapi import OPENAI_ERRORS

INPUTS_MAX = 2048
Truncate = Literal["left", "right"]
Deadline = Annotated[float, Field(ge=1, le=86_400_000)]


class EmbeddingRequest(Body):
    input: prompts(items_max=INPUTS_MAX, empty_text=False)  # type: ignore[valid-type]
    """Text, token ids, or a list of either."""
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Truncate the vectors to this length and normalize them again."""
    truncate: Truncate | None = None
    """Which end of a long input to truncate. Default: such an input is an error."""
    normalize: bool | None = None
    """false: return the model's vectors without normalization."""
    priority: PriorityName | None = None
    """Overrides the key's priority: urgent, default or background."""
    deadline_ms: Deadline | None = None
    user: Ignored = None


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["openai"])

    @routes.post(
        "/v1/embeddings",
        response_model=None,
        responses={200: {"model": EmbeddingList, "description": "The vectors"}, **OPENAI_ERRORS},
        summary="Embed texts",
    )
    async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
        model = await services.catalog.find(body.model, "embedding")
        params = EmbedParams(
            inputs=body.input,
            model_id=model.id,
            dimensions=body.dimensions,
            truncate=body.truncate or "",
            normalize=body.normalize is not False,
            priority=caller_of(request.scope).priority(body.priority),
            tenant=caller_of(request.scope).tenant,
            deadline_ms=body.deadline_ms,
        )

        async def work() -> bytes:
            result = await services.worker_client.embed(params)
            return msgspec.json.encode(_vectors(result, model.id, base64=body.encoding_format == "base64"))

        return JsonReply(work)

    return routes


def _vectors(result: EmbedResult, model_id: str, *, base64: bool) -> dict[str, Any]:
    size = 4 * result.width
    pieces = [result.vectors[at : at + size] for at in range(0, len(result.vectors), size)]
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(piece, base64=base64)}
            for index, piece in enumerate(pieces)
        ],
        "model": model_id,
        "usage": {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens},
    }


def _encoded(vector: bytes, *, base64: bool) -> str | list[float]:
    """Little-endian float32, the memory format of all supported machines."""
    if base64:
        return _base64(vector)
    floats = array("f")
    floats.frombytes(vector)
    return floats.tolist()


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode("ascii")

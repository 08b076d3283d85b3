"""/v1/embeddings and /v1/rerank: vectors and scores, from models that make them."""

from __future__ import annotations

import base64
from array import array
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from fastapi import APIRouter
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from stretto.rpc.messages import EmbedParams, EmbedResult, PriorityName, RerankParams
from stretto.server.bodies import BodyRoute
from stretto.server.boundary import new_id
from stretto.server.caller import caller_of
from stretto.server.documents import OPENAI_ERRORS
from stretto.server.fields import Body, Ignored, ModelName
from stretto.server.generation import Services
from stretto.server.openai.prompts import prompts
from stretto.server.openai.replies import EmbeddingList, RerankReply
from stretto.server.sse import JsonReply

INPUTS_MAX = 2048
DOCUMENTS_MAX = 2048
Truncate = Literal["left", "right"]
Deadline = Annotated[float, Field(ge=1, le=86_400_000)]


class EmbeddingRequest(Body):
    input: prompts(items_max=INPUTS_MAX, empty_text=False)  # type: ignore[valid-type]
    """Text, token ids, or a list of either."""
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Cut the vectors to this length and make them unit vectors again."""
    truncate: Truncate | None = None
    """Which end of an over-long input to cut off. Left out: such an input is an error."""
    normalize: bool | None = None
    """false: as the model makes them, not as unit vectors."""
    priority: PriorityName | None = None
    """Overrides the key's own priority: urgent, default or background."""
    deadline_ms: Deadline | None = None
    user: Ignored = None


def _text_of(document: Any) -> Any:
    if isinstance(document, dict) and set(document) == {"text"}:
        return document["text"]
    return document


Document = Annotated[str, Field(min_length=1)]


class DocumentObject(Body):
    where: ClassVar[str] = "documents"
    text: Document


class RerankRequest(Body):
    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[
        list[
            Annotated[Document, BeforeValidator(_text_of, json_schema_input_type=Document | DocumentObject)]
        ],
        Field(min_length=1, max_length=DOCUMENTS_MAX),
    ]
    model: ModelName | None = None
    top_n: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    return_documents: bool | None = None
    raw_scores: bool | None = None
    """true: the model's own scores, not probabilities."""
    truncate: Truncate | None = None
    priority: PriorityName | None = None
    """Overrides the key's own priority: urgent, default or background."""
    deadline_ms: Deadline | None = None
    user: Ignored = None


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["openai"])

    @routes.post(
        "/v1/embeddings",
        response_model=None,
        responses={200: {"model": EmbeddingList, "description": "The vectors"}, **OPENAI_ERRORS},
        summary="Texts to vectors",
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
            result = await services.engine.embed(params)
            return msgspec.json.encode(_vectors(result, model.id, base64=body.encoding_format == "base64"))

        return JsonReply(work)

    async def rerank(body: RerankRequest, request: Request) -> Response:
        model = await services.catalog.find(body.model, "reranker")
        params = RerankParams(
            query=body.query,
            documents=body.documents,
            model_id=model.id,
            raw_scores=bool(body.raw_scores),
            truncate=body.truncate or "",
            priority=caller_of(request.scope).priority(body.priority),
            tenant=caller_of(request.scope).tenant,
            deadline_ms=body.deadline_ms,
        )

        async def work() -> bytes:
            result = await services.engine.rerank(params)
            reply = _ranking(body, result.scores, model.id, result.prompt_tokens)
            return msgspec.json.encode(reply)

        return JsonReply(work)

    for path in ("/v1/rerank", "/rerank"):
        routes.add_api_route(
            path,
            rerank,
            methods=["POST"],
            response_model=None,
            responses={200: {"model": RerankReply, "description": "The ranking"}, **OPENAI_ERRORS},
            summary="Documents by how well they answer a query",
            operation_id=path.strip("/").replace("/", "_"),
        )
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
    """Little-endian float32, as every machine that we run on has it in memory."""
    if base64:
        return _base64(vector)
    floats = array("f")
    floats.frombytes(vector)
    return floats.tolist()


def _base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode("ascii")


def _ranking(body: RerankRequest, scores: list[float], model_id: str, tokens: int) -> dict[str, Any]:
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results: list[dict[str, Any]] = []
    for index in order:
        item: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if body.return_documents:
            item["document"] = {"text": body.documents[index]}
        results.append(item)
    return {
        "id": new_id("rerank-"),
        "object": "list",
        "model": model_id,
        "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }

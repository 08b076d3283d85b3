"""Reranking in the shapes of Jina and llama-server, Cohere and TEI.

One body for all: `documents` (Jina, llama-server, Cohere) or `texts` (TEI). The request determines the reply:
a list of scores for `texts`, Cohere's object on its own path, else Jina's.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from fastapi import APIRouter
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from stretto.errors import InvalidFieldError, MissingFieldError
from stretto.rpc.messages import PriorityName, RerankParams
from stretto.server.generation import Services
from stretto.server.http.bodies import BodyRoute
from stretto.server.http.caller import caller_of
from stretto.server.http.error_boundary import new_id
from stretto.server.http.fields import Body, Ignored, ModelName
from stretto.server.http.sse import JsonReply
from stretto.server.openai.embeddings import Deadline, Truncate
from stretto.server.openai.replies import CohereReply, RerankReply, TeiRank
from stretto.server.openapi import OPENAI_ERRORS

DOCUMENTS_MAX = 2048
JINA_PATHS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
COHERE_PATH = "/v2/rerank"


def _text_of(document: Any) -> Any:
    if isinstance(document, dict) and set(document) == {"text"}:
        return document["text"]
    return document


Document = Annotated[str, Field(min_length=1)]


class DocumentObject(Body):
    where: ClassVar[str] = "documents"
    text: Document


Documents = Annotated[
    list[Annotated[Document, BeforeValidator(_text_of, json_schema_input_type=Document | DocumentObject)]],
    Field(min_length=1, max_length=DOCUMENTS_MAX),
]


class RerankRequest(Body):
    query: Annotated[str, Field(min_length=1)]
    documents: Documents | None = None
    texts: Annotated[list[Document], Field(min_length=1, max_length=DOCUMENTS_MAX)] | None = None
    """TEI's name of documents; the reply is then TEI's list."""
    model: ModelName | None = None
    top_n: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    """TEI's name of return_documents."""
    raw_scores: bool | None = None
    """true: raw scores instead of probabilities."""
    truncate: Truncate | bool | None = None
    """Which end of long texts to truncate; true: the right one, as in TEI."""
    truncation_direction: Literal["Left", "Right", "left", "right"] | None = None
    priority: PriorityName | None = None
    """Overrides the key's priority: urgent, default or background."""
    deadline_ms: Deadline | None = None
    user: Ignored = None

    @property
    def found(self) -> list[str]:
        if self.documents is None and self.texts is None:
            raise MissingFieldError("is required", param="documents")
        if self.documents is not None and self.texts is not None:
            raise InvalidFieldError("conflicts with documents", param="texts")
        return (self.documents if self.documents is not None else self.texts) or []

    @property
    def end(self) -> Literal["", "left", "right"]:
        if self.truncate is True:
            return "left" if (self.truncation_direction or "").lower() == "left" else "right"
        return self.truncate or ""


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["openai"])

    async def rerank(body: RerankRequest, request: Request) -> Response:
        documents = body.found
        model = await services.catalog.find(body.model, "reranker")
        caller = caller_of(request.scope)
        params = RerankParams(
            query=body.query,
            documents=documents,
            model_id=model.id,
            raw_scores=bool(body.raw_scores),
            truncate=body.end,
            priority=caller.priority(body.priority),
            tenant=caller.tenant,
            deadline_ms=body.deadline_ms,
        )
        cohere = request.scope["path"] == COHERE_PATH

        async def work() -> bytes:
            result = await services.worker_client.rerank(params)
            if cohere:
                return msgspec.json.encode(_as_cohere(body, result.scores))
            if body.texts is not None:
                return msgspec.json.encode(_as_tei(body, result.scores))
            return msgspec.json.encode(_as_jina(body, result.scores, model.id, result.prompt_tokens))

        return JsonReply(work)

    for path in (*JINA_PATHS, COHERE_PATH):
        shape: Any = CohereReply if path == COHERE_PATH else RerankReply | list[TeiRank]
        routes.add_api_route(
            path,
            rerank,
            methods=["POST"],
            response_model=None,
            responses={200: {"model": shape, "description": "The ranking"}, **OPENAI_ERRORS},
            summary="Rank documents by relevance to a query",
            operation_id=path.strip("/").replace("/", "_"),
        )
    return routes


def _order(body: RerankRequest, scores: list[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]


def _as_tei(body: RerankRequest, scores: list[float]) -> list[dict[str, Any]]:
    with_text = body.return_text or body.return_documents
    return [
        {"index": index, "score": scores[index]} | ({"text": body.found[index]} if with_text else {})
        for index in _order(body, scores)
    ]


def _results(body: RerankRequest, scores: list[float]) -> list[dict[str, Any]]:
    with_text = body.return_documents or body.return_text
    return [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": body.found[index]}} if with_text else {})
        for index in _order(body, scores)
    ]


def _as_cohere(body: RerankRequest, scores: list[float]) -> dict[str, Any]:
    meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
    return {"id": new_id("rerank-"), "results": _results(body, scores), "meta": meta}


def _as_jina(body: RerankRequest, scores: list[float], model_id: str, tokens: int) -> dict[str, Any]:
    return {
        "id": new_id("rerank-"),
        "object": "list",
        "model": model_id,
        "results": _results(body, scores),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }

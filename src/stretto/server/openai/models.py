"""/v1/models: the served models, in one shape that clients of both dialects can read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from stretto.rpc.messages import ModelInfo
from stretto.server.generation import Services
from stretto.server.openai.replies import ModelList, ModelReply
from stretto.server.openapi import OPENAI_ERRORS


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["openai"])

    @routes.get(
        "/v1/models",
        response_model=None,
        responses={200: {"model": ModelList, "description": "The models"}, **OPENAI_ERRORS},
        summary="List models",
    )
    async def models() -> Response:
        since = services.catalog.since
        found = [shown for model in await services.catalog.models() for shown in _all_shown(model, since)]
        ids = [model["id"] for model in found]
        edges = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        return _json({"object": "list", "data": found, "has_more": False, **edges})

    @routes.get(
        "/v1/models/{model_id:path}",
        response_model=None,
        responses={200: {"model": ModelReply, "description": "The model"}, **OPENAI_ERRORS},
        summary="Show one model",
    )
    async def one_model(model_id: str) -> Response:
        return _json(_shown(await services.catalog.find(model_id), services.catalog.since))

    return routes


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _all_shown(model: ModelInfo, since: int) -> list[dict[str, Any]]:
    """The model, then each of its adapters as a model of its own."""
    adapters = [msgspec.structs.replace(model, asked_adapter=name) for name in model.adapters]
    return [_shown(each, since) for each in (model, *adapters)]


def _shown(model: ModelInfo, since: int) -> dict[str, Any]:
    name = f"{model.id}:{model.asked_adapter}" if model.asked_adapter else model.id
    return {
        "id": name,
        "object": "model",
        "created": since,
        "owned_by": "stretto",
        "type": "model",
        "display_name": name,
        "parent": model.id if model.asked_adapter else None,
        "created_at": datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "loaded": model.loaded,
        "kind": model.kind,
        "backend": model.backend,
        "slots": model.slots,
        "context_window": model.context_window,
        "max_model_len": model.context_window,
        "modalities": model.modalities,
        "tools": str(model.description.get("tools", "")),
    }

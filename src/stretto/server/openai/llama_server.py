"""/props, /apply-template and /tokenizer_info: model information as in llama-server and vLLM."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stretto import __version__
from stretto.rpc.messages import DetokenizeParams, ModelInfo, TokenizeParams
from stretto.server.generation import Services
from stretto.server.http.bodies import BodyRoute
from stretto.server.http.caller import caller_of
from stretto.server.http.sse import JsonReply
from stretto.server.media.parts import text_only
from stretto.server.openai.chat_request import ChatRequest
from stretto.server.openai.messages import plain_messages
from stretto.server.openai.replies import AppliedTemplate, Props, TokenizerInfo
from stretto.server.openapi import OPENAI_ERRORS


class TemplateRequest(ChatRequest):
    """A chat request, of which only the prompt's part is used."""


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["llama-server"])
    with_bodies = APIRouter(route_class=BodyRoute, tags=["llama-server"])

    @routes.get(
        "/props",
        response_model=None,
        responses={200: {"model": Props, "description": "The default model"}, **OPENAI_ERRORS},
        summary="Server properties, as in llama-server",
    )
    async def props() -> Response:
        return _json(_props(await services.catalog.find(None)))

    @routes.get(
        "/tokenizer_info",
        response_model=None,
        responses={200: {"model": TokenizerInfo, "description": "The tokenizer"}, **OPENAI_ERRORS},
        summary="Tokenizer and template of the default model, as in vLLM",
    )
    async def tokenizer_info() -> Response:
        model = await services.catalog.find(None)
        about = {"tokenizer_class": "stretto", "model_max_length": model.context_window}
        return _json({**about, **_words(model)})

    @with_bodies.post(
        "/apply-template",
        response_model=None,
        responses={200: {"model": AppliedTemplate, "description": "The prompt"}, **OPENAI_ERRORS},
        summary="Render messages to the model's prompt",
    )
    async def apply_template(body: TemplateRequest, request: Request) -> Response:
        model = await services.catalog.find(body.model)
        params = TokenizeParams(
            model_id=model.id,
            messages=text_only(plain_messages(body.messages)),
            tools=[tool.plain() for tool in body.tools or ()] or None,
            template_options=body.template_options(),
            continue_final=body.continues,
            add_generation_prompt=body.add_generation_prompt is not False,
            tenant=caller_of(request.scope).tenant,
        )

        async def work() -> bytes:
            tokens = await services.worker_client.tokenize(params)
            back = DetokenizeParams(tokens=tokens, model_id=model.id, tenant=params.tenant)
            return msgspec.json.encode({"prompt": await services.worker_client.detokenize(back)})

        return JsonReply(work)

    routes.include_router(with_bodies)
    return routes


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _words(model: ModelInfo) -> dict[str, Any]:
    known = model.vocabulary
    return {name: known.get(name) for name in ("bos_token", "eos_token", "chat_template", "vocab_size")}


def _props(model: ModelInfo) -> dict[str, Any]:
    words = _words(model)
    return {
        "default_generation_settings": {"n_ctx": model.context_window, "params": {}},
        "total_slots": model.slots,
        "model_path": model.id,
        "model_alias": model.id,
        "chat_template": words["chat_template"] or "",
        "bos_token": words["bos_token"] or "",
        "eos_token": words["eos_token"] or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"stretto {__version__}",
        "is_sleeping": not model.loaded,
    }

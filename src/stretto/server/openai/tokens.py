"""/tokenize and /detokenize."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from stretto.errors import InvalidFieldError, MissingFieldError
from stretto.rpc.messages import DetokenizeParams, TokenizeParams
from stretto.server.generation import Services
from stretto.server.http.bodies import BodyRoute
from stretto.server.http.caller import caller_of
from stretto.server.http.fields import Body, Ignored, ModelName
from stretto.server.http.sse import JsonReply
from stretto.server.media.parts import text_only
from stretto.server.openai.messages import Messages, plain_messages
from stretto.server.openai.prompts import TokenIds
from stretto.server.openai.replies import DetokenizeReply, TokenizeReply
from stretto.server.openai.tools import Tools, check_size
from stretto.server.openapi import OPENAI_ERRORS


class TokenizeRequest(Body):
    """Exactly one of prompt, content and messages."""

    model: ModelName | None = None
    prompt: str | None = None
    content: str | None = None
    """llama-server's name of prompt."""
    messages: Messages | None = None
    """Rendered with the model's chat template."""
    tools: Tools | None = None
    special: bool | None = None
    """Parse control tokens in the text."""
    parse_special: bool | None = None
    """llama-server's name of special."""
    add_special_tokens: bool | None = None
    """vLLM's: parses control tokens in the text either way; no other token is added."""
    add_special: Ignored = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    def params(self, model_id: str, tenant: str) -> TokenizeParams:
        given = [name for name in ("prompt", "content", "messages") if getattr(self, name) is not None]
        if not given:
            raise MissingFieldError("or content or messages is required", param="prompt")
        if len(given) > 1:
            raise InvalidFieldError(f"conflicts with {given[0]}", param=given[1])
        if self.tools is not None and self.messages is None:
            raise InvalidFieldError("requires messages", param="tools")
        if self.special is not None and self.messages is not None:
            raise InvalidFieldError("requires plain text", param="special")
        tools = None if self.tools is None else [tool.plain() for tool in self.tools]
        check_size(tools, "tools")
        return TokenizeParams(
            model_id=model_id,
            text=self.prompt if self.prompt is not None else self.content,
            messages=None if self.messages is None else text_only(plain_messages(self.messages)),
            tools=tools,
            special=bool(self.special or self.parse_special or self.add_special_tokens is not None),
            add_generation_prompt=self.add_generation_prompt is not False,
            continue_final=bool(self.continue_final_message),
            tenant=tenant,
        )


class DetokenizeRequest(Body):
    model: ModelName | None = None
    tokens: TokenIds


def router(services: Services) -> APIRouter:
    routes = APIRouter(route_class=BodyRoute, tags=["tokens"])

    @routes.post(
        "/tokenize",
        response_model=None,
        responses={200: {"model": TokenizeReply, "description": "The tokens"}, **OPENAI_ERRORS},
        summary="Tokenize text or messages",
    )
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        model = await services.catalog.find(body.model)
        params = body.params(model.id, caller_of(request.scope).tenant)

        async def work() -> bytes:
            tokens = await services.worker_client.tokenize(params)
            return msgspec.json.encode(
                {"tokens": tokens, "count": len(tokens), "max_model_len": model.context_window}
            )

        return JsonReply(work)

    @routes.post(
        "/detokenize",
        response_model=None,
        responses={200: {"model": DetokenizeReply, "description": "The text"}, **OPENAI_ERRORS},
        summary="Detokenize",
    )
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        model = await services.catalog.find(body.model)
        tenant = caller_of(request.scope).tenant
        params = DetokenizeParams(tokens=body.tokens, model_id=model.id, tenant=tenant)

        async def work() -> bytes:
            text = await services.worker_client.detokenize(params)
            return msgspec.json.encode({"prompt": text, "content": text})

        return JsonReply(work)

    return routes

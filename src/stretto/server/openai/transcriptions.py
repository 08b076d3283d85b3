"""/v1/audio/transcriptions: a sound to the words in it, by a model that hears.

The form becomes one message with the sound and an instruction, so slots, limits, keys and caches treat it as
any chat.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from stretto.errors import InvalidFieldError, InvalidRequestError, MissingFieldError, UnsupportedFieldError
from stretto.rpc.media import MediaItem, media_part
from stretto.rpc.messages import GenerateParams, UsageMessage
from stretto.server.generation import Services, adapted, collect, start
from stretto.server.http.caller import Caller, caller_of
from stretto.server.http.error_boundary import new_id
from stretto.server.http.multipart import form_fields
from stretto.server.http.sse import JsonReply
from stretto.server.openai.replies import Transcription
from stretto.server.openapi import OPENAI_ERRORS

INSTRUCTION = "Write down what is said in this recording, word for word, and nothing else."
TEXT_CHARS_MAX = 4096
_FIELDS = ("file", "model", "language", "prompt", "response_format", "temperature", "stream")
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["file"],
    "additionalProperties": False,
    "properties": {
        "file": {"type": "string", "format": "binary", "description": "A WAV or MP3 file."},
        "model": {"type": "string", "description": "Default: the server's default model."},
        "language": {"type": "string", "maxLength": TEXT_CHARS_MAX},
        "prompt": {"type": "string", "maxLength": TEXT_CHARS_MAX},
        "response_format": {"enum": ["json"], "default": "json"},
        "temperature": {"type": "number", "minimum": 0, "maximum": 1, "default": 0},
    },
}


def router(services: Services) -> APIRouter:
    routes = APIRouter(tags=["openai"])

    @routes.post(
        "/v1/audio/transcriptions",
        response_model=None,
        responses={200: {"model": Transcription, "description": "The words"}, **OPENAI_ERRORS},
        summary="Write down what is said in a sound",
        openapi_extra={
            "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _SCHEMA}}}
        },
    )
    async def transcribe(request: Request) -> Response:
        form = await _form(request)
        model = await services.catalog.find(_text(form, "model") or None)
        params = adapted(model, _params(form, model.id, caller_of(request.scope)))

        async def work() -> bytes:
            (answer,) = await collect(start(services.worker_client, params))
            return msgspec.json.encode({"text": answer.text.strip(), "usage": _usage(answer.end.usage)})

        return JsonReply(work)

    return routes


async def _form(request: Request) -> dict[str, bytes]:
    try:
        body = b"".join([part async for part in request.stream()])
    except ClientDisconnect:
        raise InvalidRequestError("the client left before the body was complete") from None
    fields = form_fields(request.headers.get("content-type", ""), body)
    found = {field.name: field.value for field in fields}
    foreign = next((name for name in found if name not in _FIELDS), None)
    if foreign is not None:
        raise UnsupportedFieldError("is not supported", param=foreign[:64])
    if "file" not in found:
        raise MissingFieldError("is required", param="file")
    if _text(found, "response_format") not in ("", "json"):
        raise UnsupportedFieldError("is not supported; json is", param="response_format")
    if _text(found, "stream") not in ("", "false", "False"):
        raise UnsupportedFieldError("is not supported", param="stream")
    return found


def _text(form: dict[str, bytes], name: str) -> str:
    text = form.get(name, b"").decode("utf-8", "replace").strip()
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidFieldError(f"is longer than {TEXT_CHARS_MAX} characters", param=name)
    return text


def _params(form: dict[str, bytes], model_id: str, caller: Caller) -> GenerateParams:
    language, prompt = _text(form, "language"), _text(form, "prompt")
    asked = [INSTRUCTION, f"The language is {language}." if language else "", prompt]
    content = [media_part(0), {"type": "text", "text": "\n".join(filter(None, asked))}]
    return GenerateParams(
        stream_id=new_id("transcription-"),
        model_id=model_id,
        messages=[{"role": "user", "content": content}],
        media=[MediaItem(kind="audio", data=base64.b64encode(form["file"]).decode())],
        sampling={"temperature": _temperature(form), "seed": 0},
        tenant=caller.tenant,
        priority=caller.priority(None),
    )


def _temperature(form: dict[str, bytes]) -> float:
    text = _text(form, "temperature") or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise InvalidFieldError("must be a number from 0 to 1", param="temperature")
    return value


def _usage(usage: UsageMessage) -> dict[str, Any]:
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens - usage.audio_tokens,
            "audio_tokens": usage.audio_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }

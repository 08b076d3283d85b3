"""The OpenAPI document is true, as far as schemathesis can find out. Full size: tests/server/fuzz.py."""

from __future__ import annotations

import asyncio
import json

import pytest

from stretto.server.app import create_app
from stretto.server.openapi import Document
from stretto.settings import ServerSettings
from tests.server.conftest import Rig
from tests.server.fuzz import fuzz
from tests.server.scripted import ScriptedClient

POSTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/rerank",
    "/tokenize",
    "/detokenize",
)


@pytest.mark.slow
def test_good_and_bad_requests_by_the_document() -> None:
    status, said = fuzz(8, phases="fuzzing")
    assert status == 0, said


@pytest.mark.slow
def test_borderline_requests_by_the_document() -> None:
    status, said = fuzz(1, phases="coverage", paths="tokenize|^/v1/models")
    assert status == 0, said


def test_every_route_is_described(rig: Rig) -> None:
    document = rig.http.get("/openapi.json").json()
    assert set(POSTS) | {"/v1/models", "/v1/models/{model_id}"} <= set(document["paths"])
    for path in POSTS:
        operation = document["paths"][path]["post"]
        (kind,) = operation["requestBody"]["content"]
        assert kind == "application/json"
        assert {"200", "400", "404", "408", "413", "415", "429", "500", "503", "504"} <= set(
            operation["responses"]
        )
        assert "422" not in operation["responses"]


def test_streams_are_described_where_there_are_some() -> None:
    document = create_app(ScriptedClient()).api.openapi()
    streaming = [
        path
        for path in POSTS
        if "text/event-stream" in document["paths"][path]["post"]["responses"]["200"]["content"]
    ]
    assert streaming == ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]


def test_errors_have_each_dialects_shape() -> None:
    document = create_app(ScriptedClient()).api.openapi()

    def shape(path: str) -> str:
        reply = document["paths"][path]["post"]["responses"]["400"]
        name: str = reply["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        return name

    assert shape("/v1/chat/completions") == "OpenAIError"
    assert shape("/v1/messages") == shape("/v1/messages/count_tokens") == "AnthropicError"


def test_unsupported_fields_are_documented_as_null() -> None:
    schemas = create_app(ScriptedClient()).api.openapi()["components"]["schemas"]
    assert schemas["CompletionRequest"]["properties"]["suffix"]["type"] == "null"


def test_the_document_describes_unknown_fields() -> None:
    lenient = create_app(ScriptedClient()).api.openapi()["components"]["schemas"]
    strict = create_app(ScriptedClient(), ServerSettings(unknown_fields="refuse")).api.openapi()
    assert "additionalProperties" not in lenient["ChatRequest"]
    assert strict["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False
    assert lenient["ChatCompletion"]["additionalProperties"] is False, "replies hold what is described"


def test_the_server_process_does_not_build_the_document_itself() -> None:
    """Building it would hold the interpreter lock, and with it every stream, for most of a second."""
    app = create_app(ScriptedClient()).api
    document = Document(app, unknown_fields="ignore")

    async def read_twice() -> list[bytes]:
        return await asyncio.gather(document.read(), document.read())

    first, second = asyncio.run(read_twice())
    assert app.openapi_schema is None
    assert first is second
    assert json.loads(first) == app.openapi()

"""Models, tokens, vectors and ranks."""

from __future__ import annotations

import base64
from array import array

import openai
import pytest

from tests.server.conftest import Rig


def test_models(rig: Rig) -> None:
    (model,) = rig.openai.models.list().data
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "stretto")
    assert rig.openai.models.retrieve("tiny").id == "tiny"


def test_an_unknown_model_error_lists_the_served_models(rig: Rig) -> None:
    with pytest.raises(openai.NotFoundError, match="served: tiny") as caught:
        rig.openai.models.retrieve("user/other:Q4")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match="served: tiny"):
        rig.openai.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "x"}])


def test_without_a_name_the_server_chooses_by_kind(rig: Rig) -> None:
    rig.worker_client.vectors = True
    reply = rig.http.post("/v1/embeddings", json={"input": "a"})
    assert reply.json()["model"] == "vectors"
    reply = rig.http.post("/v1/completions", json={"prompt": "a"})
    assert reply.json()["model"] == "tiny"


@pytest.mark.parametrize("name", ["prompt", "content"])
def test_tokens_there_and_back(rig: Rig, name: str) -> None:
    reply = rig.http.post("/tokenize", json={name: "Grüße\x00"}).json()
    assert reply["tokens"] == list("Grüße\x00".encode())
    assert reply["count"] == len(reply["tokens"])
    back = rig.http.post("/detokenize", json={"tokens": reply["tokens"]}).json()
    assert back["prompt"] == back["content"] == "Grüße\x00"


def test_messages_are_counted_with_their_template(rig: Rig) -> None:
    rig.http.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]})
    assert rig.worker_client.asked[-1].messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("given", ["one", ["one", "two"], [1, 2], [[1], [2, 3]]])
def test_embeddings(rig: Rig, given: object) -> None:
    rig.worker_client.vectors = True
    reply = rig.openai.embeddings.create(model="vectors", input=given, dimensions=3)  # type: ignore[arg-type]
    assert reply.data[0].embedding == [1.0, 2.0, 3.0]
    assert rig.worker_client.asked[-1].dimensions == 3
    assert len(reply.data) == len(rig.worker_client.asked[-1].inputs)
    assert reply.usage.prompt_tokens == 2 * len(reply.data)


def test_embeddings_in_both_encodings(rig: Rig) -> None:
    rig.worker_client.vectors = True
    plain = rig.http.post("/v1/embeddings", json={"input": "x", "encoding_format": "float"}).json()
    coded = rig.http.post("/v1/embeddings", json={"input": "x", "encoding_format": "base64"}).json()
    floats = array("f", base64.b64decode(coded["data"][0]["embedding"]))
    assert floats.tolist() == plain["data"][0]["embedding"] == [1.0, 2.0, 3.0, 4.0]
    assert rig.http.post("/v1/embeddings", json={"input": "x"}).json() == plain


def test_a_model_without_embeddings_is_rejected(rig: Rig) -> None:
    with pytest.raises(openai.BadRequestError, match="makes no embeddings") as caught:
        rig.openai.embeddings.create(model="tiny", input="x")
    assert caught.value.code == "unsupported_by_model"
    reply = rig.http.post("/v1/rerank", json={"query": "q", "documents": ["d"]})
    assert reply.json()["error"]["code"] == "unsupported_by_model"


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_rerank(rig: Rig, path: str) -> None:
    rig.worker_client.vectors = True
    documents = ["a", {"text": "the longest"}, "mid"]
    body = {"query": "q", "documents": documents, "top_n": 2, "return_documents": True}
    reply = rig.http.post(path, json=body).json()
    assert [(item["index"], item["document"]["text"]) for item in reply["results"]] == [
        (1, "the longest"),
        (2, "mid"),
    ]
    assert reply["results"][0]["relevance_score"] > reply["results"][1]["relevance_score"]
    assert reply["usage"]["total_tokens"] == 9


def test_embeddings_and_rankings_carry_their_priority(rig: Rig) -> None:
    rig.worker_client.vectors = True
    rig.http.post("/v1/embeddings", json={"input": "x", "priority": "urgent"}).raise_for_status()
    assert rig.worker_client.asked[-1].priority == "urgent"
    body = {"query": "q", "documents": ["d"], "priority": "background"}
    rig.http.post("/v1/rerank", json=body).raise_for_status()
    assert rig.worker_client.asked[-1].priority == "background"
    rig.http.post("/v1/rerank", json={"query": "q", "documents": ["d"]}).raise_for_status()
    assert rig.worker_client.asked[-1].priority == "default"
    assert rig.http.post("/v1/embeddings", json={"input": "x", "priority": "now"}).status_code == 400

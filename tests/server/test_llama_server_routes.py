"""Routes that users of llama-server, vLLM, Cohere and TEI look for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Rig

DOCUMENTS = ["short", "a longer text"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
def test_rerank_at_every_address(rig: Rig, path: str) -> None:
    rig.worker_client.vectors = True
    reply = rig.http.post(path, json={"query": "q", "documents": DOCUMENTS}).json()
    assert [item["index"] for item in reply["results"]] == [1, 0]
    assert reply["object"] == "list"


def test_cohere(rig: Rig) -> None:
    rig.worker_client.vectors = True
    body = {"model": "ranks", "query": "q", "documents": DOCUMENTS, "top_n": 1, "max_tokens_per_doc": 4096}
    reply = rig.http.post("/v2/rerank", json=body)
    assert set(reply.json()) == {"id", "results", "meta"}
    assert reply.json()["results"] == [{"index": 1, "relevance_score": 0.13}]
    assert reply.headers["x-stretto-ignored-fields"] == "max_tokens_per_doc"
    texts = rig.http.post("/v2/rerank", json={"query": "q", "texts": DOCUMENTS, "top_n": 1})
    assert texts.json()["results"] == reply.json()["results"], "the address decides, as described"


def test_texts_are_answered_as_tei_does(rig: Rig) -> None:
    rig.worker_client.vectors = True
    body = {"query": "q", "texts": DOCUMENTS, "return_text": True, "truncate": True}
    reply = rig.http.post("/rerank", json=body).json()
    assert reply == [
        {"index": 1, "score": 0.13, "text": "a longer text"},
        {"index": 0, "score": 0.05, "text": "short"},
    ]
    assert rig.worker_client.asked[-1].truncate == "right"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"query": "q"}, "missing_field"),
        ({"query": "q", "texts": ["a"], "documents": ["a"]}, "invalid_value"),
    ],
)
def test_documents_or_texts(rig: Rig, body: dict[str, Any], code: str) -> None:
    reply = rig.http.post("/rerank", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


def test_props(rig: Rig) -> None:
    found = rig.http.get("/props").json()
    assert found["total_slots"] == 4
    assert found["default_generation_settings"]["n_ctx"] == 2048
    assert found["model_path"] == "tiny"


def test_tokenizer_info(rig: Rig) -> None:
    found = rig.http.get("/tokenizer_info").json()
    assert {"bos_token", "eos_token", "chat_template", "model_max_length"} <= set(found)


def test_apply_template(rig: Rig) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "He"}]
    reply = rig.http.post("/apply-template", json={"messages": messages, "enable_thinking": False})
    assert reply.status_code == 200
    assert "Hi" in reply.json()["prompt"]
    asked, _ = rig.worker_client.asked[-2:]  # tokenized, then detokenized
    assert asked.continue_final
    assert asked.template_options == {"enable_thinking": False}


def test_tokenize_reads_control_tokens_for_vllm_clients(rig: Rig) -> None:
    rig.http.post("/tokenize", json={"prompt": "<|im_end|>", "add_special_tokens": False})
    assert rig.worker_client.asked[-1].special
    rig.http.post("/tokenize", json={"content": "<|im_end|>"})
    assert not rig.worker_client.asked[-1].special

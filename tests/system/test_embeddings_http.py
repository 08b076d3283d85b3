"""End to end over HTTP: `stretto serve` with an embedding model and a reranker, used by common clients."""

from __future__ import annotations

import base64
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from stretto import LLM
from stretto.model_files.store import Store
from stretto.settings.places import cache_home
from stretto.testing import tiny_models
from tests.server.process import served

TOLERANCE = 5e-4


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    return {
        "vectors": Store(cache_home()).ensure_embedding(),
        "scores": tiny_models.make("reranker"),
        "words": tiny_models.make("dense"),
    }


@pytest.fixture(scope="module")
def address(models, tmp_path_factory):
    config = tmp_path_factory.mktemp("config") / "stretto.yaml"
    config.write_text(
        "defaults: {n_threads: 1, n_seq_max: 2, context_window: 256}\nmodels:\n"
        + "".join(f"  {name}: {{path: {path}}}\n" for name, path in models.items())
    )
    with served("words", "--config", str(config)) as found:
        yield found


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def test_the_openai_client_gets_the_sdks_vectors(client, models):
    texts = ["The harbour was quiet.", "東京は日本の首都です。"]
    reply = client.embeddings.create(model="vectors", input=texts)
    with LLM(models["vectors"], n_threads=1, n_seq_max=1, context_window=256) as llm:
        expected = llm.embed(texts)
    ours = np.array([item.embedding for item in reply.data])
    assert np.abs(ours - expected.vectors).max() < TOLERANCE
    assert [item.index for item in reply.data] == [0, 1]
    assert reply.usage.prompt_tokens == reply.usage.total_tokens == expected.prompt_tokens


def test_dimensions_and_base64(address, client):
    short = client.embeddings.create(model="vectors", input="cats", dimensions=16).data[0].embedding
    assert len(short) == 16
    assert abs(sum(number * number for number in short) - 1) < 1e-4
    body = {"model": "vectors", "input": "cats", "dimensions": 16, "encoding_format": "base64"}
    raw = httpx.post(f"{address}/v1/embeddings", json=body, timeout=120).json()["data"][0]["embedding"]
    assert np.allclose(np.frombuffer(base64.b64decode(raw), dtype="<f4"), short, atol=1e-6)


def test_a_ranking_over_http(address, models):
    documents = ["it is on the", "in this", "are with that for"]
    body = {
        "model": "scores",
        "query": "the of",
        "documents": documents,
        "top_n": 2,
        "return_documents": True,
    }
    reply = httpx.post(f"{address}/v1/rerank", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    with LLM(models["scores"], n_threads=1, n_seq_max=1, context_window=256) as llm:
        expected = llm.rerank("the of", documents, top_n=2)
    results = reply.json()["results"]
    assert [item["index"] for item in results] == [ranked.index for ranked in expected]
    for item, ranked in zip(results, expected, strict=True):
        assert abs(item["relevance_score"] - ranked.score) < 1e-3
        assert item["document"]["text"] == ranked.document


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("embeddings", {"model": "vectors", "input": []}, "input"),
        ("embeddings", {"model": "vectors", "input": ""}, "empty"),
        ("embeddings", {"model": "vectors", "input": ["x"] * 10_000}, "2048"),
        ("embeddings", {"model": "vectors", "input": [[40_000]]}, "40000"),
        (
            "embeddings",
            {"model": "vectors", "input": "word " * 300},
            "302 tokens, the model's maximum is 256",
        ),
        ("embeddings", {"model": "scores", "input": "x"}, "reranker"),
        ("embeddings", {"model": "words", "input": "x"}, "dense language model"),
        ("rerank", {"model": "vectors", "query": "a", "documents": ["b"]}, "embedding model"),
        (
            "chat/completions",
            {"model": "vectors", "messages": [{"role": "user", "content": "x"}]},
            "generate",
        ),
    ],
)
def test_bad_input_is_a_clear_400(address, path, body, words):
    reply = httpx.post(f"{address}/v1/{path}", json=body, timeout=120)
    assert reply.status_code == 400, reply.text
    assert words in reply.json()["error"]["message"]

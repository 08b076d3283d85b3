"""Embedding and reranking with real models: against transformers, packed and alone, under load, cancelled."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stretto import LLM
from stretto.errors import (
    DeadlineError,
    EmptyPromptError,
    InvalidRequestError,
    InvalidTokenError,
    PromptTooLongError,
    UnsupportedByModelError,
)
from stretto.model_files import minilm
from stretto.model_files.store import Store
from stretto.settings.places import cache_home
from stretto.testing import tiny_models
from tests.system.embedding_texts import two_hundred

NAME = "all-MiniLM-L6-v2"
COSINE_MIN = 0.999
GAP = 1e-3
PACKED_TOLERANCE = 5e-4  # per component of a unit vector: other batch sizes use other kernels


@pytest.fixture(scope="module")
def minilm_path():
    return Store(cache_home()).ensure_embedding()


@pytest.fixture(scope="module")
def llm(minilm_path):
    with LLM(minilm_path, n_threads=1, n_seq_max=2) as model:
        yield model


@pytest.fixture(scope="module")
def reranker():
    with LLM(tiny_models.make("reranker"), n_threads=1, n_seq_max=1) as model:
        yield model


@pytest.fixture(scope="module")
def reference():
    """transformers with the original files: BERT, mean over tokens, unit length; at most 256 tokens."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.set_num_threads(1)
    folder = minilm.source()
    model = BertModel(BertConfig.from_json_file(str(folder / "config.json")), add_pooling_layer=False).eval()
    from safetensors.torch import load_file

    missing, _ = model.load_state_dict(load_file(str(folder / "model.safetensors")), strict=False)
    assert not missing
    tokenizer = AutoTokenizer.from_pretrained(str(folder))

    def vectors(texts):
        rows = []
        for text in texts:
            encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=256, padding=False)
            with torch.no_grad():
                row = model(**encoded).last_hidden_state[0].mean(0).numpy()
            rows.append(row / np.linalg.norm(row))
        return np.stack(rows)

    return vectors


@pytest.mark.slow
def test_two_hundred_embeddings_equal_transformers(minilm_path, reference):
    texts = two_hundred()
    assert len(texts) == 200
    theirs = reference(texts)
    with LLM(minilm_path, n_threads=1, context_window=256) as model:
        ours = model.embed(texts, truncate="right").vectors
    cosines = (ours * theirs).sum(axis=1)
    assert cosines.min() >= COSINE_MIN, [(texts[n][:40], cosines[n]) for n in cosines.argsort()[:5]]
    _same_neighbours(ours, theirs)


def _same_neighbours(ours: np.ndarray, theirs: np.ndarray) -> None:
    near_ours, near_theirs = ours @ ours.T, theirs @ theirs.T
    np.fill_diagonal(near_ours, -1)
    np.fill_diagonal(near_theirs, -1)
    best = np.sort(near_theirs, axis=1)
    clear = best[:, -1] - best[:, -2] > GAP
    assert clear.sum() > 100  # otherwise the comparison shows little
    assert np.array_equal(near_ours.argmax(axis=1)[clear], near_theirs.argmax(axis=1)[clear])


def test_the_same_vector_alone_and_packed_with_sixty_three_others(minilm_path):
    texts = [f"text {n}" for n in range(63)]
    mine = "The harbour was quiet."
    with LLM(minilm_path, n_threads=1, n_seq_max=1, embed_batch_tokens=512) as model:
        alone = model.embed(mine)[0]
        before = model.pool_stats().batches
        packed = model.embed([*texts[:31], mine, *texts[31:]])[31]
        assert model.pool_stats().batches == before + 1
    assert np.abs(packed - alone).max() < PACKED_TOLERANCE
    assert float(packed @ alone) > 0.99999


@pytest.mark.slow
def test_a_hundred_concurrent_requests_a_third_cancelled(llm):
    texts = [f"request {n} asks about subject {n * n}" for n in range(100)]
    expected = llm.embed(texts).vectors
    before = threading.active_count()

    async def all_of_them() -> list[object]:
        tasks = [asyncio.create_task(llm.aembed([text] * (1 + n % 4))) for n, text in enumerate(texts)]
        await asyncio.sleep(0.02)
        for task in tasks[::3]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(all_of_them())
    cancelled = [n for n, answer in enumerate(answers) if isinstance(answer, asyncio.CancelledError)]
    assert set(cancelled) <= set(range(0, 100, 3))
    assert len(cancelled) > 10
    for n, answer in enumerate(answers):
        if n in cancelled:
            continue
        assert len(answer) == 1 + n % 4
        for vector in answer:
            assert np.abs(vector - expected[n]).max() < PACKED_TOLERANCE
    _settled(llm)
    assert threading.active_count() <= before + 2


def _settled(llm: LLM) -> None:
    end = time.monotonic() + 30
    while llm.pool_stats().requests or llm.pool_stats().busy:
        assert time.monotonic() < end, llm.pool_stats()
        time.sleep(0.01)
    assert llm.pool_stats().contexts == 2


def test_a_lone_request_does_not_wait_for_a_long_one(llm):
    """A request of one text ends while most of a request of 300 texts is still pending."""
    text = "a short text about nothing much"
    with ThreadPoolExecutor(1) as other:
        long = other.submit(llm.embed, [text] * 300)
        time.sleep(0.1)
        before = llm.pool_stats().batches
        llm.embed(text)
        assert (
            llm.pool_stats().batches - before <= 6
        )  # two on each of two contexts, plus those already running
        assert not long.done()
        assert len(long.result()) == 300


def test_dimensions_truncate_and_renormalize(llm):
    whole, short = llm.embed("cats and dogs")[0], llm.embed("cats and dogs", dimensions=64)[0]
    assert short.shape == (64,)
    assert math.isclose(float(short @ short), 1.0, abs_tol=1e-5)
    assert np.allclose(short, whole[:64] / np.linalg.norm(whole[:64]), atol=1e-6)
    raw = llm.embed("cats and dogs", normalize=False)[0]
    assert np.allclose(raw / np.linalg.norm(raw), whole, atol=1e-6)


def test_token_ids_are_embedded_unchanged(llm):
    ids = [101, *llm.tokenize("cats and dogs"), 102]
    assert np.allclose(llm.embed(ids)[0], llm.embed("cats and dogs")[0], atol=PACKED_TOLERANCE)
    assert llm.embed([ids, ids]).prompt_tokens == 2 * len(ids)


def test_truncation_keeps_the_requested_side(llm):
    long = " ".join(["cat"] * 520)
    assert llm.embed(long, truncate="right").prompt_tokens == 512
    left = llm.embed("dog " * 300 + long, truncate="left")[0]
    assert float(left @ llm.embed(" ".join(["cat"] * 510))[0]) > 0.999


@pytest.mark.parametrize(
    ("inputs", "options", "kind", "words"),
    [
        ([], {}, EmptyPromptError, "no inputs"),
        ("", {}, EmptyPromptError, "empty string"),
        (["fine", ""], {}, EmptyPromptError, "input 1"),
        (["x"] * 10_000, {}, InvalidRequestError, "10000 inputs.*2048"),
        ([[1, 40_000]], {}, InvalidTokenError, "40000.*30521"),
        ([[-1]], {}, InvalidTokenError, "-1"),
        ([None], {}, InvalidRequestError, "input 0 must be"),
        ("word " * 600, {}, PromptTooLongError, "602 tokens.*512"),
        ("x", {"dimensions": 385}, InvalidRequestError, "385.*384"),
        ("x", {"dimensions": 0}, InvalidRequestError, "0"),
        ("x", {"truncate": "middle"}, InvalidRequestError, "left or right"),
        (["slow text " * 100] * 50, {"timeout_s": 0.001}, DeadlineError, "deadline"),
    ],
)
def test_bad_input_is_refused_with_its_numbers(llm, inputs, options, kind, words):
    with pytest.raises(kind, match=words) as caught:
        llm.embed(inputs, **options)
    assert 400 <= caught.value.http_status < 500 or kind is DeadlineError
    assert llm.embed("still there").width == 384


def test_the_wrong_kind_of_model_is_named_in_the_error(llm, reranker):
    with pytest.raises(UnsupportedByModelError, match=r"MiniLM.*embedding model.*does not score"):
        llm.rerank("a", ["b"])
    with pytest.raises(UnsupportedByModelError, match=r"MiniLM.*embedding model.*does not generate"):
        llm.chat("hello")
    with pytest.raises(UnsupportedByModelError, match=r"reranker.*no embeddings"):
        reranker.embed("a")
    with (
        LLM(tiny_models.make("dense"), n_threads=1, n_seq_max=1, context_window=64) as text_model,
        pytest.raises(UnsupportedByModelError, match=r"tiny-dense.*dense language model.*pooling"),
    ):
        text_model.embed("a")


def test_a_ranking_is_sorted_and_its_scores_are_probabilities(reranker):
    documents = ["it is on the", "in this", "are with that for"]
    ranking = reranker.rerank("the of", documents)
    assert [ranked.score for ranked in ranking] == sorted((r.score for r in ranking), reverse=True)
    assert sorted(ranked.index for ranked in ranking) == [0, 1, 2]
    raw = {ranked.index: ranked.score for ranked in reranker.rerank("the of", documents, raw_scores=True)}
    for ranked in ranking:
        assert ranked.document == documents[ranked.index]
        assert math.isclose(ranked.score, 1 / (1 + math.exp(-raw[ranked.index])), abs_tol=1e-6)
    assert [r.index for r in reranker.rerank("the of", documents, top_n=1)] == [ranking[0].index]


def test_too_long_a_document_is_rejected_or_truncated(reranker):
    with pytest.raises(PromptTooLongError, match=r"document 0 has \d+ tokens.*512"):
        reranker.rerank("the", ["in this " * 400])
    assert len(reranker.rerank("the", ["in this " * 400], truncate="right")) == 1
    with pytest.raises(PromptTooLongError):
        reranker.rerank("the " * 600, ["in"], truncate="right")
    for query, documents in [("", ["a"]), ("a", []), ("a", [""])]:
        with pytest.raises(EmptyPromptError):
            reranker.rerank(query, documents)


def test_calls_of_an_event_loop_run_at_once(llm):
    async def both() -> tuple[int, int]:
        one, two = await asyncio.gather(llm.aembed("one"), llm.aembed(["two", "three"], timeout_s=60))
        return len(one), len(two)

    assert asyncio.run(both()) == (1, 2)

"""Prompt log-probabilities depend on the prompt alone, on every backend and for every chunking.

Their values are compared with transformers (torch) and with a plain llama.cpp loop.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.request import Request
from tests.contract.subjects import SUBJECTS
from tests.contract.workbench import Driver, Subject, Text, alone, ask

PROMPT = 23
TOP = 3


def measuring(request: Request) -> Request:
    return replace(request, params=replace(request.params, prompt_logprobs=TOP))


def measured(driver: Driver, text: Text, chunk: int, *, beside: Text | None = None) -> dict[int, object]:
    """The scores by position, with the prompt computed in chunks."""
    found: dict[int, object] = {}
    while not text.output:
        rows = [(text, min(chunk, len(text.known) - text.computed))]
        if beside is not None:
            rows.append((beside, len(beside.known) - beside.computed))
        scores = driver.tick(*rows).scores
        assert set(scores) <= {text.slot}
        for start, values in scores.values():
            found |= dict(enumerate(values, start))
    return found


def logprobs(found: dict[int, object]) -> list[float]:
    assert sorted(found) == list(range(1, PROMPT)), "every token except the first"
    return [found[at].logprob for at in range(1, PROMPT)]


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    return request.param


@pytest.mark.parametrize("chunk", [3, 8, 22])
def test_chunks_and_neighbours_change_nothing(subject: Subject, chunk: int) -> None:
    request = measuring(ask("a", PROMPT))
    whole, chunked = Driver(subject), Driver(subject)
    try:
        right = logprobs(measured(whole, whole.bind(request), PROMPT))
        beside = chunked.bind(ask("b", 9, start=5), 1)
        got = logprobs(measured(chunked, chunked.bind(request, 0), chunk, beside=beside))
    finally:
        whole.close()
        chunked.close()
    assert np.allclose(got, right, atol=1e-4)
    assert all(value <= 0 for value in got)


def test_the_answer_is_the_same_with_and_without_prompt_logprobs(subject: Subject) -> None:
    request = ask("a", PROMPT)
    assert alone(subject, measuring(request), 4) == alone(subject, request, 4)


def test_prompt_logprobs_are_computed_only_on_request(subject: Subject) -> None:
    driver = Driver(subject)
    try:
        text = driver.bind(ask("a", PROMPT))
        assert not driver.tick((text, PROMPT)).scores
    finally:
        driver.close()


@pytest.mark.parametrize("kind", ["llama", "moe"])
@pytest.mark.parametrize("chunk", [5, PROMPT])
def test_torch_prompt_logprobs_equal_transformers(kind: str, chunk: int) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.unit.backends.torch.rig import make_backend, reference_logits

    request = measuring(ask("a", PROMPT))
    driver = Driver(Subject(kind, lambda _: make_backend(kind)))
    try:
        found = measured(driver, driver.bind(request), chunk)
    finally:
        driver.close()
    levels = torch.log_softmax(reference_logits(kind, request.tokens).float(), dim=-1)
    right = [float(levels[at - 1, request.tokens[at]]) for at in range(1, PROMPT)]
    assert np.allclose(logprobs(found), right, atol=1e-3)
    best = [int(levels[at - 1].argmax()) for at in range(1, PROMPT)]
    assert [found[at].top_tokens[0] for at in range(1, PROMPT)] == best
    assert all(len(found[at].top_tokens) == TOP for at in range(1, PROMPT))


@pytest.mark.parametrize("kind", ["dense", "hybrid-lfm2"])
@pytest.mark.parametrize("chunk", [8, PROMPT])
def test_llamacpp_prompt_logprobs_equal_a_plain_loop(kind: str, chunk: int) -> None:
    pytest.importorskip("llama_cpp")
    from tests.unit.backends.llamacpp.rig import Reference, make_backend, tiny

    request = measuring(ask("a", PROMPT))
    reference = Reference(tiny(kind))
    driver = Driver(Subject(kind, lambda _: make_backend(kind)))
    try:
        found = measured(driver, driver.bind(request), chunk)
        right = reference.logprobs(request.tokens)
    finally:
        driver.close()
        reference.close()
    assert np.allclose(logprobs(found), right, atol=5e-3)

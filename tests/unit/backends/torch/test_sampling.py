"""Sampling through the whole backend: seeds, penalties, bans, logprobs, grammars, host sampling."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np
import torch

from stretto.core.request import Request
from stretto.core.tick import End
from tests.unit.backends.torch.rig import VOCAB, Loop, ask, make_backend, reference_logits


def one(request: Request, **backend) -> list[int]:
    return Loop(make_backend("qwen3", **backend)).run([request])[request.id]


def crowd(request: Request, **limits) -> list[int]:
    """The same request among others with other parameters, started before and after it."""
    others = [
        ask("hot", 31, start=4, outputs=9, temperature=1.3, top_p=0.8, seed=5),
        ask("sad", 12, start=5, outputs=7, repeat_penalty=1.4, frequency_penalty=0.2),
        ask("odd", 9, start=6, outputs=5, temperature=0.9, typical_p=0.6, seed=9),
    ]
    loop = Loop(make_backend("qwen3", page_tokens=4), prefill_chunk=8, **limits)
    return loop.run([*others, request, replace(others[0], id="late")])[request.id]


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 11},
    {"temperature": 1.2, "seed": -(1 << 60), "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.7, "seed": 3, "repeat_penalty": 1.3, "presence_penalty": 0.5, "repeat_last_n": 6},
    {"temperature": 1.0, "seed": 4, "typical_p": 0.7},
    {"temperature": 1.0, "seed": 4, "xtc_probability": 0.5, "dry_multiplier": 0.8},
]


@pytest.mark.parametrize("params", SETTINGS, ids=",".join)
def test_a_text_depends_on_its_request_alone(params):
    request = ask("r", 23, outputs=12, **params)
    alone = one(request)
    assert one(request, plan_ahead=0) == alone
    assert crowd(request) == alone


def test_seeds_give_different_texts():
    texts = {tuple(one(ask("r", 20, outputs=8, temperature=1.5, seed=seed))) for seed in range(4)}
    assert len(texts) == 4


def test_a_preempted_text_continues_unchanged():
    """Penalties and random numbers depend on the whole text, including tokens from before the preemption."""
    params = {"temperature": 0.9, "seed": 2, "repeat_penalty": 1.2, "repeat_last_n": -1}
    requests = [ask(f"r{i}", 10 + i, start=i, outputs=34, **params) for i in range(5)]
    tight = Loop(make_backend("qwen3", pages=16, page_tokens=8), cache="none", headroom_tokens=1)
    texts = tight.run(requests)
    assert sum(end.preemptions for end in tight.ends.values()) > 0
    for request in requests:
        assert texts[request.id] == one(request)


def test_penalties_equal_those_of_the_host_sampler():
    """A greedy text with penalties, checked against numpy's arithmetic on transformers' logits."""
    request = ask("r", 30, outputs=10, repeat_penalty=1.5, frequency_penalty=0.3, repeat_last_n=8)
    output = one(request)
    text = [*request.tokens, *output]
    logits = reference_logits("qwen3", text).numpy()
    for at, token in enumerate(output):
        position = len(request.tokens) + at
        row = logits[position - 1].astype(np.float64)
        counts = np.bincount(text[max(0, position - 8) : position], minlength=VOCAB)
        scaled = np.where(row > 0, row / 1.5, row * 1.5) - 0.3 * counts
        row = np.where(counts > 0, scaled, row)
        assert row.max() - row[token] < 1e-4


def test_bias_and_ends():
    plain = one(ask("r", 20, outputs=6))
    banned = one(ask("r", 20, outputs=6, logit_bias={plain[0]: -100.0}))
    assert plain[0] not in banned
    wanted = one(ask("r", 20, outputs=3, logit_bias={77: 1e4}))
    assert wanted == [77, 77, 77]
    backend = make_backend("qwen3", eos=frozenset({plain[0]}))
    request = ask("r", 20, outputs=6, ignore_eos=False, min_tokens=3, stop_token_ids=frozenset({plain[0]}))
    held = Loop(backend).run([request])["r"]
    assert plain[0] not in held[:3]


def test_logprobs_are_of_the_models_own_logits():
    request = ask("r", 18, outputs=5, temperature=0.8, seed=1, logprobs=3, logit_bias={5: 3.0})
    loop = Loop(make_backend("qwen3"))
    quiet = ask("quiet", 18, outputs=5)
    output = loop.run([request, quiet])["r"]
    found = [entry for entries in loop.extras["r"] for entry in entries]
    assert "quiet" not in loop.extras
    text = [*request.tokens, *output]
    levels = reference_logits("qwen3", text).log_softmax(-1)[len(request.tokens) - 1 : -1]
    for entry, row, token in zip(found, levels, output, strict=True):
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
        values, ids = row.topk(3)
        assert list(entry.top_tokens) == ids.tolist()
        assert list(entry.top_logprobs) == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("host", [False, True], ids=["masks on the device", "on the host"])
def test_grammars_are_followed(host):
    from stretto.text import grammar
    from stretto.text.grammar_factory import GrammarFactory

    eos = 2
    words = [bytes([token]) if token < 256 else b"" for token in range(VOCAB)]
    made = grammar.build_ll_tokenizer(words, [eos], control=[eos], encode=lambda text: list(text.encode()))
    factory = GrammarFactory(made, eos=frozenset({eos}))
    more = {"typical_p": 0.9} if host else {}
    requests = [
        ask(
            f"r{i}", 12, start=i, outputs=12, temperature=1.0, seed=i, ignore_eos=False,
            stop_token_ids=frozenset({eos}), grammar=grammar.from_regex("(ab|cde)+!"), **more,
        )
        for i in range(3)
    ]  # fmt: skip
    backend = make_backend("qwen3", eos=frozenset({eos}), make_grammars=lambda: factory)
    free = ask("free", 12, outputs=5)
    loop = Loop(backend)
    texts = loop.run([*requests, free])
    for request in requests:
        text = bytes(token for token in texts[request.id] if token != eos).decode()
        assert set(text.replace("ab", "").replace("cde", "").rstrip("!")) <= {"c", "d", "a"}, text
        assert text
    assert texts["free"] == one(free)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_guided_text_is_complete_within_max_tokens(temperature):
    """Sampling starts on the device and ends on the host; an untrained model would never close the string."""
    from stretto.text import grammar
    from stretto.text.grammar_factory import GrammarFactory

    eos = 2
    words = [bytes([token]) if token < 256 else b"" for token in range(VOCAB)]
    made = grammar.build_ll_tokenizer(words, [eos], control=[eos], encode=lambda text: list(text.encode()))
    factory = GrammarFactory(made, eos=frozenset({eos}))
    schema = {"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}
    guided = ask(
        "r", 12, outputs=130, temperature=temperature, seed=5, ignore_eos=False,
        stop_token_ids=frozenset({eos}),
        grammar=grammar.from_json_schema({**schema, "required": ["s", "n"]}),
    )  # fmt: skip
    loop = Loop(make_backend("qwen3", eos=frozenset({eos}), make_grammars=lambda: factory))
    tokens = loop.run([guided])["r"]
    assert tokens[-1] == eos
    assert set(json.loads(bytes(tokens[:-1]))) >= {"s", "n"}


def test_only_the_request_with_unsupported_parameters_fails():
    bad = ask("bad", 10, outputs=4, logit_bias={VOCAB + 3: 1.0})
    ungrammatical = ask("grammar", 10, outputs=4, grammar="start: /a/")
    good = ask("good", 14, outputs=6)
    loop = Loop(make_backend("qwen3"))
    texts = loop.run([bad, good, ungrammatical])
    assert loop.ends["bad"].end is End.FAILED
    assert loop.ends["bad"].reason == "invalid_token"
    assert loop.ends["grammar"].end is End.FAILED
    assert texts["good"] == one(good)


def test_only_the_request_without_finite_logits_fails():
    """One request's KV is poisoned; the others in the batch are unaffected."""
    backend = make_backend("llama", plan_ahead=0, page_tokens=8)
    loop = Loop(backend)
    requests = [ask("good", 12, outputs=8), ask("bad", 12, start=3, outputs=8)]
    for request in requests:
        loop.scheduler.submit(request, 0.0)
        loop.texts[request.id] = array("i", request.tokens)
    while not all(len(text) > 14 for text in loop.texts.values()):
        loop._turn()
    slot = next(slot for slot, name in loop._bound.items() if name == "bad")
    with torch.inference_mode():
        page = int(backend._tables.block_tables[slot, 0])
        backend.pool.layers[0].v[page] = float("nan")
    while len(loop.ends) < 2:
        loop._turn()
    assert (loop.ends["bad"].end, loop.ends["bad"].reason) == (End.FAILED, "bad_output")
    assert loop.ends["good"].end is End.FINISHED

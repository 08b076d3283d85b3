"""Adapters in the SDK: names, scales, mistakes, and one batch over several of them."""

from __future__ import annotations

import pytest

from stretto import LLM
from stretto.cli.run import _adapters
from stretto.errors import AdapterNotFoundError, InvalidRequestError

SOURCES = {
    name: f"/nowhere/{name}" for name in ("ada", "bob", "cyd", "dot")
}  # the simulated model reads none


@pytest.fixture(scope="module")
def llm(own_process):
    with LLM(backend="simulated", n_seq_max=8, adapters=SOURCES, own_process=own_process) as llm:
        yield llm


def said(llm: LLM, lora=None) -> str:
    return llm.generate(["One two three"], max_tokens=8, temperature=0.0, lora=lora)[0].text


def test_adapters_are_named_in_three_ways(llm):
    ada = said(llm, "ada")
    assert ada == said(llm, ["ada"]) == said(llm, {"ada": 1.0})
    assert len({ada, said(llm), said(llm, {"ada": 0.5}), said(llm, ["ada", "bob"])}) == 4
    assert said(llm, {"ada": 0}) == said(llm)


def test_one_batch_over_four_adapters_equals_each_alone(llm):
    names = [list(SOURCES)[at % 4] for at in range(8)]
    prompts = [f"Prompt {at // 4}" for at in range(8)]
    together = llm.generate(prompts, [{"lora": name} for name in names], max_tokens=12, temperature=0.0)
    for prompt, name, answer in zip(prompts, names, together, strict=True):
        assert llm.generate([prompt], max_tokens=12, temperature=0.0, lora=name)[0].text == answer.text
    assert len({answer.text for answer in together}) == 8


def test_unknown_adapters_and_wrong_values_are_refused(llm):
    with pytest.raises(AdapterNotFoundError, match="no adapter 'eve'"):
        said(llm, "eve")
    with pytest.raises(InvalidRequestError, match="lora names adapters"):
        said(llm, {"ada": "much"})
    with LLM(backend="simulated") as plain, pytest.raises(AdapterNotFoundError, match="no adapters"):
        said(plain, "ada")


def test_run_takes_names_files_and_scales(tmp_path):
    file = tmp_path / "my adapter.gguf"
    file.touch()
    assert _adapters(["legal", "tone=0.5", f"{file}=2"]) == (
        {"my-adapter": str(file)},
        {"legal": None, "tone": 0.5, "my-adapter": 2.0},
    )


def test_one_batch_over_more_adapters_than_memory_holds(own_process):
    options = {"backend": "simulated", "n_seq_max": 2, "adapters": SOURCES, "own_process": own_process}
    names = [list(SOURCES)[at % 4] for at in range(12)]
    with LLM(**options, adapters_loaded_max=1) as small, LLM(**options) as large:
        texts = [
            [
                each.text
                for each in llm.generate(["One"] * 12, [{"lora": name} for name in names], max_tokens=4)
            ]
            for llm in (small, large)
        ]
    assert texts[0] == texts[1]

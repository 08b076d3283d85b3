"""A draft model named in the settings: its vocabulary is checked, its memory counted, its drafts used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from stretto import LLM
from stretto.backends.torch import read_config
from stretto.backends.torch.loading import TorchOptions, open_model
from stretto.backends.torch.models import Placement
from stretto.backends.torch.pool import DraftMemory, pages_that_fit
from stretto.core import draft_gain, draft_plan
from stretto.core.draft_price import DraftPrice
from stretto.errors import ModelLoadError, ModelNotFoundError
from stretto.worker.catalogue import Catalogue, Launch
from stretto.worker.loading import load
from tests.unit.backends.torch.rig import folder, hf_config, make_hf_model, save
from tests.unit.backends.torch.test_files import byte_level_json

SIZES = {"slots": 2, "window": 256, "page_tokens": 16, "rows_max": 256, "device": "cpu", "threads": 1}


def with_tokenizer(source: Path, target: Path, text: str) -> Path:
    shutil.copytree(source, target)
    (target / "tokenizer.json").write_text(text)
    (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return target


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return with_tokenizer(folder("qwen3"), tmp_path_factory.mktemp("target") / "target", byte_level_json())


def opened(path: Path, draft: Path):
    options = TorchOptions(**SIZES, load_format="auto", drafts_max=4, draft_model=draft, lookup=False)
    return open_model(path, options)


def test_another_vocabulary_is_refused_with_the_first_difference(model, tmp_path):
    other = with_tokenizer(
        folder("llama"), tmp_path / "other", byte_level_json().replace("<think>", "<hmmm>")
    )
    with pytest.raises(ModelLoadError, match=r"other .* token 259 is b'<hmmm>', in the model b'<think>'"):
        opened(model, other)


def test_without_tokenizers_the_number_of_ids_must_be_the_same():
    wider = save(make_hf_model(hf_config("llama", vocab_size=640)))
    with pytest.raises(ModelLoadError, match="it has 640 tokens, the model has 512"):
        opened(folder("qwen3"), wider)


def test_logits_of_another_width_are_no_other_vocabulary(model, tmp_path):
    """Families pad their logits to round numbers, which differ between sizes."""
    wider = with_tokenizer(
        save(make_hf_model(hf_config("llama", vocab_size=640))), tmp_path / "wider", byte_level_json()
    )
    backend = opened(model, wider).backend
    assert backend.drafting.model.model.shape.vocab == 640
    backend.close()


def test_a_missing_folder_is_said_as_such(model, tmp_path):
    with pytest.raises(ModelNotFoundError, match="nowhere is neither a folder nor a GGUF file"):
        opened(model, tmp_path / "nowhere")


def test_its_pages_are_counted_with_those_of_its_target():
    import torch

    shape, place = read_config(folder("qwen3")), Placement(torch.device("cpu"), torch.float32)
    sizes = {"slots": 4096, "window": 8192, "rows_max": 256, "page_tokens": 16}
    alone = pages_that_fit(shape, place, **sizes)
    page_bytes = 16 * shape.kv_bytes_per_token(4)
    as_large = DraftMemory(page_bytes=page_bytes, pages_max=1 << 30, pass_bytes=0)
    assert pages_that_fit(shape, place, **sizes, draft=as_large) == alone // 2
    few = as_large._replace(pages_max=100)  # all that its slots can fill
    assert pages_that_fit(shape, place, **sizes, draft=few) == alone - 100


def test_the_setting_names_it_and_the_estimate_counts_it(model, tmp_path):
    settings = {"n_seq_max": 2, "context_window": 256, "n_threads": 1}
    drafting = {**settings, "draft_model": str(model)}
    sizes = [
        Catalogue(Launch(models=(str(model),), flags=flags, cache_dir=str(tmp_path))).estimate_bytes(
            "target", lambda *_: None
        )
        for flags in (settings, drafting)
    ]
    assert sizes[1] == 2 * sizes[0] > 0
    loaded = load(model, drafting, cache_dir=tmp_path)
    assert loaded.description["speculation"] == "draft model target"
    assert loaded.drafts == 8
    loaded.close()


def test_texts_through_the_sdk_are_those_without_it(model, monkeypatch):
    """In this process, with the scheduler's own rule, which is told that drafts pay."""
    monkeypatch.setattr(draft_plan, "GAIN_MIN", 0.0)
    monkeypatch.setattr(draft_gain.DraftGain, "allows", lambda *_: True)
    monkeypatch.setattr(DraftPrice, "pays", lambda *_: True)

    def written(**more):
        settings = {"n_threads": 1, "context_window": 256, "n_seq_max": 2, "own_process": False}
        with LLM(model, **settings, **more) as llm:
            found = llm.generate(
                ["once upon", "he said", "well"], max_tokens=40, temperature=0, ignore_eos=True
            )
            return [one.text for one in found], [one.usage for one in found]

    plain, _ = written()
    texts, usage = written(draft_model=str(model))
    assert texts == plain
    accepted = sum(one.accepted_drafts for one in usage)
    assert accepted == sum(one.proposed_drafts for one in usage) > 20

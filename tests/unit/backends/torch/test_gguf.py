"""GGUF files on torch: weights, shapes and vocabularies equal llama.cpp's."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("gguf")
pytest.importorskip("llama_cpp", reason="llama-cpp-python is the reference")

import torch

from stretto.backends.torch.gguf_source import GgufSource
from stretto.backends.torch.loading import TorchOptions, open_model
from stretto.errors import UnsupportedModelError
from stretto.testing import tiny_models
from tests.unit.backends.llamacpp.rig import Reference, tiny
from tests.unit.backends.torch.rig import ask

TOLERANCE = 0.05
TEXTS = (
    "Hello, world! It's 12,345 o'clock.\n\n  Two  spaces\tand a tab.\r\n",
    "<|im_start|>user\nIs <|im_end|> a token?<|im_end|>\n",
    "naïve café — 東京タワー 🎉👩‍💻 ½ ٣",
    "def f(x):\n    return x**2  # don't\n",
    "",
)


@pytest.fixture(scope="module")
def opened():
    torch.set_num_threads(1)
    made = open_model(tiny_models.make("dense"), TorchOptions(window=256, device="cpu"))
    yield made
    made.backend.close()


def test_the_vocabulary_equals_llama_cpps(opened):
    ours, theirs = opened.tokenizer, tiny("dense").vocabulary
    assert (ours.vocab_size, ours.bos, ours.eos) == (theirs.vocab_size, theirs.bos, theirs.eos)
    assert ours.adds_bos == theirs.adds_bos
    for text in TEXTS:
        for special in (True, False):
            assert ours.encode(text, special) == theirs.encode(text, special), text
    tokens = range(theirs.vocab_size)
    assert all(ours.token_bytes(token) == theirs.token_bytes(token) for token in tokens)
    assert all(ours.is_control(token) == theirs.is_control(token) for token in tokens)


def test_the_template_is_read_from_the_file(opened):
    assert opened.template == tiny("dense").template


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_greedy_text_equals_llama_cpps(kind):
    """llama.cpp pairs rotary dimensions differently and has an f16 cache: logits agree to 0.05."""
    from benchmarks.gpu.offline import OfflineLoop

    made = open_model(tiny_models.make(kind), TorchOptions(window=256, device="cpu", threads=1))
    requests = [ask(f"r{i}", 11 + 9 * i, start=i, outputs=6) for i in range(3)]
    texts = OfflineLoop(made.backend).run(requests).outputs
    made.backend.close()
    reference = Reference(tiny(kind))
    for request in requests:
        assert reference.gap(request.tokens, texts[request.id]) <= TOLERANCE
    reference.close()


def test_other_architectures_are_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="gemma3"):
        GgufSource(tiny_models.make("swa"))


@pytest.mark.slow
def test_smollm2_text_equals_llama_cpps():
    """A small version of `python -m tests.system.torch_parity`, which uses 20 prompts."""
    from tests.system.torch_parity import f16_file, run

    tally = run(3, f16_file(tiny_models.default_directory()), output=8)
    assert not tally.wrong
    assert tally.identical >= 2

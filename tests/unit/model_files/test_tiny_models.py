"""The generator of tiny models: same seed, same file; with SmolLM2's tokenizer and template."""

from __future__ import annotations

import pytest

from stretto.model_files import gguf
from stretto.testing.tiny_models import FAMILIES, KINDS, make


@pytest.mark.parametrize("kind", ["swa", "embedding"])
def test_same_seed_same_bytes(tmp_path, kind):
    one, two, other = (
        make(kind, tmp_path / "1"),
        make(kind, tmp_path / "2"),
        make(kind, tmp_path / "1", seed=1),
    )
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != other.read_bytes()
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == sorted([one.name, other.name])


def test_made_once(tmp_path):
    path = make("embedding", tmp_path)
    before = path.stat().st_mtime_ns
    assert make("embedding", tmp_path).stat().st_mtime_ns == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if FAMILIES[kind].arch != "bert"])
def test_tokenizer_and_template_are_smollm2s(tiny, smollm2, kind):
    ours, theirs = gguf.read(tiny(kind)), gguf.read(smollm2)
    assert ours.template == theirs.template
    for name in ("tokens", "merges", "token_type"):
        key = f"tokenizer.ggml.{name}"
        assert ours.metadata[key].read() == theirs.metadata[key].read()
    assert ours.metadata["tokenizer.ggml.eos_token_id"] == 2

"""The bundled embedding model: converted once, atomically, from files with the right digests."""

from __future__ import annotations

import pytest

from stretto.errors import DigestMismatchError, ModelNotFoundError
from stretto.model_files import gguf, minilm
from stretto.model_files.kind import ModelKind, shape_of
from stretto.model_files.store import Store


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return minilm.ensure(tmp_path_factory.mktemp("cache"))


def test_the_converted_model_is_a_bert_with_mean_pooling_and_its_full_vocabulary(written):
    file = gguf.read(written)
    shape = shape_of(file)
    assert shape.kind is ModelKind.EMBEDDING
    assert (shape.layers, shape.embedding_length, shape.context_length) == (6, 384, 512)
    assert (shape.pooling, shape.causal) == (1, False)
    words = (minilm.source() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    tokens = file.metadata["tokenizer.ggml.tokens"].read()
    assert len(tokens) == len(words) == 30522
    assert (tokens[101], tokens[words.index("the")], tokens[words.index("##ing")]) == ("[CLS]", "▁the", "ing")


def test_no_tensor_is_missing_or_changed(written):
    import numpy as np
    from gguf import GGUFReader
    from safetensors.numpy import load_file

    ours = {tensor.name: tensor.data for tensor in GGUFReader(written).tensors}
    theirs = load_file(minilm.source() / "model.safetensors")
    assert len(ours) == 5 + 6 * 16
    query = theirs["encoder.layer.3.attention.self.query.weight"]
    assert np.array_equal(ours["blk.3.attn_q.weight"], query)
    assert np.array_equal(ours["token_embd.weight"], theirs["embeddings.word_embeddings.weight"])


def test_the_model_is_converted_once_with_progress_reported(tmp_path):
    told: list[tuple[int, int]] = []
    path = Store(tmp_path).ensure_embedding(lambda done, total: told.append((done, total)))
    assert told[-1] == (101, 101)
    before = path.stat().st_mtime_ns
    assert Store(tmp_path).resolve(minilm.NAME) == path
    assert path.stat().st_mtime_ns == before
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_damaged_copy_is_converted_again(tmp_path):
    path = minilm.target(tmp_path)
    path.parent.mkdir()
    path.write_bytes(b"GGUF and nothing else")
    assert gguf.read(minilm.ensure(tmp_path)).tensors


def test_weights_with_another_digest_are_refused(tmp_path, monkeypatch):
    fake = tmp_path / "model"
    fake.mkdir()
    for name in minilm.SHA256:
        (fake / name).write_bytes(b"something else")
    monkeypatch.setattr(minilm, "source", lambda: fake)
    with pytest.raises(DigestMismatchError, match="safetensors has the sha256"):
        minilm.ensure(tmp_path)
    assert not list(tmp_path.glob("embedding/*"))


def test_a_missing_package_error_has_an_install_hint(tmp_path, monkeypatch):
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package_anywhere")
    with pytest.raises(ModelNotFoundError) as caught:
        minilm.ensure(tmp_path)
    assert "stretto pull demo" in caught.value.hint

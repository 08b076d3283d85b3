"""The tiny projector: the tensors of a gemma3 tower, and the same file for the same seed."""

from __future__ import annotations

import pytest

from stretto.testing import tiny_projectors

gguf = pytest.importorskip("gguf")


def test_it_has_a_tower_of_two_blocks_for_the_tiny_gemma3(tmp_path):
    reader = gguf.GGUFReader(tiny_projectors.make(tmp_path))
    shapes = {tensor.name: [int(size) for size in tensor.shape] for tensor in reader.tensors}
    assert len(shapes) == 39
    assert shapes["v.patch_embd.weight"] == [14, 14, 3, 32]
    assert shapes["mm.input_projection.weight"] == [64, 32]
    assert reader.fields["clip.projector_type"].contents() == "gemma3"
    assert reader.fields["clip.vision.image_mean"].contents() == [0.5, 0.5, 0.5]
    assert tiny_projectors.ROWS == 4


def test_the_same_seed_gives_the_same_file(tmp_path):
    first = tiny_projectors.make(tmp_path / "a").read_bytes()
    assert tiny_projectors.make(tmp_path / "b").read_bytes() == first
    assert tiny_projectors.make(tmp_path / "c", seed=1).read_bytes() != first


def test_one_that_hears_has_a_second_tower(tmp_path):
    reader = gguf.GGUFReader(tiny_projectors.make(tmp_path, hears=True))
    names = {tensor.name for tensor in reader.tensors}
    assert {"a.conv1d.1.weight", "a.blk.1.attn_q.bias", "v.blk.1.attn_k.bias"} <= names
    assert "a.blk.1.attn_k.bias" not in names  # Whisper's keys have none
    assert reader.fields["clip.vision.projector_type"].contents() == "gemma3"
    assert reader.fields["clip.audio.projector_type"].contents() == "ultravox"
    assert "clip.projector_type" not in reader.fields
    assert tiny_projectors.SOUND_ROWS == 30


def test_one_for_mrope_merges_four_patches_of_two_frames(tmp_path):
    reader = gguf.GGUFReader(tiny_projectors.make(tmp_path, grid=True, hears=True))
    names = {tensor.name for tensor in reader.tensors}
    assert {"v.patch_embd.weight.1", "mm.0.weight", "mm.2.bias", "a.conv1d.1.weight"} <= names
    assert not names & {"v.patch_embd.bias", "v.position_embd.weight"}
    assert reader.fields["clip.vision.projector_type"].contents() == "qwen2vl_merger"

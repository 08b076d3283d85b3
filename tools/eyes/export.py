"""Writes the trained model as the two GGUFs that llama.cpp loads: the decoder and the projector file.

    python -m tools.eyes.export WEIGHTS.npz DIRECTORY [--type q8_0]

Matrices become Q8_0 (or F16, F32 with `--type`); norms, biases and positions stay F32, and so does the patch
convolution, whose rows are too short for blocks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tools.eyes import drawing, scenes, vocabulary

NAME = "sees"
TYPES = {
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "f16": gguf.GGMLQuantizationType.F16,
    "f32": gguf.GGMLQuantizationType.F32,
}
_FILE_TYPES = {
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "f32": gguf.LlamaFileType.ALL_F32,
}
_PROJECTOR = {"mlp_norm": "mm.model.mlp.0", "mlp_up": "mm.model.mlp.1", "mlp_down": "mm.model.mlp.3"}
Weights = dict[str, np.ndarray]


def read(path: Path) -> tuple[dict[str, Any], Weights]:
    """Sizes and weights as `train` saved them."""
    with np.load(path) as stored:
        sizes: dict[str, Any] = json.loads(str(stored["sizes"]))
        return sizes, {name: stored[name].astype(np.float32) for name in stored.files if name != "sizes"}


def add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    """A tensor, quantized if it is a matrix."""
    values = np.ascontiguousarray(values)
    is_matrix = values.ndim == 2 and "position_embd" not in name
    to = TYPES[kind] if is_matrix else TYPES["f32"]
    writer.add_tensor(name, gguf.quants.quantize(values, to), raw_dtype=to)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_decoder(path: Path, sizes: dict[str, Any], weights: Weights, kind: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(NAME)
    writer.add_file_type(_FILE_TYPES[kind])
    writer.add_context_length(sizes["context"])
    writer.add_embedding_length(sizes["width"])
    writer.add_block_count(sizes["layers"])
    writer.add_feed_forward_length(sizes["feed_forward"])
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["kv_heads"])
    writer.add_key_length(sizes["head"])
    writer.add_value_length(sizes["head"])
    writer.add_rope_dimension_count(sizes["head"])
    writer.add_rope_freq_base(sizes["rope_base"])
    writer.add_layer_norm_rms_eps(sizes["eps"])
    writer.add_vocab_size(vocabulary.TOKENS)
    _add_tokenizer(writer)
    for name, values in weights.items():
        if not name.startswith("tower."):
            add(writer, name, values, kind)
    finish(writer)


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    names = vocabulary.token_names()
    types = [gguf.TokenType.NORMAL] * len(names)
    for number in range(256, 256 + len(vocabulary.SPECIAL)):
        types[number] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(types)
    writer.add_token_merges(vocabulary.merges())
    writer.add_bos_token_id(vocabulary.END_OF_TEXT)
    writer.add_eos_token_id(vocabulary.IM_END)
    writer.add_pad_token_id(vocabulary.END_OF_TEXT)
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary.CHAT_TEMPLATE)


def write_projector(path: Path, sizes: dict[str, Any], weights: Weights, kind: str) -> None:
    """The tower and its projector, as projector type `internvl`: causal rows, and batches of pictures."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name(NAME)
    writer.add_type("mmproj")
    writer.add_file_type(_FILE_TYPES[kind])
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "internvl")
    writer.add_bool("clip.use_gelu", True)
    writer.add_uint32("clip.vision.image_size", sizes.get("picture", scenes.SIZE))
    writer.add_uint32("clip.vision.patch_size", sizes.get("patch", drawing.PATCH))
    writer.add_uint32("clip.vision.projector.scale_factor", sizes.get("merged", 1))
    writer.add_uint32("clip.vision.preproc_min_tiles", 1)
    writer.add_uint32("clip.vision.preproc_max_tiles", 1)
    writer.add_uint32("clip.vision.embedding_length", sizes["tower_width"])
    writer.add_uint32("clip.vision.feed_forward_length", 4 * sizes["tower_width"])
    writer.add_uint32("clip.vision.block_count", sizes["tower_layers"])
    writer.add_uint32("clip.vision.projection_dim", sizes["width"])
    writer.add_uint32("clip.vision.attention.head_count", sizes["tower_width"] // sizes["head"])
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", sizes["tower_eps"])
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    for name, values in weights.items():
        if name.startswith("tower."):
            add(writer, _projector_name(name.removeprefix("tower.")), values, kind)
    finish(writer)


def _projector_name(name: str) -> str:
    part, _, rest = name.partition(".")
    if part in _PROJECTOR:
        return f"{_PROJECTOR[part]}.{rest}"
    return "v.position_embd.weight" if part == "position_embd" else f"v.{name}"


def export(weights_file: Path, directory: Path, kind: str = "q8_0") -> tuple[Path, Path]:
    """Writes both files; returns their paths."""
    sizes, weights = read(weights_file)
    directory.mkdir(parents=True, exist_ok=True)
    decoder, projector = directory / f"{NAME}.gguf", directory / f"mmproj-{NAME}.gguf"
    write_decoder(decoder, sizes, weights, kind)
    write_projector(projector, sizes, weights, kind)
    return decoder, projector


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--type", choices=sorted(TYPES), default="q8_0")
    given = parser.parse_args()
    for path in export(given.weights, given.directory, given.type):
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
